"""A run that falls silent says where it stands."""
import faulthandler
import sys

SILENCE = 600  # seconds without an update: longer than a save or most evaluations wait, short beside what a hung run costs


class Watchdog:
    """Within the context, after SILENCE seconds since the last `fed`, the stacks of all threads go to stderr, once; the run goes on.

    Nothing is watched before the first `fed`: compiling may take longer. The dump comes from a thread of faulthandler's own, which needs no
    Python to run: a collective that waits for a dead process or a disk that does not answer stops all that does.
    """

    def __enter__(self):
        return self

    def fed(self) -> None:
        """An update has been made."""
        if sys.__stderr__ is not None:
            faulthandler.dump_traceback_later(SILENCE, file=sys.__stderr__)

    def __exit__(self, *_):
        faulthandler.cancel_dump_traceback_later()
