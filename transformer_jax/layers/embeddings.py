"""Token and position embeddings."""
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_jax import sharding


class Embed(nn.Module):
    """A table of vectors, (V, M) float32; int32 (B, L) -> `dtype` (B, L, M).

    The table has V rows or more, a `multiple`; those beyond V are zero.
    """

    num_embeddings: int
    features: int
    init: Callable = nn.initializers.normal(0.02)
    axes: tuple[str, str] = ("vocab", "embed")
    dtype: jnp.dtype = jnp.float32
    multiple: int = 1

    def setup(self):
        def init(key, shape):
            return jnp.pad(self.init(key, shape), ((0, -shape[0] % self.multiple), (0, 0)))

        self.embedding = self.param("embedding", nn.with_logical_partitioning(init, self.axes), (self.num_embeddings, self.features))

    def __call__(self, ids: jax.Array) -> jax.Array:
        # whole vectors: looking up rows that are split over fsdp would make XLA replicate the result
        vectors = sharding.constrain(self.embedding.astype(self.dtype), self.axes[0], None)
        return sharding.constrain(jnp.take(vectors, ids, axis=0), "batch", "length", None)

    def table(self) -> jax.Array:
        """The whole table, for an output projection tied to it."""
        return self.embedding


class Bias(nn.Module):
    """A vector that is learned, (V,) float32, beginning with zeros."""

    size: int
    axis: str

    @nn.compact
    def __call__(self) -> jax.Array:
        return self.param("bias", nn.with_logical_partitioning(nn.initializers.zeros, (self.axis,)), (self.size,))


def sinusoids(positions: jax.Array, features: int) -> jax.Array:
    """sin(p / 10000^(2i/M)) in the even columns, cos in the odd ones (Vaswani et al. 2017, section 3.5).

    int32 (B, L) -> float32 (B, L, M).
    """
    rates = 10_000.0 ** (-jnp.arange(0, features, 2) / features)
    angles = positions[..., None] * rates
    return jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1).reshape(*positions.shape, -1)[..., :features]
