"""Attention of Longformer and Linformer, whose cost grows linearly with the length."""

from functools import partial
from typing import Literal

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax.layers import activations
from transformer_jax.layers.attention import Attention
from transformer_jax.layers.masks import Keys, Mask, Queries, attention_weights, dot_product
from transformer_jax.layers.parameters import declared
from transformer_jax.layers.recurrent import WeightDropout
from transformer_jax.layers.window_attention import windowed

# --------------------------------------------------------------------------------------------------
# Attention within a window and to global tokens (Beltagy et al. 2020, section 3.1).
#
# Global tokens are those whose output must depend on the whole row, such as [CLS] of a classifier
# or the words of a question.


class LongformerAttention(Attention):
    """Self-attention within a window and with global tokens: (B, L, M) -> (B, L, M).

    A token attends to the tokens within `mask.window` and to those at `global_positions` (B, N),
    where -1 is none. A global token attends to the whole row, through separate projections. The
    dilation of the mask applies to the first `dilated_heads` heads, by default to all.
    """

    dilated_heads: int | None = None

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B L M"],
        *,
        mask: Mask,
        global_positions: Int[Array, "B N"] | None = None,
        train: bool = False,
        decode: int = 0,
    ) -> Float[Array, "B L M"]:
        project = partial(self._project, num_heads=self.num_heads)
        q, k, v = (project(name, x) for name in ("query", "key", "value"))  # (B, L, H, D)
        dropout = self._weight_dropout(len(x)) if train and self.dropout else None
        y = self._windowed((q, k, v), mask, dropout, global_positions)
        # The parameters of global tokens must exist even if the first batch has none.
        if self.is_initializing() and global_positions is None:
            global_positions = jnp.zeros((len(x), 1), jnp.int32)
        if global_positions is not None:
            # An unused entry (-1) computes an output at position 0, because shapes are static; it
            # is dropped below.
            rows, indices = jnp.arange(len(x))[:, None], jnp.maximum(global_positions, 0)
            segments = mask.query_segments
            whole_row = Mask(
                query_segments=None if segments is None else jnp.asarray(segments)[rows, indices],
                key_segments=mask.key_segments,
            )
            # This is another draw, because queries are numbered from 0 here as well, so that the
            # same seeds would drop the same weights.
            dropout = self._weight_dropout(len(x)) if train and self.dropout else None
            q = project("global_query", x[rows, indices])  # (B, N, H, D)
            global_outputs = self._global_outputs(q, x, whole_row, dropout)
            # Position L is out of range, so that mode="drop" discards the outputs of padding.
            beyond = jnp.where(global_positions < 0, x.shape[1], global_positions)
            y = y.at[rows, beyond].set(global_outputs, mode="drop")
        return self._merged(activations.named(self, "heads", y), x.shape[-1])

    def _global_outputs(
        self, q: Queries, x: Float[Array, "B L M"], mask: Mask, dropout: WeightDropout | None
    ) -> Queries:
        """Returns the outputs (B, N, H, D) of a few queries that attend to the whole row.

        Since the queries are few, they are projected instead of the row: q . (W^T x) = (W q) . x
        for the keys, and the mean of projected values is the projection of the mean of x. The bias
        of the keys is omitted, because it adds the same number to all scores of a query.
        """
        key, value = (
            self._projection(name, x.shape[-1], self.num_heads)
            for name in ("global_key", "global_value")
        )
        x = x.astype(self.dtype)
        q = jnp.einsum("bnhd,mhd->bnhm", q, key.gathered())
        scale = self.head_dim**-0.5
        weights = attention_weights(q, x[:, :, None], mask, scale=scale)  # (B, H, N, L)
        if dropout is not None:
            weights = dropout(weights)
        means = jnp.einsum("bhnk,bkm->bnhm", weights.astype(x.dtype), x)
        y = jnp.einsum("bnhm,mhd->bnhd", means, value.gathered())
        if not self.use_bias:
            return y
        # After dropout, the weights of a query no longer add up to 1, so the bias counts by their
        # sum.
        return y + weights.sum(axis=-1).swapaxes(1, 2)[..., None].astype(y.dtype) * value.bias

    def _windowed(
        self,
        arrays: tuple[Queries, Keys, Keys],
        mask: Mask,
        dropout: WeightDropout | None,
        global_positions: Int[Array, "B N"] | None,
    ) -> Queries:
        """Returns the outputs of the heads, of which only some may have a dilated window."""
        count = self.num_heads if self.dilated_heads is None else self.dilated_heads
        if mask.dilation is None or count == self.num_heads:
            return windowed(*arrays, mask, dropout, global_positions=global_positions)
        outputs = [
            windowed(
                *(x[:, :, heads] for x in arrays),
                head_mask,
                dropout and dropout.for_heads(heads),
                global_positions=global_positions,
            )
            for heads, head_mask in (
                (slice(count), mask),
                (slice(count, None), mask.undilated()),
            )
        ]
        return jnp.concatenate(outputs, axis=2)


# --------------------------------------------------------------------------------------------------
# Attention to keys and values that are projected along the length (Wang et al. 2020, section 4).
#
# A projected key is a mixture of all positions. No mask can hide a single position in it, so this
# attention cannot be causal, and the padding must be zeroed before the projection.

# What shares a projection: the heads of a layer, in addition its keys and values, or all layers.
# These are the three options of the paper (section 4).
Sharing = Literal["heads", "keys_and_values", "layers"]


def length_projection(module: nn.Module, name: str, shape: tuple[int, int]) -> Float[Array, "N R"]:
    """Returns a parameter that projects up to N positions to R."""
    init = nn.initializers.normal(shape[1] ** -0.5)
    return module.param(name, declared(init, (None, None), decays=True), shape)


class LinformerAttention(Attention):
    """Self-attention to `rank` linear combinations of all positions: (B, L, M) -> (B, L, M).

    Key r is the sum of the keys at all positions, weighted by column r of a learned matrix (N, R);
    the values are combined likewise. A sequence shorter than N uses the first rows of the matrix.
    The keys and values of padding are zero.
    """

    max_length: int = 512
    rank: int = 128
    sharing: Sharing = "keys_and_values"

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B L M"],
        *,
        mask: Mask,
        projection: Float[Array, "N R"] | None = None,
        train: bool = False,
        decode: int = 0,
    ) -> Float[Array, "B L M"]:
        """`projection` is given if all layers share one."""
        project = partial(self._project, num_heads=self.num_heads)
        q, k, v = (project(name, x) for name in ("query", "key", "value"))  # (B, L, H, D)
        key_projection = value_projection = projection
        if self.sharing != "layers":
            shape = (self.max_length, self.rank)
            key_projection = value_projection = length_projection(self, "key_projection", shape)
            if self.sharing == "heads":
                value_projection = length_projection(self, "value_projection", shape)
        filled = 1 if mask.key_segments is None else mask.key_segments[..., None, None] > 0
        k, v = (
            jnp.einsum("blhd,lr->brhd", each * filled, matrix[: x.shape[1]].astype(each.dtype))
            for each, matrix in ((k, key_projection), (v, value_projection))
        )
        dropout = self._weight_dropout(len(x)) if train and self.dropout else None
        observe = partial(activations.named, self, "weights")
        # The mask is empty, because the mixtures contain no padding any more.
        y = dot_product(q, k, v, Mask(), dropout, observe=observe)
        return self._merged(activations.named(self, "heads", y), x.shape[-1])
