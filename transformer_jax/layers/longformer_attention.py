"""Attention within a window and to global tokens (Beltagy et al. 2020, section 3.1)."""

from functools import partial

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax.layers import activations
from transformer_jax.layers.attention import Attention
from transformer_jax.layers.dot_product import dot_product
from transformer_jax.layers.masks import Mask
from transformer_jax.layers.window_attention import windowed


class LongformerAttention(Attention):
    """Self-attention of a window, and of global tokens: (B, L, M) -> (B, L, M).

    A token sees the tokens within `mask.window`, and those at `global_positions` (B, N); -1 stands
    for none. A global token sees the whole row, through projections of its own.
    """

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
        y = windowed(q, k, v, mask, dropout, global_positions=global_positions)
        if self.is_initializing() and global_positions is None:
            global_positions = jnp.zeros((len(x), 1), jnp.int32)
        if global_positions is not None:
            rows, places = jnp.arange(len(x))[:, None], jnp.maximum(global_positions, 0)
            q = project("global_query", x[rows, places])  # (B, N, H, D)
            k, v = project("global_key", x), project("global_value", x)
            segments = mask.query_segments
            whole_row = Mask(
                query_segments=None if segments is None else jnp.asarray(segments)[rows, places],
                key_segments=mask.key_segments,
            )
            dropout = self._weight_dropout(len(x)) if train and self.dropout else None
            of_global = dot_product(q, k, v, whole_row, dropout)
            beyond = jnp.where(global_positions < 0, x.shape[1], global_positions)
            y = y.at[rows, beyond].set(of_global, mode="drop")
        return self._merged(activations.named(self, "heads", y), x.shape[-1])
