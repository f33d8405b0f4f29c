"""Token and position embeddings."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.config import UserError
from transformer_jax.distributed import sharding


class Embed(nn.Module):
    """A table of vectors, (V, M) float32; int32 (B, L) -> `dtype` (B, L, M).

    The table has V rows or more, a `multiple`; those beyond V are zero. Raises UserError for an id
    that is not below V. Within jax.jit ids are not known, and the vector of such an id is NaN.
    """

    num_embeddings: int
    features: int
    init: Callable = nn.initializers.normal(0.02)
    axes: tuple[str, str] = ("vocab", "embed")
    dtype: jnp.dtype = jnp.float32
    multiple: int = 1
    key: str = "vocab_size"  # of config.model: the one that says V

    def setup(self):
        def init(key, shape):
            return jnp.pad(self.init(key, shape), ((0, -shape[0] % self.multiple), (0, 0)))

        self.embedding = self.param(
            "embedding",
            nn.with_logical_partitioning(init, self.axes),
            (self.num_embeddings, self.features),
        )

    def __call__(self, ids: jax.Array) -> jax.Array:
        if not isinstance(ids, jax.core.Tracer):
            check_ids(np.asarray(ids), self.num_embeddings, self.key)
        # Each device looks its columns of the table up for all rows, then rows and columns change
        # places: what a batch asks of a table is far less than all of it. Gradients are summed in
        # float32.
        columns = jnp.take(
            self.embedding, sharding.constrain(ids, "lookup", "length"), axis=0
        ).astype(self.dtype)
        return sharding.constrain(
            sharding.constrain(columns, "lookup", "length", self.axes[1]), "batch", "length", None
        )

    def table(self) -> jax.Array:
        """The whole table, for an output projection tied to it."""
        return self.embedding


def check_ids(ids: np.ndarray, count: int, key: str = "vocab_size") -> None:
    """Raises UserError for an id that is not from 0 to count - 1, where config.model.KEY=count."""
    wrong = ids[(ids < 0) | (ids >= count)]
    if wrong.size:
        raise UserError(
            f"the id {wrong[0]} is not from 0 to {count - 1} (config.model.{key}={count})"
        )


def row_positions(tokens: jax.Array, max_length: int) -> jax.Array:
    """The positions 0, 1, ... of each row (B, L). Raises UserError for an L above max_length."""
    length = tokens.shape[1]
    if length > max_length:
        raise UserError(
            f"a row has {length} tokens: the model has positions for "
            f"config.model.max_length={max_length}"
        )
    return jnp.broadcast_to(jnp.arange(length), tokens.shape)


class Bias(nn.Module):
    """A vector that is learned, (V,) float32, beginning with zeros."""

    size: int
    axis: str

    @nn.compact
    def __call__(self) -> jax.Array:
        return self.param(
            "bias", nn.with_logical_partitioning(nn.initializers.zeros, (self.axis,)), (self.size,)
        )


def sinusoids(positions: jax.Array, features: int) -> jax.Array:
    """sin(p / 10000^(2i/M)) in the even columns, cos in the odd ones (Vaswani et al. 2017, section
    3.5).

    int32 (B, L) -> float32 (B, L, M).
    """
    rates = 10_000.0 ** (-jnp.arange(0, features, 2) / features)
    angles = positions[..., None] * rates
    return jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1).reshape(*positions.shape, -1)[
        ..., :features
    ]
