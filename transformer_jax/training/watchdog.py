"""A run that hangs says where it stands, and ends where it could never go on."""

import contextlib
import faulthandler
import os
import sys
import threading
from collections.abc import Iterator

from transformer_jax.distributed import hosts
from transformer_jax.training.stop import Stop

# seconds without an update or evaluation step: longer than most of them take, short beside the
# time that a hung run costs
SILENCE = 600


class Watchdog:
    """Within the context, a run in which no step ends shows the stacks of all threads on stderr.

    After SILENCE seconds without a step one host goes on: it may only be slow. One of several
    hosts exits with 1: it may wait for ever for another. Nothing is watched before the first step.
    Once the run is asked to stop, it exits with 1 after `grace` seconds in which no step ended.

    The timer is faulthandler's, whose thread needs no Python to run: a collective that waits for
    a dead process, or a disk that does not answer, may stop all that does.
    """

    def __init__(self, stop: Stop, grace: float):
        self._stop, self._grace = stop, grace
        self._began = self._patient = self._closed = False
        self._lock = threading.Lock()
        self._file = sys.__stderr__ or open(os.devnull, "w")

    def __enter__(self):
        self._stop.on_asked = self._set
        self._set()
        return self

    def __exit__(self, *_):
        with self._lock:
            self._closed = True
            faulthandler.cancel_dump_traceback_later()

    def fed(self) -> None:
        """An update or an evaluation step has ended."""
        self._began = True
        self._set()

    @contextlib.contextmanager
    def patient(self) -> Iterator[None]:
        """Within, nothing ends the run: a compilation or a save may take longer than a step."""
        self._patient = True
        self._set()
        try:
            yield
        finally:
            self._patient = False
            self._set()

    def _set(self) -> None:
        """Starts the timer anew. Also called by the thread that hears the signals."""
        with self._lock:
            if self._closed:
                return
            if self._stop.asked and not self._patient:
                self._start(self._grace, exit=True)
            elif self._began:
                self._start(SILENCE, exit=hosts.count() > 1 and not self._patient)
            else:
                faulthandler.cancel_dump_traceback_later()

    def _start(self, seconds: float, exit: bool) -> None:
        faulthandler.dump_traceback_later(seconds, file=self._file, exit=exit)
