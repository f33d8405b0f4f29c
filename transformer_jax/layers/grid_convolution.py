"""Convolutions over a grid of vectors, as a product with the neighbours of each place."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.layers.linear import Linear

_SIDE = 3


def neighbourhoods(x: Float[Array, "B G H M"]) -> Float[Array, "B G H 3 3 M"]:
    """Returns the 3 x 3 vectors around each place of a grid; zeros beyond its edges."""
    _, rows, columns, _ = x.shape
    padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    parts = [
        padded[:, row : row + rows, column : column + columns]
        for row in range(_SIDE)
        for column in range(_SIDE)
    ]
    around = jnp.stack(parts, axis=3)  # (B, G, H, 9, M)
    return around.reshape(*x.shape[:3], _SIDE, _SIDE, x.shape[-1])


class GridBlock(nn.Module):
    """A residual block with a 3 x 3 convolution: (B, G, H, M) -> (B, G, H, M).

    x <- x + W gelu(conv(norm(x))). The convolution is one matrix product: XLA's partitioner has
    given wrong gradients of convolutions on meshes (layers/characters.py).
    """

    norm: Callable[..., nn.Module]
    kernel_init: nn.initializers.Initializer
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "B G H M"]) -> Float[Array, "B G H M"]:
        width = x.shape[-1]
        options = dict(kernel_init=self.kernel_init, dtype=self.dtype)
        kernel = (_SIDE, _SIDE, width)
        axes = (None, None, "embed", "mlp")
        y = neighbourhoods(self.norm(name="norm")(x))
        y = jax.nn.gelu(Linear(kernel, (width,), axes=axes, name="around", **options)(y))
        return x + Linear((width,), (width,), axes=("mlp", "embed"), name="out", **options)(y)
