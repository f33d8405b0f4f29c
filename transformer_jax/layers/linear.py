"""Affine maps and dropout."""

import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_jax.distributed import sharding


class Linear(nn.Module):
    """y = x W + b, contracting the last axes of x: (B, L, *inputs) -> (B, L, *outputs).

    `inputs` and `outputs` are shapes, `axes` the logical axes of the kernel (inputs, then outputs).
    The kernel has shape (*inputs, *outputs), float32; the product is computed in `dtype`.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    axes: tuple[str, ...]
    use_bias: bool = True
    kernel_init: Callable = nn.initializers.xavier_uniform()
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        fan_in, fan_out = math.prod(self.inputs), math.prod(self.outputs)

        def init(key, shape):  # as the matrix it is used as, whatever the axes it is kept in
            return self.kernel_init(key, (fan_in, fan_out), jnp.float32).reshape(shape)

        kernel = self.param(
            "kernel", nn.with_logical_partitioning(init, self.axes), self.inputs + self.outputs
        )
        # Gathered over fsdp here, once: else the partitioner gathers attention's kernels again
        # behind their reshape (GPT-3 175B on 64 chips: a tenth of all that is sent).
        kernel = sharding.constrain(
            kernel.astype(self.dtype), *[None if axis == "embed" else axis for axis in self.axes]
        )
        matrix = kernel.reshape(fan_in, fan_out)
        lead = x.shape[: x.ndim - len(self.inputs)]
        # One token axis: XLA on CPU back-propagates (B, L, M) products 1.6 times slower. A split
        # length can't be merged.
        tokens = lead if sharding.parts("length") > 1 else (math.prod(lead),)
        y = x.astype(self.dtype).reshape(*tokens, fan_in) @ matrix
        if self.use_bias:
            bias = self.param(
                "bias",
                nn.with_logical_partitioning(nn.initializers.zeros, self.axes[len(self.inputs) :]),
                self.outputs,
            )
            y = y + bias.astype(self.dtype).reshape(fan_out)
        return y.reshape(*lead, *self.outputs)


class Dropout(nn.Module):
    """Zeroes a fraction `rate` of x and scales the rest by 1 / (1 - rate) (Srivastava et al. 2014)."""

    rate: float

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        if not train or self.rate == 0:
            return x

        def draw(key, shape):
            return jax.random.bernoulli(key, 1 - self.rate, shape)

        keep = sharding.draw_rows(draw, self.make_rng("dropout"), x.shape)
        return jnp.where(keep, x / (1 - self.rate), jnp.zeros_like(x))


def compute_dtype(name: str) -> jnp.dtype:
    """The dtype `config.model.dtype` names; "auto" is bfloat16 on accelerators, float32 on CPU."""
    if name == "auto":
        name = "float32" if sharding.platform() == "cpu" else "bfloat16"
    return jnp.dtype(name)
