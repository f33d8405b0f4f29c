"""The time of a run, by purpose."""

import contextlib
import time
from collections.abc import Callable, Iterator

import jax

from transformer_jax.pictures import progress

# What the run is doing, in words.
_PURPOSES = {
    "data": "waiting for data",
    "compile": "compiling the training step",
    "evaluation": "evaluating",
    "checkpoint": "saving a checkpoint",
}


def _always() -> bool:
    return True


class Clock:
    """Counts seconds by purpose since the last `lap`; the remaining time has the purpose "step"."""

    def __init__(self):
        self._spent: dict[str, float] = {}
        self._began = time.perf_counter()

    @contextlib.contextmanager
    def __call__(self, purpose: str, counts: Callable[[], bool] = _always) -> Iterator[None]:
        """Counts the time of the context for `purpose` if `counts()` is true at its end.

        Time that is not counted belongs to "step".
        """
        began = time.perf_counter()
        try:
            with jax.profiler.TraceAnnotation(purpose), progress.doing(_PURPOSES[purpose]):
                yield
        finally:
            if counts():
                seconds = time.perf_counter() - began
                self._spent[purpose] = self._spent.get(purpose, 0.0) + seconds

    def lap(self) -> dict[str, float]:
        """Returns the seconds by purpose, and starts again from zero."""
        now = time.perf_counter()
        spent = {purpose: self._spent.get(purpose, 0.0) for purpose in _PURPOSES}
        spent["step"] = now - self._began - sum(spent.values())
        self._spent = {}
        self._began = now
        return spent
