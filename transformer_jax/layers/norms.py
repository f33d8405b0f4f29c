"""Layer normalisation, in float32 whatever the compute dtype."""

import flax.linen as nn
import jax
import jax.numpy as jnp


class LayerNorm(nn.Module):
    """Layer normalisation with scale and bias over the last axis (Ba et al. 2016): (..., M) ->
    (..., M), dtype of x.
    """

    epsilon: float = 1e-6

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        size = (x.shape[-1],)
        scale = self.param(
            "scale", nn.with_logical_partitioning(nn.initializers.ones, ("norm",)), size
        )
        bias = self.param(
            "bias", nn.with_logical_partitioning(nn.initializers.zeros, ("norm",)), size
        )
        y = x.astype(jnp.float32)
        y = y - y.mean(axis=-1, keepdims=True)
        y = y * jax.lax.rsqrt(jnp.square(y).mean(axis=-1, keepdims=True) + self.epsilon)
        return (y * scale + bias).astype(x.dtype)
