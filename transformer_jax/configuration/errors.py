"""Errors, and early ends of a run, that a program reports in one line without a traceback."""


class UserError(Exception):
    """A mistake that the user can correct. A program prints it as one line and exits with 2."""


class RunError(Exception):
    """A run can't continue although its input is valid. A program prints it and exits with 1."""


class Preempted(Exception):
    """SIGTERM stopped the run after its state was saved, so that the same command continues it."""

    code = 75  # exit code of the program, EX_TEMPFAIL in sysexits.h


class Interrupted(KeyboardInterrupt):
    """Ctrl-C stopped the run after its state was saved, so that the same command continues it."""

    code = 130  # as a shell reports the end by SIGINT, 128 + 2
