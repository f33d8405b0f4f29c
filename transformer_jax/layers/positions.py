"""Positions that reach attention: rotations of queries and keys, and biases of the scores."""

import dataclasses
import math

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from transformer_jax.layers.parameters import declared


@dataclasses.dataclass(frozen=True)
class Rotary:
    """Rotary positions (Su et al. 2021, section 3.2.2).

    The pair of columns i and i + D/2 of a head turns by the angle p / theta^(2i/D) at position p:
    Llama's layout. A `factor` above 1 slows slow rotations down by it, for rows longer than the
    `trained_length`. Rotations that turn at least 4 times in that length keep their rate, and those
    between 1 and 4 times change gradually (Grattafiori et al. 2024; the code of Llama 3.1).
    """

    theta: float = 10_000.0
    factor: float = 1.0
    trained_length: int = 8192

    def rates(self, head_dim: int) -> np.ndarray:
        """Returns the angle of each pair of columns from one position to the next (D/2,)."""
        rates = self.theta ** -(np.arange(0, head_dim, 2, dtype=np.float32) / head_dim)
        turns = self.trained_length * rates / (2 * math.pi)
        unscaled = np.clip((turns - 1) / 3, 0, 1)
        return rates * (unscaled + (1 - unscaled) / self.factor)

    def __call__(
        self, x: Float[Array, "B L H D"], positions: Int[Array, "#B L"]
    ) -> Float[Array, "B L H D"]:
        """Returns the rotated queries or keys. The rotation is computed in float32."""
        angles = positions[..., None] * self.rates(x.shape[-1]).astype(np.float32)  # (B, L, D/2)
        cos = jnp.cos(angles)[:, :, None]
        sin = jnp.sin(angles)[:, :, None]
        first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
        rotated = (first * cos - second * sin, second * cos + first * sin)
        return jnp.concatenate(rotated, axis=-1).astype(x.dtype)


class RelativeBias(nn.Module):
    """A learned bias of the scores by head and distance (Raffel et al. 2020, section 2.1).

    Distances share buckets: half of them are exact, the others grow logarithmically up to
    `max_distance`, and the last one holds all larger distances. Without `causal`, keys behind the
    query have half of the buckets. One table serves all layers of a stack.
    """

    num_heads: int
    causal: bool
    num_buckets: int = 32
    max_distance: int = 128
    table_init: nn.initializers.Initializer = nn.initializers.normal(0.02)

    @nn.compact
    def __call__(self, distance: Int[Array, "#B #Q K"]) -> Float[Array, "#B H #Q K"]:
        """Returns the bias of the scores, float32. A distance is that of `Mask.distance`."""
        init = declared(self.table_init, (None, "heads"), decays=True)
        table = self.param("table", init, (self.num_buckets, self.num_heads), jnp.float32)
        furthest = self.max_distance
        by_distance = table[self.bucket(np.arange(-furthest, furthest + 1))]
        index = jnp.clip(distance, -furthest, furthest) + furthest
        return jnp.moveaxis(jnp.take(by_distance, index, axis=0), -1, 1)

    def bucket(self, distance: Int[np.ndarray, "*B"]) -> Int[np.ndarray, "*B"]:
        """Returns the bucket of each distance from a query back to a key.

        The arithmetic is that of the published code in float32. NumPy computes it, since an
        accelerator's logarithm may be less exact.
        """
        count = self.num_buckets if self.causal else self.num_buckets // 2
        # Later keys have the second half of the buckets.
        offset = 0 if self.causal else count * (distance < 0)
        distance = np.maximum(distance, 0) if self.causal else np.abs(distance)
        exact = count // 2
        # The argument of the logarithm is at least 1 where it is used.
        ratio = (np.maximum(distance, exact) / exact).astype(np.float32)
        growth = np.log(ratio) / np.float32(math.log(self.max_distance / exact))
        coarse = exact + (growth * (count - exact)).astype(np.int32)
        return offset + np.where(distance < exact, distance, np.minimum(coarse, count - 1))


def alibi(distance: Int[Array, "#B #Q K"], num_heads: int) -> Float[Array, "#B H #Q K"]:
    """Returns the bias of ALiBi (Press et al. 2022): minus the distance times the head's slope."""
    bias = -jnp.abs(distance)[:, None].astype(jnp.float32)
    return bias * alibi_slopes(num_heads)[:, None, None]


def alibi_slopes(num_heads: int) -> np.ndarray:
    """Returns the slopes of the heads (H,) float32.

    They are 2^(-8i/H), i = 1..H, for a power of two. Otherwise the remaining heads have every
    second slope of twice the largest power of two below H, as in the published code.
    """
    power = 2 ** int(math.log2(num_heads))
    slopes = 2.0 ** (-8 * np.arange(1, power + 1) / power)
    between = 2.0 ** (-4 * np.arange(1, 2 * power + 1, 2) / power)
    return np.concatenate([slopes, between])[:num_heads].astype(np.float32)
