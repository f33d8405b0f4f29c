"""Early stopping: a run ends once its best score has not improved for a number of evaluations."""

import math
from collections.abc import Iterable

from transformer_jax.config import UserError
from transformer_jax.distributed import hosts
from transformer_jax.pictures.progress import say


class Patience:
    """Whether `config.train.patience` evaluations in a row have not improved the best score.

    The verdict follows from the run's scores alone, so a resumed run comes to the same one.
    On several hosts process 0 decides. `over`: whether the run ends.
    """

    def __init__(self, config, evaluations: Iterable[dict]):
        """`evaluations`: those recorded so far, each {name: score}; process 0's count."""
        self._limit, self._metric = config.train.patience, config.checkpoint.best_metric
        self._sign = 1 if config.checkpoint.best_mode == "max" else -1
        self._best, self._waited, self.over = -math.inf, 0, False
        for scores in evaluations:
            if self._metric in scores:
                self._count(scores[self._metric])
        self._decide()

    def add(self, scores: dict[str, float]) -> None:
        """Counts one more evaluation. Raises UserError where it lacks the score."""
        if not self._limit:
            return
        if self._metric not in scores:
            raise UserError(
                f"config.checkpoint.best_metric={self._metric} is not measured, and "
                f"config.train.patience={self._limit} needs it; there are: {', '.join(scores)}"
            )
        self._count(scores[self._metric])
        self._decide()
        if self.over:
            say(f"the run ends here: {self.reason}")

    @property
    def reason(self) -> str:
        return (
            f"{self._metric} has not improved in {self._limit} evaluations "
            f"(config.train.patience={self._limit})"
        )

    def _count(self, score: float | None) -> None:
        """A score that is not finite, which a record keeps as None, is no improvement."""
        value = self._sign * score if score is not None and math.isfinite(score) else -math.inf
        self._waited = 0 if value > self._best else self._waited + 1
        self._best = max(self._best, value)

    def _decide(self) -> None:
        if self._limit:
            self.over = hosts.share(self._waited >= self._limit)


def check_evaluated(rows, task):
    """One line where there is no validation set; UserError where early stopping needs one."""
    if "valid" in {*rows.eval, *task.evaluations()}:
        return
    data, patience = task.config.data, task.config.train.patience
    named = (
        "config.data.valid_source and valid_target"
        if data.train_source
        else "config.data.valid_split"
        if data.tfds_name
        else "config.data.valid_files"
    )
    if patience:
        raise UserError(
            f"config.train.patience={patience} needs a validation set: name it in {named}"
        )
    say(f"no validation set: this run will not be evaluated ({named} would name one)")
