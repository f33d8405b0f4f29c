"""How a run ends before its last update: on SIGTERM and Ctrl-C, or because it hangs.

After a signal the run stops where its state can be saved, on all hosts at the same update.
"""

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

from transformer_jax.config import Interrupted, Preempted
from transformer_jax.distributed import hosts
from transformer_jax.pictures.progress import say

# Seconds. SIGINTs this close are one Ctrl-C, which a terminal and a script may both send.
ECHO = 1.0
CODES = {signal.SIGTERM: Preempted.code, signal.SIGINT: Interrupted.code}
_ERRORS = {signal.SIGTERM: Preempted, signal.SIGINT: Interrupted}
_OUTSIDE = "stopped outside of its updates; run the same command again"


class Abandoned(Exception):
    """Work whose result is not needed was given up, because the run has to stop."""


class Stop:
    """In the context, SIGTERM and SIGINT stop the run. A second Ctrl-C ends it at once.

    Before `begin`, there is nothing to save. A signal raises Preempted or Interrupted in the main
    thread. If that thread hangs for `grace` seconds, the process shows its stacks and exits. On
    several hosts all processes exit.

    From `begin` on, a signal is a request to stop at the next point. The loop calls `due` at each
    point: before and after an update, after each step of an evaluation, and after an evaluation. On
    several hosts each program of a task's evaluation is a point, too. All processes reach the same
    points, and stop at the same one.

    A thread receives the signals, because the main thread may hang in a call that runs no Python
    handler. Outside the main thread the context receives no signals.

    Attributes:
      grace: seconds for which the main thread may hang.
      requested: whether a signal has come.
      reached: whether `due` has been true.
      on_request: called when a signal comes, by another thread.
    """

    def __init__(self, grace: float = 60.0):
        self.requested = False
        self.reached = False
        self.on_request: Callable[[], None] = _nothing
        self.grace = grace
        self._point = hosts.stop_point()
        self._has_begun = False
        self._abandons = False  # whether the main thread does work that may be given up
        self._signal: int | None = None  # on several hosts, the one that they have agreed on
        self._first_interrupt: float | None = None

    def __enter__(self):
        self._open = contextlib.ExitStack()
        self._open.enter_context(_signals(self._handle, self._receive))
        return self

    def __exit__(self, error, *_):
        self._open.close()
        if error is None and self._signal and not self.reached and not self._point:
            raise self.error(_OUTSIDE)

    def begin(self) -> None:
        """From here on there is something to save."""
        if not self._has_begun and self._point:
            self._point.on_agreed(self._agreed)
            self._open.callback(self._point.on_agreed, None)
        self._has_begun = True

    def due(self) -> bool:
        """Whether the run stops at this point; `reached` keeps the answer."""
        self.reached = self._point.reached() if self._point else self._signal is not None
        return self.reached

    def error(self, line: str) -> BaseException:
        """The exception that ends the run."""
        return _ERRORS[self._signal](line)

    @contextlib.contextmanager
    def abandoning(self) -> Iterator[None]:
        """Raises Abandoned in the context, as soon as the run has to stop at the next point.

        The context has no collectives, see `evaluating`.
        """
        self._abandons = True
        try:
            self._abandon()
            yield
        finally:
            self._abandons = False

    def evaluating(self) -> contextlib.AbstractContextManager:
        """As `abandoning`. Several processes raise Abandoned between the same two programs."""
        if not self._point:
            return self.abandoning()
        return hosts.stopping_between_programs(self._abandon_if_due)

    def _abandon_if_due(self):
        if self.due():
            raise Abandoned

    def _abandon(self):
        stops_next = self._point.is_next() if self._point else self._signal is not None
        if self._abandons and stops_next:
            self._abandons = False
            raise Abandoned

    def _handle(self, number, _):
        """Runs in the main thread, where exceptions have to be raised."""
        if not self._point:
            self._signal = self._signal or number
            if not self._has_begun:
                raise self.error(_OUTSIDE)
        self._abandon()

    def _receive(self, number):
        """Runs in the thread that receives the signals."""
        if number == signal.SIGINT:
            now = time.monotonic()
            self._first_interrupt = self._first_interrupt or now
            if now - self._first_interrupt > ECHO:
                print("interrupted again: ended, nothing saved", file=sys.stderr, flush=True)
                os._exit(CODES[number])
        if self.requested:
            return
        if not self._has_begun:
            self.requested = True
            self._leave(number)
            return
        if self._point:
            self._point.ask(number)
        else:
            self._signal = self._signal or number
        self._request()
        second_signal = "; Ctrl-C again ends it at once" if number == signal.SIGINT else ""
        say(
            f"{signal.Signals(number).name}: the run saves its state after this step and ends"
            f"{second_signal}"
        )

    def _leave(self, number):
        """Ends the run before `begin`, where there is nothing to save."""
        if self._point:
            print(_OUTSIDE, file=sys.stderr, flush=True)
            hosts.failed(_OUTSIDE, CODES[number])
        timer = threading.Timer(self.grace, self._exit, [CODES[number]])
        timer.daemon = True
        timer.start()
        self._open.callback(timer.cancel)

    def _exit(self, code):
        """The main thread hangs, unless it reached `begin` just as the signal came."""
        if not self._has_begun:
            faulthandler.dump_traceback(file=sys.__stderr__ or sys.stderr)
            print(_OUTSIDE, file=sys.stderr, flush=True)
            os._exit(code)

    def _agreed(self, number):
        """Runs in the thread that watches the other hosts, once all have agreed on a signal."""
        self._signal = number
        self._request()
        if self._abandons:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)

    def _request(self):
        self.requested = True
        self.on_request()


@contextlib.contextmanager
def _signals(handle: Callable, receive: Callable[[int], None]) -> Iterator[None]:
    """Calls `handle` in the main thread, and `receive` in another, even if the main one hangs."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    read, write = os.pipe()
    os.set_blocking(write, False)
    thread = threading.Thread(target=_listen, args=(read, receive), daemon=True)
    thread.start()
    wakeup = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    # A background job of a shell ignores Ctrl-C, and must continue to do so.
    numbers = [number for number in CODES if signal.getsignal(number) is not signal.SIG_IGN]
    earlier = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler or signal.SIG_DFL)
        signal.set_wakeup_fd(wakeup)
        os.close(write)
        thread.join()
        os.close(read)


def _listen(read: int, receive: Callable[[int], None]) -> None:
    while number := os.read(read, 1):
        if number[0] in CODES:
            receive(number[0])


def _nothing() -> None:
    pass


# ------------------------------------------------------------------------------ hanging

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
        self._is_paused = False
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

    def ping(self) -> None:
        """An update or an evaluation step has ended."""
        self._has_begun = True
        self._set()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """In the context, nothing ends the run: a compilation or a save may take long."""
        self._is_paused = True
        self._set()
        try:
            yield
        finally:
            self._is_paused = False
            self._set()

    def _set(self) -> None:
        """Restarts the timer. The thread that receives the signals calls it, too."""
        with self._lock:
            if self._is_closed:
                return
            if self._stop.requested and not self._is_paused:
                self._start(self._grace, exit=True)
            elif self._has_begun:
                self._start(SILENCE, exit=hosts.count() > 1 and not self._is_paused)
            else:
                faulthandler.cancel_dump_traceback_later()

    def _start(self, seconds: float, exit: bool) -> None:
        faulthandler.dump_traceback_later(seconds, file=self._file, exit=exit)
