"""Checkpoints at intervals of time, on which all hosts agree."""

import time
from collections.abc import Callable

from transformer_jax.distributed import hosts

_CHECKS = 10  # of the clock, between two checkpoints


class SaveTimer:
    """Whether the last checkpoint is `minutes` old, asked by every process after every update.

    All hosts must save at the same update, and their clocks differ. So the clock of process 0
    decides. The processes share its answer at certain updates, together with the number of the next
    such update. These updates are about a tenth of `minutes` apart, so the time for sharing is
    negligible.
    """

    def __init__(self, minutes: float, step: int, now: Callable[[], float] = time.monotonic):
        self._seconds = 60 * minutes
        self._now = now
        self._saved = self._checked = now()
        self._last_check = step
        self._next_check = step + 1

    def saved(self) -> None:
        """Starts again: a checkpoint has been saved, for any reason."""
        self._saved = self._now()

    def due(self, step: int) -> bool:
        """Whether a checkpoint is due after update number `step`."""
        if not self._seconds or step < self._next_check:
            return False
        is_due = self._now() - self._saved >= self._seconds
        is_due, updates = hosts.share([is_due, self._updates_to_next(step)])
        self._last_check = step
        self._next_check = step + updates
        self._checked = self._now()
        return is_due

    def _updates_to_next(self, step: int) -> int:
        """Updates until the next check: at most twice as many as before the last one."""
        if hosts.count() == 1:
            return 1
        updates = step - self._last_check
        seconds = self._now() - self._checked
        interval = self._seconds / _CHECKS
        return max(1, int(min(2 * updates, interval * updates / max(seconds, 1e-9))))
