"""Layers that an update leaves out at random."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.layers.blocks import Block


class DroppedBlock(Block):
    """A layer that an update leaves out, in all rows, with the probability `rate`.

    It is LayerDrop (Fan et al. 2019): (B, L, M) -> (B, L, M). Nothing is rescaled.
    """

    rate: float = 0.0

    def __call__(
        self, x: Float[Array, "B L M"], *args, train: bool = False, **options
    ) -> Float[Array, "B L M"]:
        y = super().__call__(x, *args, train=train, **options)
        if not train or not self.rate:
            return y
        return jnp.where(jax.random.bernoulli(self.make_rng("dropout"), self.rate), x, y)
