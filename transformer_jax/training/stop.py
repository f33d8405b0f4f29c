"""Early ends of a run: stopping on SIGTERM and Ctrl-C, and a watchdog for runs that hang.

After a signal, the run stops at a point where its state can be saved, on all hosts at the same
update.
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

# Seconds. SIGINTs within this time count as one Ctrl-C, because a terminal and a script that runs
# the program may both send one.
ECHO = 1.0
CODES = {signal.SIGTERM: Preempted.code, signal.SIGINT: Interrupted.code}
_ERRORS = {signal.SIGTERM: Preempted, signal.SIGINT: Interrupted}
_OUTSIDE = "stopped outside of its updates; run the same command again"


class Abandoned(Exception):
    """Work was abandoned because the run has to stop, and its result is no longer needed."""


class Stop:
    """In the context, SIGTERM and SIGINT stop the run. A second Ctrl-C ends it at once.

    Before `begin` has been called, there is nothing to save, so a signal raises Preempted or
    Interrupted in the main thread. If that thread hangs for `grace` seconds, the process prints its
    stacks and exits. On several hosts, all processes exit.

    After `begin`, a signal is a request to stop at the next point. The training loop calls `due` at
    each point: before and after an update, after each step of an evaluation, and after an
    evaluation. On several hosts, each program of a task's evaluation is a point, too. All processes
    reach the same points, and stop at the same one.

    A separate thread receives the signals, because Python runs signal handlers only in the main
    thread, and only between its own instructions: a main thread that hangs in a call to XLA would
    never see them. If the context is entered outside of the main thread, it receives no signals.

    Attributes:
      grace: the number of seconds for which the main thread may hang.
      requested: whether a signal has been received.
      reached: whether `due` has returned True.
      on_request: a function that another thread calls when a signal is received.
    """

    def __init__(self, grace: float = 60.0):
        self.requested = False
        self.reached = False
        self.on_request: Callable[[], None] = _nothing
        self.grace = grace
        self._point = hosts.stop_point()
        self._has_state = False  # whether `begin` has been called
        self._abandons = False  # true during work that no other process waits for
        self._signal: int | None = None  # on several hosts, the signal that they have agreed on
        self._first_interrupt: float | None = None

    def __enter__(self):
        self._open = contextlib.ExitStack()
        self._open.enter_context(_signals(self._handle, self._receive))
        return self

    def __exit__(self, error, *_):
        self._open.close()
        # A signal that came after the last point must not end the program as if nothing had
        # happened.
        if error is None and self._signal and not self.reached and not self._point:
            raise self.error(_OUTSIDE)

    def begin(self) -> None:
        """Call as soon as there is a state to save."""
        if not self._has_state and self._point:
            self._point.on_agreed(self._agreed)
            self._open.callback(self._point.on_agreed, None)
        self._has_state = True

    def due(self) -> bool:
        """Returns whether the run stops at this point. `reached` keeps the answer."""
        self.reached = self._point.reached() if self._point else self._signal is not None
        return self.reached

    def error(self, line: str) -> BaseException:
        """Returns the exception that ends the run."""
        return _ERRORS[self._signal](line)

    @contextlib.contextmanager
    def abandoning(self) -> Iterator[None]:
        """Raises Abandoned in the context as soon as the run has to stop at the next point.

        The context must not contain collectives, because the other processes would wait in them
        forever; `evaluating` is for work that does.
        """
        self._abandons = True
        try:
            self._abandon()
            yield
        finally:
            self._abandons = False

    def evaluating(self) -> contextlib.AbstractContextManager:
        """Like `abandoning`, but all processes raise Abandoned between the same two programs."""
        if not self._point:
            return self.abandoning()
        return hosts.stopping_between_programs(self._abandon_if_due)

    def _abandon_if_due(self):
        if self.due():
            raise Abandoned

    def _abandon(self):
        stops_next = self._point.is_next() if self._point else self._signal is not None
        if self._abandons and stops_next:
            # Reset first, so that a second signal can't raise again while the exception is handled.
            self._abandons = False
            raise Abandoned

    def _handle(self, number, _):
        """Handles a signal in the main thread, the only one where exceptions end the run's work."""
        if not self._point:
            self._signal = self._signal or number
            if not self._has_state:
                raise self.error(_OUTSIDE)
        self._abandon()

    def _receive(self, number):
        """Handles a signal in the thread that receives them."""
        if number == signal.SIGINT:
            now = time.monotonic()
            self._first_interrupt = self._first_interrupt or now
            if now - self._first_interrupt > ECHO:
                print("interrupted again: ended, nothing saved", file=sys.stderr, flush=True)
                # `sys.exit` would end only this thread.
                os._exit(CODES[number])
        if self.requested:
            return
        if not self._has_state:
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
        """Ends a run that has nothing to save, because `begin` has not been called."""
        if self._point:
            print(_OUTSIDE, file=sys.stderr, flush=True)
            hosts.failed(_OUTSIDE, CODES[number])
        timer = threading.Timer(self.grace, self._exit, [CODES[number]])
        # A run that ends in time must not wait for the timer.
        timer.daemon = True
        timer.start()
        self._open.callback(timer.cancel)

    def _exit(self, code):
        """Exits the process if the main thread has not even reached `begin` within `grace`."""
        if not self._has_state:
            faulthandler.dump_traceback(file=sys.__stderr__ or sys.stderr)
            print(_OUTSIDE, file=sys.stderr, flush=True)
            os._exit(code)

    def _agreed(self, number):
        """Handles the signal on which all hosts have agreed, in the thread that watches them."""
        self._signal = number
        self._request()
        if self._abandons:
            # The signal makes Python run `_handle` in the main thread, which raises Abandoned.
            signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)

    def _request(self):
        self.requested = True
        self.on_request()


