"""How far the host may be ahead of the devices."""

import time
from collections.abc import Callable

import jax

_STEPS = 16
_SECONDS = 2.0


class Pace:
    """Bounds the steps in flight: dispatched, and not yet finished by the devices.

    A stop waits for the steps in flight, so they take at most about 2 seconds, or are two where
    one takes longer than that. There are at most 16, for XLA's CPU client waits for ever where a
    program over several devices is the 33rd in flight: the thread that dispatches it to one
    device is the thread that another device needs to finish.

    Every few steps leave a marker, an array that is ready when the step is. When the next marker
    is left, the host waits for the one before. So the devices always have a step to go on with.
    """

    def __init__(self):
        self._between = 1  # steps between two markers
        self._steps = 0  # since the last marker
        self._covered = 1  # steps that the last marker was left after
        self._marker, self._ready = None, time.perf_counter()

    def dispatched(self, marker: Callable[[], jax.Array]) -> None:
        """A step has been dispatched; `marker()` gives an array that is ready when the step is."""
        self._steps += 1
        if self._steps < self._between:
            return
        now, covered = time.perf_counter(), self._steps
        if self._marker is not None:
            jax.block_until_ready(self._marker)
            now = time.perf_counter()
            seconds = max(now - self._ready, 1e-9) / self._covered
            self._between = max(1, min(_STEPS // 2, int(_SECONDS / 2 / seconds)))
        self._marker, self._ready = marker(), now
        self._covered, self._steps = covered, 0
