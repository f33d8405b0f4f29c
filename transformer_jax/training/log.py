"""The progress line and the recorded means of training."""

import math

import jax

from transformer_jax import metrics
from transformer_jax.training import state as states
from transformer_jax.training.session import Session
from transformer_jax.training.updates import Updates

Totals = dict[str, float]  # saved with the checkpoint: logged_step, tokens, flops
NO_TOTALS: Totals = {"logged_step": 0, "tokens": 0, "flops": 0.0}


class Log:
    """Reports the means over the updates since the last progress line."""

    def __init__(self, session: Session, updates: Updates):
        self._session = session
        self._updates = updates

    def __call__(self, step: int, state, totals: Totals):
        """Reports after update number `step`.

        Fetches the sums of the metrics: nothing else of the state is copied to the host in
        training. Returns the state with sums of zero, and the new totals of the run.
        """
        session = self._session
        sums, skipped = jax.device_get((state.metrics, state.skipped))
        filled, positions = (int(count) for count in sums.pop("filled"))
        flops = self._flops(totals["logged_step"], step)
        flops_done = sum(flops.values())
        totals = totals | {
            "logged_step": step,
            "tokens": totals["tokens"] + filled,
            "flops": totals["flops"] + flops_done,
        }
        seconds = session.clock.lap()
        timed_flops = sum(flops[update] for update in self._updates.take_timed())
        rate = timed_flops / (seconds["step"] + seconds["data"]) if timed_flops else math.nan
        values = {f"train/{name}": mean for name, mean in metrics.means(sums).items()}
        values |= {
            "train/learning_rate": self._rate(step * state.updates_per_step - int(skipped)),
            "train/skipped": int(skipped),
            "train/padding": 1 - filled / positions if positions else 0.0,
            "train/tokens_total": totals["tokens"],
            "train/flops_total": totals["flops"],
            "train/tokens_per_second": filled * rate / flops_done,
            "train/mfu": rate / session.program.peak,
        }
        values |= {f"seconds/{purpose}": spent for purpose, spent in seconds.items()}
        session.reporter.write(step, values)
        session.reporter.progress(step, values)
        return state.replace(metrics=states.zeros(session.program.state.metrics)), totals

    def _rate(self, applied: int) -> float:
        """The learning rate of the latest update, after so many applied ones."""
        return float(self._session.program.learning_rate(applied - 1))

    def _flops(self, after: int, step: int) -> dict[int, float]:
        """The FLOPs of each update after update `after`, up to `step`."""
        task = self._session.task
        train = self._session.rows.train
        return {
            update: task.flops(train.row_shape(update - 1)) * train.size(update - 1)
            for update in range(after + 1, step + 1)
        }
