"""A recurrent language model (Mikolov et al. 2010; Karpathy 2015).

Dropout applies only to connections between layers, not to recurrent ones (Zaremba et al. 2014).
"""

from functools import partial
from typing import Literal

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from transformer_jax.config import Fraction, PositiveInt
from transformer_jax.contracts.model import Recurrent
from transformer_jax.layers import parameters, recurrent
from transformer_jax.layers.embeddings import Bias, Embed, Projection
from transformer_jax.layers.parameters import Dropout, compute_dtype
from transformer_jax.layers.recurrent import Stack

# The outputs of the layers and, for an LSTM, their cells. The layers have equal widths, so one
# array holds them all, with rows first as decoding needs them to reorder hypotheses.
Carry = tuple[Float[Array, "B layers M"], ...]


class RecurrentLM(Recurrent):
    """Tokens (B, L) int32 -> logits of the next tokens (B, L, V) float32.

    The state of a row consists of the states of all layers.
    """

    vocabulary = ("token_embed/embedding", "output_embed/embedding", "output_bias/bias")

    vocab_size: PositiveInt = 96  # number of tokens in the vocabulary
    d_model: PositiveInt = 512  # width of embeddings, outputs and cells
    num_layers: PositiveInt = 1  # number of recurrent layers
    # recurrent cell; a GRU resets its state after or before the recurrent product of the candidate
    cell: recurrent.Name = "lstm"
    dropout: Fraction = 0.0  # on the embeddings and on the output of each layer
    tie_output: bool = False  # uses the token embeddings as output projection
    # dtype of the computation; auto: bfloat16 on accelerators, float32 on a CPU
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"

    def setup(self):
        init = nn.initializers.normal(self.d_model**-0.5)
        embed = partial(Embed, self.vocab_size, self.d_model, init, dtype=self._dtype)
        self.token_embed = embed()
        if not self.tie_output:
            self.output_embed = embed()
        self.output_bias = Bias(self.vocab_size, "vocab")
        self.embed_dropout = Dropout(self.dropout)
        self.layers = Stack(self._cell, self.num_layers, dropout=self.dropout)
        self.output_dropout = Dropout(self.dropout)

    @property
    def _dtype(self):
        return compute_dtype(self.dtype)

    @property
    def _cell(self):
        return recurrent.make(self.cell, self.d_model)

    @nn.nowrap
    def initial_carry(self, rows: int) -> Carry:
        """Returns zeros."""
        state = recurrent.zero_state(self._cell, rows * self.num_layers, self._dtype)
        return tuple(part.reshape(rows, self.num_layers, -1) for part in state)

    def advance(
        self,
        tokens: Int[ArrayLike, "B L"],
        carry: Carry,
        *,
        restarts: Int[ArrayLike, "B L"] | Bool[ArrayLike, "B L"] | None = None,
        filled: Int[ArrayLike, "B L"] | Bool[ArrayLike, "B L"] | None = None,
        train: bool = False,
    ) -> tuple[Float[Array, "B L M"], Carry]:
        x = self.embed_dropout(self.token_embed(tokens), train=train)
        filled = jnp.ones(tokens.shape, bool) if filled is None else filled > 0
        restarts = jnp.zeros(tokens.shape, bool) if restarts is None else restarts > 0
        states = tuple(zip(*(jnp.unstack(part, axis=1) for part in carry)))
        x, states = self.layers(x, filled, states, restarts, train=train)
        carry = tuple(jnp.stack(parts, axis=1) for parts in zip(*states))
        return self.output_dropout(x, train=train), carry

    def output(self) -> Projection:
        embed = self.token_embed if self.tie_output else self.output_embed
        return Projection(embed.table(), self.output_bias())

    def flops(self, length: int, predictions: int | None = None) -> float:
        layers = self.num_layers * parameters.recurrent(length, self.d_model, self._cell)
        positions = length if predictions is None else predictions
        return layers + parameters.dense(positions, self.d_model, self.vocab_size)
