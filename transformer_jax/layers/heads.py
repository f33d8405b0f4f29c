"""What is put on a pre-trained model for a task of its own."""
import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_jax.layers.linear import Dropout, Linear


class Head(nn.Module):
    """One affine map behind dropout: (..., M) -> float32 (..., features)."""

    features: int
    dropout: float = 0.0
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
        x = Dropout(self.dropout)(x, train=train)
        return Linear((x.shape[-1],), (self.features,), ("embed", None), self.use_bias, nn.initializers.truncated_normal(0.02), x.dtype, name="out")(x).astype(jnp.float32)
