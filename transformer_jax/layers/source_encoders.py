"""The encoders of a recurrent decoder: recurrent in either direction, or a Transformer's."""

import math
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax.layers import flops
from transformer_jax.layers.attention import Attention
from transformer_jax.layers.blocks import Block
from transformer_jax.layers.blocks import Stack as Blocks
from transformer_jax.layers.cells import Cell
from transformer_jax.layers.embeddings import sinusoids
from transformer_jax.layers.linear import Dropout
from transformer_jax.layers.masks import Mask
from transformer_jax.layers.mlp import MLP
from transformer_jax.layers.norms import LayerNorm
from transformer_jax.layers.recurrent import Stack
from transformer_jax.layers.segments import at, bounds


class RecurrentEncoder(nn.Module):
    """x (B, S, M) -> annotations (B, S, D), last states and summaries of the sources.

    Segment ids (B, S) tell the sources of a packed row apart. The states are arrays (B, S, D), of
    each layer in turn, and the summary is (B, S, F): those of a source stand at each of its
    positions. The summary is the last output, or with `bidirectional` the output of the backward
    direction at the first word. With `reverse`, the words are read from the last to the first; the
    end token behind them stays the last.
    """

    cell: Cell
    num_layers: int
    bidirectional: bool = False
    reverse: bool = False
    dropout: float = 0.0

    @nn.compact
    def __call__(
        self, x: Float[Array, "B S M"], segments: Int[Array, "B S"], *, train: bool = False
    ) -> tuple[Float[Array, "B S D"], tuple[Any, ...], Float[Array, "B S F"]]:
        first, last = bounds(segments)
        places = jnp.broadcast_to(jnp.arange(x.shape[1]), segments.shape)
        order = jnp.where(self.reverse & (places < last), first + last - 1 - places, places)
        x = at(x, order) if self.reverse else x
        stack = Stack(
            self.cell,
            self.num_layers,
            bidirectional=self.bidirectional,
            dropout=self.dropout,
            all_states=True,
            name="layers",
        )
        begins, ends = places == first, places == last
        x, layers = stack(x, segments > 0, begins=begins, ends=ends, train=train)
        if self.bidirectional:
            summary = at(layers[-1][1][0], first)
            layers = [
                [jnp.concatenate([at(x, last), at(y, first)], axis=-1) for x, y in zip(*layer)]
                for layer in layers
            ]
        else:
            summary = at(x, last)
            layers = [[at(x, last) for x in layer] for layer in layers]
        x = Dropout(self.dropout)(x, train=train)
        states = tuple(state for layer in layers for state in layer)
        return at(x, order) if self.reverse else x, states, summary

    @nn.nowrap
    def flops(self, length: int, d_model: int) -> int:
        """Returns the FLOPs over a source: two for each multiply-add."""
        directions = 2 if self.bidirectional else 1
        inputs = [d_model] + [directions * self.cell.width] * (self.num_layers - 1)
        return sum(directions * flops.recurrent(length, width, self.cell) for width in inputs)


class TransformerEncoder(nn.Module):
    """x (B, S, M) -> annotations (B, S, M), no states, and the mean annotation of each source.

    The blocks have the norm in front, and sinusoidal positions.
    """

    num_layers: int
    num_heads: int
    d_ff: int
    dropout: float = 0.0

    @nn.compact
    def __call__(
        self, x: Float[Array, "B S M"], segments: Int[Array, "B S"], *, train: bool = False
    ) -> tuple[Float[Array, "B S M"], tuple[()], Float[Array, "B S M"]]:
        d_model = x.shape[-1]
        heads = dict(num_heads=self.num_heads, head_dim=d_model // self.num_heads)
        block = partial(
            Block,
            attention=partial(Attention, **heads, dtype=x.dtype),
            mlp=partial(MLP, d_ff=self.d_ff, activation=jax.nn.relu, dtype=x.dtype),
            norm=partial(LayerNorm, 1e-6),
            norm_position="pre",
            dropout=self.dropout,
        )
        positions = jnp.arange(x.shape[1]) - bounds(segments)[0]
        x = x * math.sqrt(d_model) + sinusoids(positions, d_model).astype(x.dtype)
        mask = Mask(query_segments=segments, key_segments=segments)
        x = Blocks((block,), self.num_layers, name="layers")(x, mask=mask, train=train)
        x = LayerNorm(1e-6, name="norm")(x)
        same = (segments[:, None] == segments[:, :, None]).astype(x.dtype)  # (B, S, S)
        return x, (), same @ x / same.sum(axis=-1, keepdims=True)

    @nn.nowrap
    def flops(self, length: int, d_model: int) -> float:
        """Returns the FLOPs over a source: two for each multiply-add."""
        layer = flops.LayerSizes(d_model, d_model, self.d_ff).layer(length, length**2)
        return self.num_layers * layer + flops.dense(length, length, d_model)
