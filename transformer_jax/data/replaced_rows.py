"""The rows of replaced-token detection: masked texts, and the numbers that sample replacements."""

import dataclasses

import numpy as np

from transformer_jax.data.masked_rows import MaskedRows
from transformer_jax.data.masking import Masking

# Numbers below it are exact in float32.
NUM_DRAWS = 2**24
# Of the tokens that the generator replaces, those that it reads as [MASK]. It sees the others
# (the published code).
_HIDDEN = 0.85


@dataclasses.dataclass(frozen=True)
class ReplacedRows(MaskedRows):
    """Rows of `MaskedRows` with masked_draws (P,) int32 below NUM_DRAWS.

    They decide which token the generator samples at each position. So a sample depends on the row
    and the parameters alone: neither on the batch nor on the mesh.
    """

    single = "pairs=false"

    selected: float = 0.15  # the share of the tokens that are replaced

    def masking(self, tokenizer, num_predictions: int) -> "_Masking":
        plain = vars(super().masking(tokenizer, num_predictions))
        return _Masking(**plain | {"selected": self.selected, "shares": (_HIDDEN, 0.0)})


class _Masking(Masking):
    """Masking whose rows have masked_draws."""

    def __call__(self, tokens: np.ndarray, random: np.random.Generator) -> dict[str, np.ndarray]:
        row = super().__call__(tokens, random)
        draws = random.integers(NUM_DRAWS, size=self.max_predictions, dtype=np.int32)
        return row | {"masked_draws": draws}
