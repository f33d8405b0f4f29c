"""Word vectors: a table of input vectors and a table of output vectors (Mikolov et al. 2013).

A text is represented by the mean of the vectors of its words.
"""

from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

from transformer_jax.config import PositiveInt
from transformer_jax.contracts.model import Encoder, Inputs, takes_inputs
from transformer_jax.layers import parameters
from transformer_jax.layers.embeddings import Embed, Projection


class WordVectors(Encoder):
    """Tokens (B, L) int32 -> their vectors (B, L, M).

    The vector of the first token, which is [CLS] in fine-tuning, is replaced by the mean of the
    vectors of the row. Positions of segment 0 are padding.
    """

    can = frozenset({"static"})
    vocabulary = ("token_embed/embedding", "output_embed/embedding")
    has_mup = False  # its losses are products of vectors
    heads = ("output_embed",)
    max_length = None
    num_layers: ClassVar[int] = 0

    vocab_size: PositiveInt = 30_000  # number of tokens in the vocabulary
    d_model: PositiveInt = 100  # width of the vectors

    def setup(self):
        self.token_embed = Embed(self.vocab_size, self.d_model, self._uniform)
        # Zeros, as in the published code. A pair and its noise words start with equal
        # probabilities.
        self.output_embed = Embed(self.vocab_size, self.d_model, nn.initializers.zeros)

    def _uniform(self, key: jax.Array, shape: tuple[int, ...]) -> Float[Array, "V M"]:
        """Returns uniform values between -0.5 / M and 0.5 / M, as in the published code."""
        limit = 0.5 / self.d_model
        return jax.random.uniform(key, shape, minval=-limit, maxval=limit)

    def vectors(self) -> Float[ArrayLike, "V M"]:
        """Returns the vectors of the words."""
        return self.token_embed.table()

    def output(self) -> Projection:
        return Projection(self.output_embed.table())

    @takes_inputs
    def hidden(self, inputs: Inputs, *, train: bool = False) -> Float[Array, "B L M"]:
        x, segments = self._embed(inputs.tokens), inputs.segment_ids
        filled = jnp.ones(x.shape[:2]) if segments is None else segments > 0
        filled = filled[..., None].astype(x.dtype)  # (B, L, 1)
        # The maximum is for rows of padding only, for which 0 / 0 would be NaN.
        mean = (x * filled).sum(axis=1) / jnp.maximum(filled.sum(axis=1), 1)
        return x.at[:, 0].set(mean)

    @takes_inputs
    def layers(self, inputs: Inputs) -> Float[Array, "N B L M"]:
        """Returns the vectors (1, B, L, M), because there are no layers above them."""
        return self._embed(inputs.tokens)[None]

    def _embed(self, tokens: Int[ArrayLike, "B L"]) -> Float[Array, "B L M"]:
        return self.token_embed(tokens)

    def flops(self, length: int, predictions: int) -> float:
        # The first term, the mean over the vectors of a row, is the only work of `hidden`.
        return length * self.d_model + parameters.dense(predictions, self.d_model, self.vocab_size)
