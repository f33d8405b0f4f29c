"""Runs that are asked to stop at a certain point: an update, or a batch of an evaluation."""

import signal

from transformer_jax.training.stop import Stop


def stopping_at(point: int, number: int = signal.SIGTERM) -> type[Stop]:
    """A Stop that receives the signal `number` when its run reaches the point, counted from 1.

    There is a point before and after each update, after each batch of an evaluation but its last,
    and after each evaluation.
    """

    class Stopping(Stop):
        points = 0

        def due(self):
            Stopping.points += 1
            if Stopping.points == point:
                self._handle(number, None)
            return super().due()

    return Stopping
