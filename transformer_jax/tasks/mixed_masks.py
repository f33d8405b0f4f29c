"""UniLM's pre-training: masked tokens under four masks, and next sentences (Dong et al. 2019)."""

import dataclasses

from transformer_jax.config import UserError
from transformer_jax.contracts.model import token_types
from transformer_jax.data.masking import OBJECTIVES, MixedRows, are_weights
from transformer_jax.inference.log_probabilities import Unified
from transformer_jax.tasks.masked_lm import MaskedLM


@dataclasses.dataclass
class MixedMasks(MaskedLM):
    """Masked tokens under four attention masks, mixed in each batch (Dong et al. 2019, sec. 2.3).

    A masked token is predicted at its own position, from the positions that the objective's
    attention mask allows. Each objective has its own token types if the model has six.
    """

    ngrams: tuple = (0.8, 0.1, 0.1)  # weights of masked spans of 1, 2 and 3 tokens, as published
    # shares of the rows: bidirectional, sequence to sequence, left to right, right to left
    shares: tuple = (1 / 3, 1 / 3, 1 / 6, 1 / 6)

    def __post_init__(self):
        super().__post_init__()
        name = self.config.model.name
        if "write" not in self.model.can:
            raise UserError(
                f"config.model.name={name!r}: takes no attention masks by ranks; take a model "
                "that does, such as bert"
            )
        if len(self.shares) != len(OBJECTIVES) or not are_weights(self.shares):
            raise UserError(
                f"config.task.shares={self.shares}: must be the shares of {', '.join(OBJECTIVES)}"
            )

    @property
    def texts(self) -> MixedRows:
        types = {name: token_types(name, self.model.num_token_types) for name in OBJECTIVES}
        # Pairs even without a next-sentence loss: sequence to sequence needs a source and a target.
        masked = vars(super().texts) | {"pairs": True}
        return MixedRows(**masked, shares=self.shares, types=types)

    @property
    def scoring(self) -> Unified:
        return Unified(self.model, self.tokenizer)

    def batch_spec(self, row_shape: int):
        _, length, _ = self.phases[row_shape]
        shapes = {"ranks": (length,), "paired": (), "follows": ()}
        return super().batch_spec(row_shape) | self.int32_spec(shapes)

    def inputs(self, batch):
        return super().inputs(batch).replace(ranks=batch["ranks"])

    def paired(self, batch):
        # Only bidirectional rows predict the next sentence (section 2.3).
        return super().paired(batch) & (batch["paired"] > 0)
