"""A bigram language model: a table of the logits of each token after each token.

Its likelihood is concave in the table. Training by gradient therefore ends at the relative
frequencies of the bigrams, and tests a training loop against counts (scores/ngrams.py).
"""

import flax.linen as nn
import jax
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from transformer_jax.config import PositiveInt, UserError
from transformer_jax.contracts.model import Recurrent
from transformer_jax.layers import parameters
from transformer_jax.layers.embeddings import Embed, Projection


class Bigram(Recurrent):
    """Tokens (B, L) int32 -> logits of the next tokens (B, L, V) float32.

    The state before the output projection is the token itself, as a vector with a single 1. The
    output projection is the table. Nothing passes from one token to the next.
    """

    vocabulary = ("output_embed/embedding",)
    word_table = "output_embed/embedding"

    vocab_size: PositiveInt = 96  # number of tokens in the vocabulary
    d_model: PositiveInt = 96  # width of the states, equal to vocab_size

    def setup(self):
        self.output_embed = Embed(self.vocab_size, self.d_model, nn.initializers.zeros)

    def check(self) -> None:
        if self.d_model != self.vocab_size:
            raise UserError(
                f"config.model.d_model={self.d_model}: must be "
                f"config.model.vocab_size={self.vocab_size} in a table of bigrams"
            )

    @nn.nowrap
    def initial_carry(self, rows: int) -> tuple:
        """Returns no state."""
        return ()

    def advance(
        self,
        tokens: Int[ArrayLike, "B L"],
        carry: tuple,
        *,
        restarts: Int[ArrayLike, "B L"] | Bool[ArrayLike, "B L"] | None = None,
        filled: Int[ArrayLike, "B L"] | Bool[ArrayLike, "B L"] | None = None,
        train: bool = False,
    ) -> tuple[Float[Array, "B L M"], tuple]:
        return jax.nn.one_hot(tokens, self.d_model), carry

    def output(self) -> Projection:
        return Projection(self.output_embed.table())

    def flops(self, length: int, predictions: int | None = None) -> float:
        positions = length if predictions is None else predictions
        return parameters.dense(positions, self.d_model, self.vocab_size)
