"""SIGTERM and Ctrl-C: a run stops where its state can be saved, on all hosts alike."""

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

ECHO = 1.0  # seconds; SIGINTs this close are one Ctrl-C, sent by a terminal and a script alike
CODES = {signal.SIGTERM: Preempted.code, signal.SIGINT: Interrupted.code}
_ERRORS = {signal.SIGTERM: Preempted, signal.SIGINT: Interrupted}
_OUTSIDE = "stopped outside of its updates; run the same command again"


class Abandoned(Exception):
    """Work that nothing depends on was given up, since the run is to stop."""


class Stop:
    """Within the context, SIGTERM and SIGINT stop the run. A second Ctrl-C ends it at once.

    Before `begin`, nothing has to be saved. A signal raises Preempted or Interrupted in the main
    thread; where that hangs for `grace` seconds, the process shows its stacks and exits. On several
    hosts all processes exit.

    From `begin` on, a signal asks the run to stop at the next point. The loop asks `due` at each:
    after an update and after a step of an evaluation. On several hosts all processes come by the
    same points, and stop at the same one.

    A thread hears the signals, because the main thread may hang in a call where Python runs no
    handler. Outside the main thread the context takes no signals.
    """

    def __init__(self, grace: float = 60.0):
        self.asked = False
        self.reached = False  # `due` has been true
        self.on_asked: Callable[[], None] = _nothing  # called by another thread
        self.grace = grace
        self._point = hosts.stop_point()
        self._begun = self._abandons = False
        self._signal: int | None = None  # on several hosts, the one they have agreed on
        self._first_interrupt: float | None = None

    def __enter__(self):
        self._open = contextlib.ExitStack()
        self._open.enter_context(_signals(self._handle, self._hear))
        return self

    def __exit__(self, error, *_):
        self._open.close()
        if error is None and self._signal and not self.reached and not self._point:
            raise self.error(_OUTSIDE)

    def begin(self) -> None:
        """There is something to save from here on."""
        if not self._begun and self._point:
            self._point.on_agreed(self._agreed)
            self._open.callback(self._point.on_agreed, None)
        self._begun = True

    def due(self) -> bool:
        """Whether the run stops here."""
        self.reached = self._point.reached() if self._point else self._signal is not None
        return self.reached

    def error(self, line: str) -> BaseException:
        """The exception that ends the run."""
        return _ERRORS[self._signal](line)

    @contextlib.contextmanager
    def abandoning(self) -> Iterator[None]:
        """Raises Abandoned within, as soon as the run is to stop at the next point."""
        self._abandons = True
        try:
            self._abandon()
            yield
        finally:
            self._abandons = False

    def _abandon(self):
        near = self._point.is_next() if self._point else self._signal is not None
        if self._abandons and near:
            self._abandons = False
            raise Abandoned

    def _handle(self, number, _):
        """In the main thread, in which exceptions have to be raised."""
        if not self._point:
            self._signal = self._signal or number
            if not self._begun:
                raise self.error(_OUTSIDE)
        self._abandon()

    def _hear(self, number):
        """In the thread that listens."""
        if number == signal.SIGINT:
            now = time.monotonic()
            self._first_interrupt = self._first_interrupt or now
            if now - self._first_interrupt > ECHO:
                print("interrupted again: ended, nothing saved", file=sys.stderr, flush=True)
                os._exit(CODES[number])
        if self.asked:
            return
        if not self._begun:
            self.asked = True
            self._leave(number)
            return
        if self._point:
            self._point.ask(number)
        else:
            self._signal = self._signal or number
        self._ask()
        again = "; Ctrl-C again ends it at once" if number == signal.SIGINT else ""
        say(
            f"{signal.Signals(number).name}: the run saves its state after this step and ends"
            f"{again}"
        )

    def _leave(self, number):
        """Nothing has to be saved."""
        if self._point:
            print(_OUTSIDE, file=sys.stderr, flush=True)
            hosts.failed(_OUTSIDE, CODES[number])
        timer = threading.Timer(self.grace, self._exit, [CODES[number]])
        timer.daemon = True
        timer.start()
        self._open.callback(timer.cancel)

    def _exit(self, code):
        """The main thread hangs, unless it came to `begin` as the signal came."""
        if not self._begun:
            faulthandler.dump_traceback(file=sys.__stderr__ or sys.stderr)
            print(_OUTSIDE, file=sys.stderr, flush=True)
            os._exit(code)

    def _agreed(self, number):
        """In the thread that watches the other hosts."""
        self._signal = number
        self._ask()
        if self._abandons:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)

    def _ask(self):
        self.asked = True
        self.on_asked()


@contextlib.contextmanager
def _signals(handle: Callable, hear: Callable[[int], None]) -> Iterator[None]:
    """Calls `handle` in the main thread and `hear` in another, even while the main thread hangs."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    read, write = os.pipe()
    os.set_blocking(write, False)
    thread = threading.Thread(target=_listen, args=(read, hear), daemon=True)
    thread.start()
    wakeup = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    # a shell's background job ignores Ctrl-C, which is not meant for it
    taken = [number for number in CODES if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in taken}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
        signal.set_wakeup_fd(wakeup)
        os.close(write)
        thread.join()
        os.close(read)


def _listen(read: int, hear: Callable[[int], None]) -> None:
    while number := os.read(read, 1):
        if number[0] in CODES:
            hear(number[0])


def _nothing() -> None:
    pass