@contextlib.contextmanager
def _signals(handle: Callable, receive: Callable[[int], None]) -> Iterator[None]:
    """Calls `handle` in the main thread, and `receive` in another one even if the main one hangs.

    The interpreter's C handler writes the number of each signal to a pipe at once (set_wakeup_fd),
    whatever the main thread is doing, and a thread reads it from there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    read, write = os.pipe()
    os.set_blocking(write, False)  # as set_wakeup_fd requires
    thread = threading.Thread(target=_listen, args=(read, receive), daemon=True)
    thread.start()
    wakeup = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    # A shell makes background jobs ignore Ctrl-C, and they must continue to do so.
    numbers = [number for number in CODES if signal.getsignal(number) is not signal.SIG_IGN]
    earlier = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            # The earlier handler is None if it was not installed from Python.
            signal.signal(number, handler or signal.SIG_DFL)
        signal.set_wakeup_fd(wakeup)
        os.close(write)  # ends the thread, whose next read returns nothing
        thread.join()
        os.close(read)


def _listen(read: int, receive: Callable[[int], None]) -> None:
    while number := os.read(read, 1):
        if number[0] in CODES:
            receive(number[0])


def _nothing() -> None:
    pass


# ----------------------------------------------------------------------------- the hang watchdog

# Seconds without an update or an evaluation step. This is longer than most steps, and short
# compared with the time that a hanging run would waste.
SILENCE = 600


class Watchdog:
    """Hang watchdog: prints the stacks of all threads if no step ends for SILENCE seconds.

    A run on a single host then continues, because it may merely be slow. A process of a run on
    several hosts exits with 1, because it might wait for another host forever. There is no limit
    before the first step. After a request to stop, the process exits with 1 if no step ends within
    `grace` seconds.

    The timer is the one of faulthandler, whose thread is written in C: a collective that waits for
    a dead process, or a disk that does not respond, may block all Python threads.
    """

    def __init__(self, stop: Stop, grace: float):
        self._stop = stop
        self._grace = grace
        self._has_stepped = False
        self._is_paused = False
        # The thread that receives the signals may call `_set` while the context ends.
        self._is_closed = False
        self._lock = threading.Lock()
        # faulthandler needs a file descriptor, which a replaced sys.stderr may not have.
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
        """Call after each update and each evaluation step."""
        self._has_stepped = True
        self._set()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """In the context, the watchdog never ends the run, as compilations and saves take long."""
        self._is_paused = True
        self._set()
        try:
            yield
        finally:
            self._is_paused = False
            self._set()

    def _set(self) -> None:
        """Restarts the timer. It is also called by the thread that receives the signals."""
        with self._lock:
            if self._is_closed:
                return
            if self._stop.requested and not self._is_paused:
                self._start(self._grace, exit=True)
            elif self._has_stepped:
                self._start(SILENCE, exit=hosts.count() > 1 and not self._is_paused)
            else:
                faulthandler.cancel_dump_traceback_later()

    def _start(self, seconds: float, exit: bool) -> None:
        faulthandler.dump_traceback_later(seconds, file=self._file, exit=exit)
