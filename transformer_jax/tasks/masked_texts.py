"""What the tasks share whose rows are texts with masks, in phases of the run."""

from functools import cached_property

from transformer_jax.data import tokenizers
from transformer_jax.data.masked_rows import MaskedRows
from transformer_jax.inference.encoder import EncoderUse
from transformer_jax.tasks.base import TextTask


class MaskedTextTask(EncoderUse, TextTask):
    """A task with `phases` and `texts`. See MaskedLM."""

    phases: tuple
    texts: MaskedRows

    # The arrays of each masked token.
    masked = ("masked_positions", "masked_labels", "masked_weights")

    @cached_property
    def tokenizer(self) -> tokenizers.Tokenizer:
        tokenizer = super().tokenizer
        tokenizer.required("cls", "sep", "mask", user="masked language modelling")
        return tokenizer

    @property
    def phase_steps(self) -> list[int]:
        """The number of updates of each phase."""
        return self.texts.phase_steps

    def batch_spec(self, row_shape: int):
        _, length, num_predictions = self.phases[row_shape]
        shapes = dict.fromkeys(("tokens", "token_types", "segment_ids"), (length,))
        shapes |= dict.fromkeys(self.masked, (num_predictions,))
        if self.texts.pairs:
            shapes["follows"] = ()
        return self.int32_spec(shapes)

    def positions(self, row_shape: int = 0) -> int:
        return self.phases[row_shape][1]
