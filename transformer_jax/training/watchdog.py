"""Notices a run that hangs."""

import contextlib
import faulthandler
import os
import sys
import threading
from collections.abc import Iterator

from transformer_jax.distributed import hosts
from transformer_jax.training.stop import Stop

# Seconds without an update or evaluation step. It is longer than most steps, and short compared
# with the time that a run wastes when it hangs.
SILENCE = 600


class Watchdog:
    """In the context, shows the stacks of all threads on stderr when no step ends for a long time.

    The limit is SILENCE seconds. A single host then continues, because it may only be slow. One of
    several hosts exits with 1, because it may wait for another host for ever. The limit does not
    hold before the first step. After a request to stop, the process exits with 1 when no step ends
    for `grace` seconds.

    The timer is faulthandler's, whose thread does not run Python code. A collective that waits for
    a dead process, or a disk that does not answer, may block all Python threads.
    """

    def __init__(self, stop: Stop, grace: float):
        self._stop = stop
        self._grace = grace
        self._has_begun = False
        self._is_patient = False
        self._is_closed = False
        self._lock = threading.Lock()
        self._file = sys.__stderr__ or open(os.devnull, "w")

    def __enter__(self):
        self._stop.on_request = self._set
        self._set()
        return self

    def __exit__(self, *_):
        with self._lock:
            self._is_closed = True
            faulthandler.cancel_dump_traceback_later()

    def fed(self) -> None:
        """An update or an evaluation step has ended."""
        self._has_begun = True
        self._set()

    @contextlib.contextmanager
    def patient(self) -> Iterator[None]:
        """In the context, nothing ends the run: a compilation or a save may take long."""
        self._is_patient = True
        self._set()
        try:
            yield
        finally:
            self._is_patient = False
            self._set()

    def _set(self) -> None:
        """Restarts the timer. The thread that receives the signals calls it, too."""
        with self._lock:
            if self._is_closed:
                return
            if self._stop.requested and not self._is_patient:
                self._start(self._grace, exit=True)
            elif self._has_begun:
                self._start(SILENCE, exit=hosts.count() > 1 and not self._is_patient)
            else:
                faulthandler.cancel_dump_traceback_later()

    def _start(self, seconds: float, exit: bool) -> None:
        faulthandler.dump_traceback_later(seconds, file=self._file, exit=exit)
