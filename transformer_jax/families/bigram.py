"""A bigram language model: a table with the logits of each token given the previous one.

The log-likelihood is concave in the table, so that training converges to the relative frequencies
of the bigrams. This makes it a test of a training loop against counts (scores/ngrams.py).
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

    The hidden state is the one-hot vector of the token itself, and the output projection is the
    table. No state is carried from one token to the next.
    """

    vocabulary = ("output_embed/embedding",)
    word_table = "output_embed/embedding"

    vocab_size: PositiveInt = 96  # number of tokens in the vocabulary
    d_model: PositiveInt = 96  # width of the hidden states, equal to vocab_size

    def setup(self):
        # Zeros make all tokens equally likely, so that the first loss is log(vocab_size).
        self.output_embed = Embed(self.vocab_size, self.d_model, nn.initializers.zeros)

    def check(self) -> None:
        if self.d_model != self.vocab_size:
            raise UserError(
                f"config.model.d_model={self.d_model}: must be "
                f"config.model.vocab_size={self.vocab_size} in a table of bigrams"
            )

    @nn.nowrap
    def initial_carry(self, rows: int) -> tuple:
        """Returns an empty state."""
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
        # One-hot vectors turn the lookup into an output projection, so that losses and decoding
        # need no special case. `restarts` and `filled` do not matter without a state.
        return jax.nn.one_hot(tokens, self.d_model), carry

    def output(self) -> Projection:
        return Projection(self.output_embed.table())

    def flops(self, length: int, predictions: int | None = None) -> float:
        positions = length if predictions is None else predictions
        return parameters.dense(positions, self.d_model, self.vocab_size)
