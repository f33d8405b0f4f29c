"""The errors and the ends of a run that a program reports in one line."""


class UserError(Exception):
    """A mistake that its user can correct. A program prints it as one line and exits with 2."""


class RunError(Exception):
    """A run cannot continue, with right input. A program prints it as one line and exits with 1."""


class Preempted(Exception):
    """SIGTERM stopped the run, and its state is saved: the same command continues it."""

    code = 75  # of the program


class Interrupted(KeyboardInterrupt):
    """Ctrl-C stopped the run, and its state is saved: the same command continues it."""

    code = 130
