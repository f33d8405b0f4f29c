"""Words read by their characters: convolutions, highways and a projection (Kim et al. 2016)."""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

from transformer_jax.layers import flops
from transformer_jax.layers.linear import Linear
from transformer_jax.layers.parameters import declared

# Bytes, five marks, and 0 for positions without a word.
NUM_CHARACTERS = 262


class Highway(nn.Module):
    """g * relu(x W + b) + (1 - g) * x, with g = sigmoid(x V + c - 2) (Srivastava et al. 2015).

    x is (..., M). At initialization the gate g lets most of x pass: -2 stands beside the parameter
    c, as in the published code of ELMo.
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
    """Characters (B, L, C) int32 -> vectors of their words (B, L, M) (Peters et al. 2018, 3.1).

    `filters` are (width, number) pairs. A filter gives its largest value over the positions of the
    word. Highways and a projection follow.
    """

    features: int
    width: int = 16  # of the vector of a character
    filters: Sequence[tuple[int, int]] = ((1, 32), (2, 32))
    num_highways: int = 2
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, characters: Int[ArrayLike, "B L C"]) -> Float[Array, "B L M"]:
        init = declared(nn.initializers.uniform(2.0), (None, None), decays=True)
        table = self.param("embedding", init, (NUM_CHARACTERS, self.width)) - 1  # from -1 to 1
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
        # XLA's partitioner gives a wrong gradient of convolutions on some meshes, so a convolution
        # is a product with the characters of each window, side by side.
        places = x.shape[1] - width + 1
        windows = [x[:, first : first + places] for first in range(width)]
        windows = jnp.concatenate(windows, axis=-1)  # (N, places, width * E)
        y = windows @ kernel.reshape(-1, number).astype(x.dtype)
        # A bias that is the same everywhere may follow the maximum.
        return jax.nn.relu(y.max(axis=1) + bias.astype(x.dtype))

    @nn.nowrap
    def flops(self, length: int, characters: int) -> int:
        """Returns the FLOPs of a row of `length` words of so many characters."""
        total, filters = 0, sum(number for _, number in self.filters)
        for width, number in self.filters:
            places = length * (characters - width + 1)
            total += flops.dense(places, width * self.width, number)
        total += self.num_highways * flops.dense(length, filters, 2 * filters)
        return total + flops.dense(length, filters, self.features)


def _uniform(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Returns values from -0.05 to 0.05, as in the published code."""
    return jax.random.uniform(key, shape, minval=-0.05, maxval=0.05)
