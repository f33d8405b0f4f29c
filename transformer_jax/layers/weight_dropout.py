"""Dropout of attention weights, as a function of the place of a weight.

Whether a weight is kept depends on a seed of its row and head, and on the numbers of its query and
key, by integer operations alone. A kernel that never has all weights in memory computes the same
mask block by block, in the forward and in the backward pass, on any mesh.
"""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, UInt32

from transformer_jax.distributed import sharding


@struct.dataclass
class WeightDropout:
    """Sets a fraction `rate` of the weights to zero and scales the rest by 1 / (1 - rate)."""

    seeds: UInt32[Array, "B H 2"]
    rate: float = struct.field(pytree_node=False)

    def __call__(
        self,
        weights: Float[Array, "B H Q K"],
        queries: Int[Array, "#B Q"] | None = None,
        keys: Int[Array, "#B K"] | None = None,
    ) -> Float[Array, "B H Q K"]:
        """Returns the weights after dropout.

        `queries` and `keys` are their numbers, by default their places.
        """
        queries = jnp.arange(weights.shape[2])[None] if queries is None else queries
        keys = jnp.arange(weights.shape[3])[None] if keys is None else keys
        return self.by_numbers(weights, queries[:, None, :, None], keys[:, None, None, :])

    def by_numbers(
        self,
        weights: Float[Array, "B H *S"],
        queries: Int[Array, "#B #H *#S"],
        keys: Int[Array, "#B #H *#S"],
    ) -> Float[Array, "B H *S"]:
        """Returns weights of any further axes after dropout, by the numbers of query and key."""
        seeds = self.seeds.reshape(*self.seeds.shape[:2], *[1] * (weights.ndim - 2), 2)
        keep = is_kept((seeds[..., 0], seeds[..., 1]), queries, keys, self.rate)
        return jnp.where(keep, weights / (1 - self.rate), 0.0)

    def repeated(self, count: int) -> "WeightDropout":
        """Returns the dropout of rows each of which has become so many."""
        return self if count == 1 else self.replace(seeds=jnp.repeat(self.seeds, count, axis=0))

    def of_heads(self, heads: slice) -> "WeightDropout":
        """Returns the dropout of some of the heads."""
        return self.replace(seeds=self.seeds[:, heads])


def drawn(key: jax.Array, rate: float, batch: int, heads: int) -> WeightDropout:
    """Returns the dropout of a layer in a step, with a seed for each row of the batch and head."""
    return WeightDropout(sharding.draw_rows(jax.random.bits, key, (batch, heads, 2)), rate)


def is_kept(
    seeds: tuple[UInt32[Array, "*#S"], UInt32[Array, "*#S"]],
    queries: Int[Array, "*#Q"],
    keys: Int[Array, "*#K"],
    rate: float,
) -> Bool[Array, "*S"]:
    """Returns True with probability 1 - rate for each query and key."""
    by_query = _mixed(queries.astype(jnp.uint32) ^ seeds[0])
    # An odd factor, 2^32 / golden ratio, spreads successive keys over all bits.
    by_key = keys.astype(jnp.uint32) * jnp.uint32(0x9E3779B9) + seeds[1]
    return _mixed(by_query ^ by_key) >= jnp.uint32(round(rate * 2**32))


def _mixed(x: UInt32[Array, "*S"]) -> UInt32[Array, "*S"]:
    """Returns a bijection of 32 bits in which each bit of the result depends on all bits of x.

    The constants are those of lowbias32 (https://nullprogram.com/blog/2018/07/31/).
    """
    x = (x ^ (x >> jnp.uint32(16))) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> jnp.uint32(15))) * jnp.uint32(0x846CA68B)
    return x ^ (x >> jnp.uint32(16))
