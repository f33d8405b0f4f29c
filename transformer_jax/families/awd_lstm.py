"""AWD-LSTM: an LSTM language model regularized by five kinds of dropout (Merity et al. 2017).

The defaults are ULMFiT's (Howard & Ruder 2018, section 4.1).
"""

from typing import Literal

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from transformer_jax.config import Fraction, PositiveInt
from transformer_jax.contracts.model import Recurrent
from transformer_jax.layers import parameters, recurrent
from transformer_jax.layers.embeddings import Bias, Embed, Projection
from transformer_jax.layers.parameters import Dropout, compute_dtype
from transformer_jax.layers.recurrent import Unidirectional

# (output, cell) of each layer: a tuple, not one array, because the last layer has another width.
Carry = tuple[recurrent.State, ...]


class AwdLSTM(Recurrent):
    """Tokens (B, L) int32 -> logits of the next tokens (B, L, V) float32.

    The last layer has the width of the embeddings, because they are also the output projection. A
    dropout mask is drawn once for each row and shared by all of its positions (Gal & Ghahramani
    2016).
    """

    vocabulary = ("token_embed/embedding", "output_bias/bias")

    vocab_size: PositiveInt = 30_000  # number of tokens in the vocabulary
    d_model: PositiveInt = 400  # width of embeddings and of the last layer
    d_hidden: PositiveInt = 1150  # width of the other layers
    num_layers: PositiveInt = 3  # number of LSTM layers
    input_dropout: Fraction = 0.4  # on the embeddings
    word_dropout: Fraction = 0.05  # on the embeddings of whole words, the same in a whole batch
    layer_dropout: Fraction = 0.3  # between layers
    output_dropout: Fraction = 0.4  # on the output of the last layer
    weight_dropout: Fraction = 0.5  # on the recurrent matrices, the same at all positions
    # dtype of the computation; auto: bfloat16 on accelerators, float32 on a CPU
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"

    def setup(self):
        init = nn.initializers.normal(self.d_model**-0.5)
        self.token_embed = Embed(self.vocab_size, self.d_model, init, dtype=self._dtype)
        self.output_bias = Bias(self.vocab_size, "vocab")
        # `shared`, because this mask has an entry for each word of the vocabulary, not for each
        # row.
        self.drop_words = Dropout(self.word_dropout, shared=True)
        self.drop_input = Dropout(self.input_dropout, locked=True)
        self.layer = [Unidirectional(c, weight_dropout=self.weight_dropout) for c in self._cells]
        between = [self.layer_dropout] * (self.num_layers - 1)
        self.drop_after = [Dropout(rate, locked=True) for rate in (*between, self.output_dropout)]

    @property
    def _dtype(self):
        return compute_dtype(self.dtype)

    @property
    def _cells(self) -> list[recurrent.LSTM]:
        hidden = [self.d_hidden] * (self.num_layers - 1)
        return [recurrent.LSTM(width) for width in (*hidden, self.d_model)]

    @nn.nowrap
    def initial_carry(self, rows: int) -> Carry:
        """Returns zeros."""
        return tuple(recurrent.zero_state(cell, rows, self._dtype) for cell in self._cells)

    def advance(
        self,
        tokens: Int[ArrayLike, "B L"],
        carry: Carry,
        *,
        restarts: Int[ArrayLike, "B L"] | Bool[ArrayLike, "B L"] | None = None,
        filled: Int[ArrayLike, "B L"] | Bool[ArrayLike, "B L"] | None = None,
        train: bool = False,
    ) -> tuple[Float[Array, "B L M"], Carry]:
        filled = jnp.ones(tokens.shape, bool) if filled is None else filled > 0
        restarts = jnp.zeros(tokens.shape, bool) if restarts is None else restarts > 0
        x = self.drop_input(self._words(tokens, train), train=train)
        states = []
        for layer, state, dropout in zip(self.layer, carry, self.drop_after):
            x, state = layer(x, filled, state, restarts, train=train)
            x = dropout(x, train=train)
            states.append(state)
        return x, tuple(states)

    def output(self) -> Projection:
        return Projection(self.token_embed.table(), self.output_bias())

    @nn.nowrap
    def group(self, path: tuple[str, ...]) -> str:
        """The embeddings and each layer form a group, for gradual unfreezing."""
        return path[0] if path[0] == "token_embed" or _number(path) else ""

    @nn.nowrap
    def depth(self, path: tuple[str, ...]) -> int | None:
        # Numbers start at 1, because the embeddings have depth 0.
        return _number(path) or super().depth(path)

    def flops(self, length: int, predictions: int | None = None) -> float:
        sizes = [cell.width for cell in self._cells]
        widths = zip((self.d_model, *sizes), self._cells)
        layers = sum(parameters.recurrent(length, inputs, cell) for inputs, cell in widths)
        positions = length if predictions is None else predictions
        return layers + parameters.dense(positions, self.d_model, self.vocab_size)

    def _words(self, tokens: Int[ArrayLike, "B L"], train: bool) -> Float[Array, "B L M"]:
        """Returns the embeddings. In training, a dropped word is zero wherever it occurs."""
        x = self.token_embed(tokens)
        if not train:
            return x
        # The vectors are scaled after the lookup, because the table is also the output projection,
        # from which no word is dropped.
        factors = self.drop_words(jnp.ones(self.vocab_size, x.dtype), train=True)  # (V,)
        return x * jnp.take(factors, tokens, axis=0)[..., None]


def _number(path: tuple[str, ...]) -> int | None:
    """Returns the number of the layer to which a parameter belongs, from 1 at the bottom."""
    name, _, number = path[0].rpartition("_")
    return int(number) + 1 if name == "layer" else None
