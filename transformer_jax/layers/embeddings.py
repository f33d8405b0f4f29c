"""Embeddings of tokens and positions."""

from collections.abc import Callable
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from transformer_jax.config import UserError
from transformer_jax.distributed import sharding
from transformer_jax.layers.outputs import Projection
from transformer_jax.layers.parameters import declared
from transformer_jax.losses import NO_TOKEN

# The kinds of positions that a model defines up to its `max_length`.
BOUNDED = ("learned", "normalized", "binary")


class Embed(nn.Module):
    """A table of vectors (V, M) float32: int32 ids (B, L) -> `dtype` (B, L, M).

    The number of rows of the table is V, rounded up to a multiple of `multiple`. The additional
    rows are zero. Raises UserError for an id outside [0, V). Under jax.jit the ids are not known:
    the vector of such an id is NaN. The vector of id i is row i + `offset`, and the first rows
    belong to no id.
    """

    num_embeddings: int
    features: int
    init: Callable = nn.initializers.normal(0.02)
    axes: tuple[str | None, str] = ("vocab", "embed")
    dtype: jnp.dtype = jnp.float32
    multiple: int = 1
    offset: int = 0
    key: str = "vocab_size"  # the key of config.model that sets V, for error messages

    def setup(self):
        def init(key, shape):
            return jnp.pad(self.init(key, shape), ((0, -shape[0] % self.multiple), (0, 0)))

        init = declared(init, self.axes, decays=True)
        self.embedding = self.param(
            "embedding", init, (self.offset + self.num_embeddings, self.features)
        )

    def __call__(self, ids: Int[ArrayLike, "B L"]) -> Float[Array, "B L M"]:
        if not isinstance(ids, jax.core.Tracer):
            check_ids(np.asarray(ids), self.num_embeddings, self.key)
        # Each device looks up its own columns of the table for all rows. Then rows and columns are
        # exchanged. The vectors of a batch are much smaller than the table. The gradients of the
        # table are summed in float32.
        ids = sharding.constrain(ids + self.offset, "lookup", "length")
        x = jnp.take(self.embedding, ids, axis=0).astype(self.dtype)  # (B, L, M)
        x = sharding.constrain(x, "lookup", "length", self.axes[1])
        return sharding.constrain(x, "batch", "length", None)

    def table(self) -> Float[ArrayLike, "V M"]:
        """Returns the table, for an output projection tied to it."""
        return self.embedding

    def output(self) -> Projection:
        """Returns an output projection tied to the table; its bias excludes the additional rows."""
        rows = self.embedding.shape[0]
        if rows == self.num_embeddings:
            return Projection(self.embedding)
        is_token = jnp.arange(rows) < self.num_embeddings
        return Projection(self.embedding, jnp.where(is_token, 0.0, NO_TOKEN))


def check_ids(ids: Int[np.ndarray, "*axes"], count: int, key: str = "vocab_size") -> None:
    """Raises UserError for an id outside [0, count), where config.model.KEY=count."""
    invalid = ids[(ids < 0) | (ids >= count)]
    if invalid.size:
        raise UserError(
            f"the id {invalid[0]} is not from 0 to {count - 1} (config.model.{key}={count})"
        )


def row_positions(tokens: Int[ArrayLike, "B L"], max_length: int) -> Int[Array, "B L"]:
    """Returns the positions 0, 1, ... of each row. Raises UserError if L > max_length."""
    length = tokens.shape[1]
    if length > max_length:
        raise UserError(
            f"a row has {length} tokens: must be at most config.model.max_length={max_length}"
        )
    return jnp.broadcast_to(jnp.arange(length), tokens.shape)


class Bias(nn.Module):
    """A learned vector (V,) float32, initialized to zeros."""

    size: int
    axis: str

    @nn.compact
    def __call__(self) -> Float[ArrayLike, " V"]:
        init = declared(nn.initializers.zeros, (self.axis,))
        return self.param("bias", init, (self.size,))


def sinusoids(positions: Int[ArrayLike, "*B"], features: int) -> Float[Array, "*B M"]:
    """Sinusoidal encodings (Vaswani et al. 2017, section 3.5): int32 (...) -> float32 (..., M).

    Column 2i holds sin(p / 10000^(2i/M)), column 2i + 1 holds cos(p / 10000^(2i/M)).
    """
    rates = 10_000.0 ** (-jnp.arange(0, features, 2) / features)  # (M / 2,)
    angles = positions[..., None] * rates
    pairs = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1)  # (B, L, M / 2, 2)
    return pairs.reshape(*positions.shape, -1)[..., :features]


def position_codes(
    kind: Literal["sinusoidal", "index", "normalized", "binary"],
    positions: Int[ArrayLike, "*B"],
    features: int,
    max_length: int,
) -> Float[Array, "*B M"]:
    """Returns vectors of positions that no training changes: int32 (...) -> float32 (..., M).

    Each column of position p holds p, or p / max_length where it is normalized. Column i of the
    binary code holds bit i of p, from the lowest; where the bits of max_length - 1 end, the next
    column begins with the lowest again.
    """
    if kind == "sinusoidal":
        return sinusoids(positions, features)
    columns = jnp.broadcast_to(positions[..., None], (*positions.shape, features))
    if kind == "binary":
        columns = columns >> jnp.arange(features) % max((max_length - 1).bit_length(), 1) & 1
    codes = columns.astype(jnp.float32)
    return codes / max_length if kind == "normalized" else codes
