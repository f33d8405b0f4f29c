"""Limits how far the host runs ahead of the devices."""

import time
from collections.abc import Callable

import jax

_MAX_STEPS = 16
_MAX_SECONDS = 2.0


class Pace:
    """Bounds the steps in flight: steps that are dispatched and that the devices have not finished.

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
