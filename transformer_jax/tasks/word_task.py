"""What the tasks share that learn vectors of words."""

from collections.abc import Iterable

from transformer_jax.config import UserError
from transformer_jax.data import arguments
from transformer_jax.inference.encoder import EncoderUse
from transformer_jax.tasks.base import TextTask


class WordTask(EncoderUse, TextTask):
    """A task with rows of `length` places and one loss. See WordVectorsTask."""

    length: int

    def positions(self, row_shape: int = 0) -> int:
        return self.length

    def derived(self, name, means):
        return {}

    def evaluate(self, params, split: str) -> dict:
        """Returns the mean loss of a split, whose rows are drawn as those of training.

        Raises UserError where the run has no such split.
        """
        arguments.held_out(self.texts.text, split, "files")
        means = self.mean_metrics(params, self.texts.evaluation(self.tokenizer, split))
        means.pop("filled")
        return means

    def check_positive(self, keys: Iterable[str]) -> None:
        """Raises UserError for a key of `config.task` below 1."""
        for key in keys:
            if getattr(self, key) < 1:
                raise UserError(f"config.task.{key}={getattr(self, key)}: must be at least 1")
