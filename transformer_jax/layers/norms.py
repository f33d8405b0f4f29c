"""Layer normalization and its variant without a mean, computed in float32."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.layers.linear import recomputed
from transformer_jax.layers.parameters import declared


class LayerNorm(nn.Module):
    """Layer normalization over the last axis (Ba et al. 2016): (..., M) -> (..., M).

    The computation is in float32; the result has the dtype of x.
    """

    epsilon: float = 1e-6

    @nn.compact
    def __call__(self, x: Float[Array, "*batch M"]) -> Float[Array, "*batch M"]:
        shape = (x.shape[-1],)
        scale_init = declared(nn.initializers.ones, ("norm",))
        bias_init = declared(nn.initializers.zeros, ("norm",))
        scale = self.param("scale", scale_init, shape)  # (M,)
        bias = self.param("bias", bias_init, shape)  # (M,)
        return recomputed(_layer_norm, x)(x, scale, bias, self.epsilon)


class RMSNorm(nn.Module):
    """Root mean square normalization (Zhang & Sennrich 2019): (..., M) -> (..., M).

    It divides by the root mean square of the last axis, and has no bias. The computation is in
    float32; the result has the dtype of x.
    """

    epsilon: float = 1e-6

    @nn.compact
    def __call__(self, x: Float[Array, "*batch M"]) -> Float[Array, "*batch M"]:
        init = declared(nn.initializers.ones, ("norm",))
        scale = self.param("scale", init, (x.shape[-1],))  # (M,)
        return recomputed(_rms_norm, x)(x, scale, self.epsilon)


def _layer_norm(x, scale, bias, epsilon):
    y = x.astype(jnp.float32)
    y = y - y.mean(axis=-1, keepdims=True)
    variance = jnp.square(y).mean(axis=-1, keepdims=True)
    y = y * jax.lax.rsqrt(variance + epsilon)
    return (y * scale + bias).astype(x.dtype)


def _rms_norm(x, scale, epsilon):
    y = x.astype(jnp.float32)
    y = y * jax.lax.rsqrt(jnp.square(y).mean(axis=-1, keepdims=True) + epsilon)
    return (y * scale).astype(x.dtype)
