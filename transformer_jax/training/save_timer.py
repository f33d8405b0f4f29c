"""Checkpoints by the clock, agreed on by all hosts."""

import time
from collections.abc import Callable

from transformer_jax.distributed import hosts

_LOOKS = 10  # looks at the clock within the time between two checkpoints


class SaveTimer:
    """Tells after an update whether the last checkpoint is `minutes` old.

    Clocks of several hosts differ, but all must save at the same update. Process 0's clock decides:
    its answer is shared at certain updates, together with the next such update. These are about a
    tenth of `minutes` apart, so sharing costs nothing that could be measured. Called by every
    process after every update.
    """

    def __init__(self, minutes: float, step: int, now: Callable[[], float] = time.monotonic):
        self._seconds, self._now = 60 * minutes, now
        self._saved = self._looked = now()
        self._last_look, self._next_look = step, step + 1

    def saved(self) -> None:
        """A checkpoint has been saved, for whatever reason."""
        self._saved = self._now()

    def due(self, step: int) -> bool:
        if not self._seconds or step < self._next_look:
            return False
        old = self._now() - self._saved >= self._seconds
        old, updates = hosts.share([old, self._updates_to_next(step)])
        self._last_look, self._next_look = step, step + updates
        self._looked = self._now()
        return old

    def _updates_to_next(self, step: int) -> int:
        """Updates until the next look: at most twice as many as before, until the pace is known."""
        if hosts.count() == 1:
            return 1
        updates, seconds = step - self._last_look, self._now() - self._looked
        wanted = self._seconds / _LOOKS
        return max(1, int(min(2 * updates, wanted * updates / max(seconds, 1e-9))))
