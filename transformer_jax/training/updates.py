"""The updates of a run."""

import functools
import time
from collections.abc import Callable

import jax

from transformer_jax.distributed import hosts
from transformer_jax.training.session import Session


class Updates:
    """Dispatches updates. Compiles the training step for each new shape of batches.

    An update that compiles is no measure of speed. Its time counts as the purpose "compile".
    """

    def __init__(self, session: Session):
        self._train_step = session.program.train_step
        self._clock = session.clock
        self._watchdog = session.watchdog
        self._pace = Pace()
        self._compiled: set[tuple] = set()  # shapes of batches
        self._timed: list[int] = []

    def __call__(self, step: int, state, batch):
        """Returns the state after update number `step`, from 1; may return before it is ready."""
        shape = tuple(sorted((name, array.shape) for name, array in batch.items()))
        if shape in self._compiled:
            self._timed.append(step)
            state = self._train_step(state, batch)
            # The next update deletes the state, so the marker is a copy.
            self._pace.dispatched(functools.partial(copied, state.step))
            return state
        self._compiled.add(shape)
        # The time of updates in flight is not compilation time.
        jax.block_until_ready(state.step)
        with self._clock("compile"), self._watchdog.patient():
            train_step = hosts.compiled(self._train_step, state, batch)
            return jax.block_until_ready(train_step(state, batch))

    def take_timed(self) -> list[int]:
        """The updates since the last call whose time is the purpose "step", numbered from 1."""
        timed = self._timed
        self._timed = []
        return timed


@jax.jit
def copied(step: jax.Array) -> jax.Array:
    """A copy, (), in its own memory."""
    return step + 0


_MAX_STEPS = 16
_MAX_SECONDS = 2.0


class Pace:
    """Limits how far the host runs ahead of the devices.

    It bounds the steps in flight, which are dispatched and not finished by the devices.

    A stop waits for the steps in flight. So they take at most about 2 seconds, or are two where one
    step takes longer. There are at most 16, because of a deadlock in XLA's CPU client. It occurs
    when a program over several devices is the 33rd in flight. The thread that dispatches it to one
    device is then the thread that another device needs to finish.

    Every few steps the host keeps a marker, an array that is ready when its step is. At the next
    marker, it waits for the one before. So the devices always have a step to continue with.
    """

    def __init__(self):
        self._interval = 1  # steps between two markers
        self._steps = 0  # since the last marker
        self._covered = 1  # steps from the marker before to the last one
        self._marker: jax.Array | None = None
        self._ready = time.perf_counter()

    def dispatched(self, marker: Callable[[], jax.Array]) -> None:
        """A step was dispatched; `marker()` returns an array that is ready when the step is."""
        self._steps += 1
        if self._steps < self._interval:
            return
        now = time.perf_counter()
        covered = self._steps
        if self._marker is not None:
            jax.block_until_ready(self._marker)
            now = time.perf_counter()
            seconds = max(now - self._ready, 1e-9) / self._covered
            self._interval = max(1, min(_MAX_STEPS // 2, int(_MAX_SECONDS / 2 / seconds)))
        self._marker = marker()
        self._ready = now
        self._covered = covered
        self._steps = 0
