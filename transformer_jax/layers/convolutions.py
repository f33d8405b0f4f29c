"""Convolutions over positions, over a grid of vectors, and over the characters of words."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

from transformer_jax.layers import parameters
from transformer_jax.layers.parameters import Linear, declared, recomputed

# --------------------------------------------------------------------------------------------------
# Convolutions over positions, computed as matrix products with windows.
#
# XLA's partitioner computes wrong gradients of convolutions on some meshes, so no layer of this
# file uses XLA's convolutions. The kernels of this section are replicated, because they are small
# compared with the other layers.

_TAPS = 16  # positions of a wide kernel that are processed at a time, to bound the memory


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
        # This variance preserves the signal's variance through ReLU layers (He et al. 2015, section
        # 2.2).
        normal = nn.initializers.normal(math.sqrt(2 / inputs))
        init = declared(normal, (None, None, None), decays=True, inputs=2)
        kernel = self.param("kernel", init, (self.width, x.shape[-1], self.features))
        rows = windows(x.astype(self.dtype), self.width, self.stride)  # (B, N, width * C)
        y = rows @ kernel.astype(self.dtype).reshape(inputs, self.features)
        if self.use_bias:
            zeros = declared(nn.initializers.zeros, (None,))
            y = y + self.param("bias", zeros, (self.features,)).astype(self.dtype)
        return y


def num_windows(length, shapes: Sequence[tuple[int, int]]):
    """Returns the number of outputs of a sequence of convolutions, at least 0.

    The input `length` is a number or an array. `shapes` are (width, stride) of each convolution.
    """
    for width, stride in shapes:
        length = (length - width) // stride + 1
    # This is a product, because `max` does not work for arrays, and jnp.maximum would turn an int
    # into one.
    return length * (length > 0)


def windows(x: Float[Array, "B L C"], width: int, stride: int) -> Float[Array, "B N W"]:
    """Returns the concatenated vectors of each window (B, N, width * C)."""
    batch, length, channels = x.shape
    count = num_windows(length, [(width, stride)])
    # Blocks of `stride` positions do not overlap, so that all windows are slices of a reshaped
    # array and need no gather.
    blocks = -(-width // stride)
    needed = (count + blocks - 1) * stride
    x = jnp.pad(x, ((0, 0), (0, max(needed - length, 0)), (0, 0)))[:, :needed]
    x = x.reshape(batch, -1, stride * channels)
    parts = [x[:, first : first + count] for first in range(blocks)]
    return jnp.concatenate(parts, axis=-1)[..., : width * channels]


class PositionalConvolution(nn.Module):
    """A wide grouped convolution as relative position embedding: (B, L, M) -> (B, L, M).

    GELU is not applied here (Baevski et al. 2020, section 2). A kernel of even width sees one more
    position on its left. Weight normalization has one norm for each of the `width` positions of the
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
        # The scale starts at the expected norm of the direction, so that the initial kernel is
        # about the direction itself.
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
    """Returns the outputs of each group.

    The kernel is applied in parts of `_TAPS` positions, because the windows of the whole kernel
    would take K times the memory of x.
    """
    batch, length, features = x.shape
    width, inputs, _ = kernel.shape
    taps = min(_TAPS, width)
    parts = -(-width // taps)
    total = parts * taps
    kernel = jnp.pad(kernel, ((0, total - width), (0, 0), (0, 0)))
    kernel = kernel.reshape(parts, taps, inputs, groups, features // groups)
    kernel = kernel.transpose(0, 3, 1, 2, 4).reshape(parts, groups, taps * inputs, -1)
    # A kernel of even width has no center. It reaches one position further to the left, because the
    # published code drops the last output.
    x = jnp.pad(x, ((0, 0), (width // 2, total - 1 - width // 2), (0, 0)))
    x = x.reshape(batch, -1, groups, inputs)
    count = length + total - taps
    rows = jnp.concatenate([x[:, first : first + count] for first in range(taps)], axis=-1)
    return sum(
        jnp.einsum("blgi,gio->blgo", rows[:, part * taps : part * taps + length], kernel[part])
        for part in range(parts)
    )


class InstanceNorm(nn.Module):
    """Normalizes each channel over the positions of its sequence: (B, L, C) -> (B, L, C).

    This is group normalization (Wu & He 2018) with one channel per group. The mean and the variance
    are those of the first `lengths` (B,) positions. Without `lengths`, all positions count, so that
    padding changes the result. The computation is in float32.
    """

    epsilon: float = 1e-5

    @nn.compact
    def __call__(
        self, x: Float[Array, "B L C"], lengths: Int[Array, " B"] | None = None
    ) -> Float[Array, "B L C"]:
        shape = (x.shape[-1],)
        scale = self.param("scale", declared(nn.initializers.ones, ("norm",)), shape)
        bias = self.param("bias", declared(nn.initializers.zeros, ("norm",)), shape)
        return recomputed(_instance_norm, x)(x, scale, bias, self.epsilon, lengths)


def _instance_norm(x, scale, bias, epsilon, lengths):
    y = x.astype(jnp.float32)
    mean = partial(jnp.mean, axis=1, keepdims=True)
    if lengths is not None:
        filled = (jnp.arange(x.shape[1]) < lengths[:, None])[..., None]
        # A row that is all padding would divide 0 by 0.
        counts = jnp.maximum(lengths, 1)[:, None, None]

        def mean(values):
            # This is no product with `filled`, because 0 * NaN in the padding would be NaN.
            return jnp.where(filled, values, 0).sum(axis=1, keepdims=True) / counts

    y = y - mean(y)
    variance = mean(jnp.square(y))
    return (y * jax.lax.rsqrt(variance + epsilon) * scale + bias).astype(x.dtype)


# --------------------------------------------------------------------------------------------------
# Convolutions over a grid of vectors, computed as a matrix product with neighborhoods, because
# XLA's partitioner computes wrong gradients of convolutions on some meshes.

_SIDE = 3


def neighbourhoods(x: Float[Array, "B G H M"]) -> Float[Array, "B G H 3 3 M"]:
    """Returns the 3 x 3 vectors around each cell of a grid, with zeros beyond its edges."""
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

    x <- x + W gelu(conv(norm(x))). The convolution is one matrix product, because XLA's partitioner
    computes wrong gradients of convolutions on some meshes.
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


# --------------------------------------------------------------------------------------------------
# Word embeddings from characters: convolutions, highway layers and a projection (Kim et al. 2016).
#
# Since words are read by their characters, no word is outside of the vocabulary.

# 262, as in the published code of ELMo: bytes, five special characters, and 0 for positions without
# a word.
NUM_CHARACTERS = 262


class Highway(nn.Module):
    """g * relu(x W + b) + (1 - g) * x, with g = sigmoid(x V + c - 2) (Srivastava et al. 2015).

    x is (..., M). The constant -2, which the published code of ELMo also adds to the parameter c,
    makes the layer pass most of x through at initialization.
    """

    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "*B M"]) -> Float[Array, "*B M"]:
        width = x.shape[-1]
        init = nn.initializers.normal(width**-0.5)
        options = dict(axes=("embed", "mlp"), kernel_init=init, dtype=self.dtype)
        gate = jax.nn.sigmoid(Linear((width,), (width,), **options, name="gate")(x) - 2)
        change = jax.nn.relu(Linear((width,), (width,), **options, name="change")(x))
        return gate * change + (1 - gate) * x


class CharacterWords(nn.Module):
    """Characters (B, L, C) int32 -> word embeddings (B, L, M) (Peters et al. 2018, section 3.1).

    `filters` are (width, number) pairs. The output of each filter is its maximum over the positions
    of the word. Highway layers and a projection follow.
    """

    features: int
    width: int = 16  # of the embedding of a character
    filters: Sequence[tuple[int, int]] = ((1, 32), (2, 32))
    num_highways: int = 2
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, characters: Int[ArrayLike, "B L C"]) -> Float[Array, "B L M"]:
        init = declared(nn.initializers.uniform(2.0), (None, None), decays=True)
        # The table is shifted, because the initializer starts at 0, whereas the published code
        # draws from -1 to 1.
        table = self.param("embedding", init, (NUM_CHARACTERS, self.width)) - 1
        x = jnp.take(table.astype(self.dtype), characters, axis=0)  # (B, L, C, E)
        words = x.reshape(-1, *x.shape[2:])  # (N, C, E)
        values = [self._filtered(words, *each) for each in self.filters]
        y = jnp.concatenate(values, axis=-1).reshape(*x.shape[:2], -1)  # (B, L, F)
        for number in range(self.num_highways):
            y = Highway(self.dtype, name=f"highway_{number}")(y)
        inputs = y.shape[-1]
        return Linear(
            (inputs,),
            (self.features,),
            axes=("mlp", "embed"),
            kernel_init=nn.initializers.normal(inputs**-0.5),
            dtype=self.dtype,
            name="projection",
        )(y)

    def _filtered(self, x: Float[Array, "N C E"], width: int, number: int) -> Float[Array, "N F"]:
        """Returns the largest value of each filter over the positions of the words."""
        init = declared(_uniform, (None, None, "mlp"), decays=True, inputs=2)
        kernel = self.param(f"filter_{width}", init, (width, x.shape[-1], number))
        zeros = declared(nn.initializers.zeros, ("mlp",))
        bias = self.param(f"filter_{width}_bias", zeros, (number,))
        # XLA's partitioner computes a wrong gradient of convolutions on some meshes, so the
        # convolution is a matrix product with the concatenated characters of each window.
        count = x.shape[1] - width + 1
        windows = [x[:, first : first + count] for first in range(width)]
        windows = jnp.concatenate(windows, axis=-1)  # (N, count, width * E)
        y = windows @ kernel.reshape(-1, number).astype(x.dtype)
        # The bias is the same at all positions and the ReLU is monotonic, so both may follow the
        # maximum, where they are cheaper.
        return jax.nn.relu(y.max(axis=1) + bias.astype(x.dtype))

    @nn.nowrap
    def flops(self, length: int, characters: int) -> int:
        """Returns the FLOPs of a row of `length` words with `characters` characters each."""
        total, filters = 0, sum(number for _, number in self.filters)
        for width, number in self.filters:
            positions = length * (characters - width + 1)
            total += parameters.dense(positions, width * self.width, number)
        total += self.num_highways * parameters.dense(length, filters, 2 * filters)
        return total + parameters.dense(length, filters, self.features)


def _uniform(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Returns uniform values from -0.05 to 0.05, as in the published code."""
    return jax.random.uniform(key, shape, minval=-0.05, maxval=0.05)
