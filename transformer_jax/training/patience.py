"""Early stopping: a run ends when its best score has not improved for a number of evaluations."""

import math
from collections.abc import Iterable

from transformer_jax.config import UserError
from transformer_jax.distributed import hosts
from transformer_jax.pictures.progress import say


class Patience:
    """Whether `config.train.patience` evaluations in a row have not improved the best score.

    It depends only on the scores of the run, so a resumed run decides alike. On several hosts
    process 0 decides.

    Attributes:
      over: whether the run ends.
    """

    def __init__(self, config, evaluations: Iterable[dict]):
        """`evaluations`: those recorded so far, each {name: score}; only process 0 needs them."""
        self._limit = config.train.patience
        self._metric = config.checkpoint.best_metric
        self._sign = 1 if config.checkpoint.best_mode == "max" else -1
        self._best = -math.inf
        self._waited = 0  # evaluations since the best score
        self.over = False
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
                f"config.checkpoint.best_metric={self._metric}: not measured, and "
                f"config.train.patience={self._limit} needs it; measured are {', '.join(scores)}"
            )
        self._count(scores[self._metric])
        self._decide()
        if self.over:
            say(f"the run ends here: {self.reason}")

    @property
    def reason(self) -> str:
        """Why the run ends, for a message."""
        return (
            f"{self._metric} has not improved in {self._limit} evaluations "
            f"(config.train.patience={self._limit})"
        )

    def _count(self, score: float | None) -> None:
        """A score that is not finite is no improvement. Records keep it as None."""
        is_finite = score is not None and math.isfinite(score)
        value = self._sign * score if is_finite else -math.inf
        self._waited = 0 if value > self._best else self._waited + 1
        self._best = max(self._best, value)

    def _decide(self) -> None:
        if self._limit:
            self.over = hosts.share(self._waited >= self._limit)


def check_evaluated(rows, task) -> None:
    """Says that the run has no validation set, if so.

    Raises UserError where early stopping needs one.
    """
    if "valid" in {*rows.eval, *task.evaluations()}:
        return
    keys = _validation_keys(task.config.data)
    patience = task.config.train.patience
    if patience:
        raise UserError(
            f"config.train.patience={patience}: needs a validation set; name one with {keys}"
        )
    say(f"no validation set: this run will not be evaluated; {keys} would name one")


def _validation_keys(data) -> str:
    """The config keys that name a validation set, for the kind of the training data."""
    if data.train_source:
        return "config.data.valid_source and valid_target"
    if data.tfds_name:
        return "config.data.valid_split"
    return "config.data.valid_files"
