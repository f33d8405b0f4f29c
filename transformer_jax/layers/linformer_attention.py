"""Attention to projections of keys and values along the length (Wang et al. 2020, section 4)."""

from functools import partial
from typing import Literal

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.layers import activations
from transformer_jax.layers.attention import Attention
from transformer_jax.layers.dot_product import dot_product
from transformer_jax.layers.masks import Mask
from transformer_jax.layers.parameters import declared

# What shares a projection: the heads of a layer, also its keys and values, or also all layers.
Sharing = Literal["heads", "keys_and_values", "layers"]


def length_projection(module: nn.Module, name: str, shape: tuple[int, int]) -> Float[Array, "N R"]:
    """Returns a parameter that projects up to N positions to R."""
    init = nn.initializers.normal(shape[1] ** -0.5)
    return module.param(name, declared(init, (None, None), decays=True), shape)


class LinformerAttention(Attention):
    """Self-attention to `rank` mixtures of all positions: (B, L, M) -> (B, L, M).

    Row r of the keys is the sum of the keys at all positions, by column r of a learned matrix (N,
    R), and the values likewise. A row shorter than N has the first rows of the matrix. Padding has
    keys and values of zero.
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
        """`projection` is that of all layers, with this sharing."""
        project = partial(self._project, num_heads=self.num_heads)
        q, k, v = (project(name, x) for name in ("query", "key", "value"))  # (B, L, H, D)
        of_keys = of_values = projection
        if self.sharing != "layers":
            shape = (self.max_length, self.rank)
            of_keys = of_values = length_projection(self, "key_projection", shape)
            if self.sharing == "heads":
                of_values = length_projection(self, "value_projection", shape)
        filled = 1 if mask.key_segments is None else mask.key_segments[..., None, None] > 0
        k, v = (
            jnp.einsum("blhd,lr->brhd", each * filled, matrix[: x.shape[1]].astype(each.dtype))
            for each, matrix in ((k, of_keys), (v, of_values))
        )
        dropout = self._weight_dropout(len(x)) if train and self.dropout else None
        observe = partial(activations.named, self, "weights")
        y = dot_product(q, k, v, Mask(), dropout, observe=observe)
        return self._merged(activations.named(self, "heads", y), x.shape[-1])
