"""The updates of a run."""

import functools

import jax

from transformer_jax.distributed import hosts
from transformer_jax.training.pace import Pace
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
