"""Convolutions over the positions of a row, as products with windows.

XLA's partitioner gives wrong gradients of convolutions on some meshes (layers/characters.py), so
none is used here. The kernels are whole on each device: they are small beside the other layers.
"""

import math
from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.layers.linear import recomputed
from transformer_jax.layers.parameters import declared

_TAPS = 16  # positions of a part of a wide kernel; a window of each part lies in memory


class Convolution(nn.Module):
    """A convolution with a stride and without padding: (B, L, C) -> (B, N, D).

    N = (L - width) // stride + 1.
    """

    features: int
    width: int
    stride: int = 1
    use_bias: bool = True
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "B L C"]) -> Float[Array, "B N D"]:
        inputs = self.width * x.shape[-1]
        normal = nn.initializers.normal(math.sqrt(2 / inputs))  # He et al. 2015
        init = declared(normal, (None, None, None), decays=True, inputs=2)
        kernel = self.param("kernel", init, (self.width, x.shape[-1], self.features))
        rows = windows(x.astype(self.dtype), self.width, self.stride)  # (B, N, width * C)
        y = rows @ kernel.astype(self.dtype).reshape(inputs, self.features)
        if self.use_bias:
            zeros = declared(nn.initializers.zeros, (None,))
            y = y + self.param("bias", zeros, (self.features,)).astype(self.dtype)
        return y


def num_windows(length, shapes: Sequence[tuple[int, int]]):
    """Returns the number of outputs of convolutions, one after the other; not below 0.

    `length`, that of their input, is a number or an array. `shapes` are (width, stride) of each.
    """
    for width, stride in shapes:
        length = (length - width) // stride + 1
    return length * (length > 0)


def windows(x: Float[Array, "B L C"], width: int, stride: int) -> Float[Array, "B N W"]:
    """Returns the values of each window side by side: (B, N, width * C)."""
    batch, length, channels = x.shape
    count = num_windows(length, [(width, stride)])
    blocks = -(-width // stride)  # of `stride` positions, in a window
    needed = (count + blocks - 1) * stride
    x = jnp.pad(x, ((0, 0), (0, max(needed - length, 0)), (0, 0)))[:, :needed]
    x = x.reshape(batch, -1, stride * channels)
    parts = [x[:, first : first + count] for first in range(blocks)]
    return jnp.concatenate(parts, axis=-1)[..., : width * channels]


class PositionalConvolution(nn.Module):
    """Relative positions by a wide convolution in groups: (B, L, M) -> (B, L, M).

    GELU is not applied here (Baevski et al. 2020, section 2). A kernel of even width sees one more
    position on its left. The weight norm has one length for each of the `width` positions of the
    kernel (Salimans & Kingma 2016).
    """

    width: int = 128
    groups: int = 16
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "B L M"]) -> Float[Array, "B L M"]:
        length, features = x.shape[1:]
        inputs = features // self.groups
        deviation = 2 / math.sqrt(self.width * features)
        init = declared(
            nn.initializers.normal(deviation), (None, None, None), decays=True, inputs=2
        )
        direction = self.param("direction", init, (self.width, inputs, features))
        # The expected norm of such a direction.
        norm = nn.initializers.constant(deviation * math.sqrt(inputs * features))
        scale = self.param("scale", declared(norm, (None,)), (self.width,))
        bias = self.param("bias", declared(nn.initializers.zeros, (None,)), (features,))
        squares = jnp.square(direction).sum(axis=(1, 2), keepdims=True)
        kernel = direction * (scale[:, None, None] * jax.lax.rsqrt(squares))
        y = _grouped(x.astype(self.dtype), kernel.astype(self.dtype), self.groups)
        return y.reshape(-1, length, features) + bias.astype(self.dtype)


def _grouped(
    x: Float[Array, "B L M"], kernel: Float[Array, "K C M"], groups: int
) -> Float[Array, "B L G O"]:
    """Returns the outputs of each group. All windows of the whole kernel would take K times x."""
    batch, length, features = x.shape
    width, inputs, _ = kernel.shape
    taps = min(_TAPS, width)
    parts = -(-width // taps)
    total = parts * taps
    kernel = jnp.pad(kernel, ((0, total - width), (0, 0), (0, 0)))
    kernel = kernel.reshape(parts, taps, inputs, groups, features // groups)
    kernel = kernel.transpose(0, 3, 1, 2, 4).reshape(parts, groups, taps * inputs, -1)
    x = jnp.pad(x, ((0, 0), (width // 2, total - 1 - width // 2), (0, 0)))
    x = x.reshape(batch, -1, groups, inputs)
    count = length + total - taps
    rows = jnp.concatenate([x[:, first : first + count] for first in range(taps)], axis=-1)
    return sum(
        jnp.einsum("blgi,gio->blgo", rows[:, part * taps : part * taps + length], kernel[part])
        for part in range(parts)
    )


class InstanceNorm(nn.Module):
    """Normalizes each channel over the positions of its row: (B, L, C) -> (B, L, C).

    It is the group normalization (Wu & He 2018) whose groups are single channels. All positions
    count, so padding changes the result. The computation is in float32.
    """

    epsilon: float = 1e-5

    @nn.compact
    def __call__(self, x: Float[Array, "B L C"]) -> Float[Array, "B L C"]:
        shape = (x.shape[-1],)
        scale = self.param("scale", declared(nn.initializers.ones, ("norm",)), shape)
        bias = self.param("bias", declared(nn.initializers.zeros, ("norm",)), shape)
        return recomputed(_instance_norm, x)(x, scale, bias, self.epsilon)


def _instance_norm(x, scale, bias, epsilon):
    y = x.astype(jnp.float32)
    y = y - y.mean(axis=1, keepdims=True)
    variance = jnp.square(y).mean(axis=1, keepdims=True)
    return (y * jax.lax.rsqrt(variance + epsilon) * scale + bias).astype(x.dtype)
