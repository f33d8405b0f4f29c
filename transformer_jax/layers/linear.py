"""Affine maps and dropout."""

import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.distributed import sharding
from transformer_jax.layers.parameters import declared


class Linear(nn.Module):
    """y = x W + b over the last axes of x: (B, L, *inputs) -> (B, L, *outputs).

    `inputs` and `outputs` are shapes. `axes` are the logical axes of the kernel, those of the
    inputs first. The kernel (*inputs, *outputs) is float32; the product is computed in `dtype`.
    `head` declares the kernel as an output head, which is no matrix between hidden states.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    axes: tuple[str | None, ...]
    use_bias: bool = True
    head: bool = False
    kernel_init: Callable = nn.initializers.xavier_uniform()
    dtype: jnp.dtype = jnp.float32

    def setup(self):
        # The fans of the initializer are those of the matrix (fan_in, fan_out), not those of the
        # kernel's shape.
        def init(key, shape):
            return self.kernel_init(key, self._fans, jnp.float32).reshape(shape)

        contracted = 0 if self.head else len(self.inputs)
        kernel_init = declared(init, self.axes, decays=True, inputs=contracted)
        self.kernel = self.param("kernel", kernel_init, self.inputs + self.outputs)
        if self.use_bias:
            bias_axes = self.axes[len(self.inputs) :]
            bias_init = declared(nn.initializers.zeros, bias_axes)
            self.bias = self.param("bias", bias_init, self.outputs)

    @property
    def _fans(self) -> tuple[int, int]:
        return math.prod(self.inputs), math.prod(self.outputs)

    def gathered(self) -> Float[Array, "*axes"]:
        """Returns the kernel (*inputs, *outputs) in `dtype`, whole on each device of fsdp."""
        # Gather the kernel over fsdp once. Otherwise the partitioner gathers the kernels of
        # attention again behind their reshape: a tenth of all communication of GPT-3 175B on 64
        # chips.
        axes = [None if axis == "embed" else axis for axis in self.axes]
        return sharding.constrain(self.kernel.astype(self.dtype), *axes)

    def __call__(self, x: Float[Array, "*axes"]) -> Float[Array, "*other"]:
        fan_in, fan_out = self._fans
        matrix = self.gathered().reshape(fan_in, fan_out)
        # Merge batch and length: XLA on CPU differentiates products of (B, L, M) 1.6 times slower.
        # A length that is split over devices cannot be merged.
        batch_shape = x.shape[: x.ndim - len(self.inputs)]
        tokens = batch_shape if sharding.parts("length") > 1 else (math.prod(batch_shape),)
        if tokens == (1,):
            # XLA on CPU would fuse the reshape with the product of a vector, and read the matrix by
            # columns: twenty times slower.
            matrix = jax.lax.optimization_barrier(matrix)
        y = x.astype(self.dtype).reshape(*tokens, fan_in) @ matrix
        if self.use_bias:
            y = y + self.bias.astype(self.dtype).reshape(fan_out)
        return y.reshape(*batch_shape, *self.outputs)


class Dropout(nn.Module):
    """Dropout (Srivastava et al. 2014).

    Sets a fraction `rate` of x to zero and scales the rest by 1 / (1 - rate). The first axis of x
    is the rows of a batch; x that is `shared` belongs to all of them. With `locked`, x is (B, L,
    ...), and its positions L have the same mask (Gal & Ghahramani 2016).
    """

    rate: float
    shared: bool = False
    locked: bool = False

    @nn.compact
    def __call__(self, x: Float[Array, "*axes"], *, train: bool) -> Float[Array, "*axes"]:
        if not train or self.rate == 0:
            return x

        def draw(key, shape):
            return jax.random.bernoulli(key, 1 - self.rate, shape)

        key = self.make_rng("dropout")
        shape = (len(x), 1, *x.shape[2:]) if self.locked else x.shape
        keep = draw(key, shape) if self.shared else sharding.draw_rows(draw, key, shape)
        return jnp.where(keep, x / (1 - self.rate), jnp.zeros_like(x))


def recomputed(f: Callable, x: jax.Array) -> Callable:
    """Returns f, whose backward pass computes f(x) again where x has less than 32 bits.

    The forward pass then keeps x alone. Otherwise a norm keeps three arrays of float32, and GELU
    two arrays of the dtype of x: 28 of 65 GB for BERT large with 256 rows of 128 tokens on a GPU.
    In float32, the usual dtype on a CPU, f is unchanged: time matters more than memory there.
    """
    return f if x.dtype.itemsize >= 4 else jax.checkpoint(f)


def compute_dtype(name: str) -> jnp.dtype:
    """Returns the dtype named by `config.model.dtype`.

    "auto" is bfloat16 on accelerators and float32 on a CPU.
    """
    if name == "auto":
        name = "float32" if sharding.platform() == "cpu" else "bfloat16"
    return jnp.dtype(name)
