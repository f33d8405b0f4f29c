"""What is put on a pre-trained model for a task of its own."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_jax.layers.linear import Dropout, Linear
from transformer_jax.layers.lstm import LSTM


class Head(nn.Module):
    """One affine map behind dropout, in float32, where bfloat16 would have scores tie: (..., M) ->
    float32 (..., features).
    """

    features: int
    dropout: float = 0.0
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
        x = Dropout(self.dropout)(x, train=train).astype(jnp.float32)
        return Linear(
            (x.shape[-1],),
            (self.features,),
            ("embed", None),
            self.use_bias,
            nn.initializers.truncated_normal(0.02),
            name="out",
        )(x)


class RecurrentHead(nn.Module):
    """A two-layer bidirectional LSTM on the states of several layers (Devlin et al. 2018, section
    5.3): (layers, B, L, M), filled (B, L) -> float32 (B, L, features).

    The states are concatenated, or summed with learned weights that add up to 1.
    """

    features: int
    concatenate: bool = False
    width: int = 768  # of both directions together
    dropout: float = 0.0

    @nn.compact
    def __call__(self, states: jax.Array, filled: jax.Array, *, train: bool = False) -> jax.Array:
        if self.concatenate:
            x = jnp.concatenate(list(states), axis=-1)
        else:
            weights = self.param(
                "weights",
                nn.with_logical_partitioning(nn.initializers.zeros, (None,)),
                (len(states),),
            )
            x = jnp.einsum("s,sblm->blm", jax.nn.softmax(weights).astype(states.dtype), states)
        for layer in range(2):
            ways = [
                LSTM(
                    self.width // 2,
                    reverse,
                    name=f"lstm_{layer}_{'backward' if reverse else 'forward'}",
                )(x, filled)
                for reverse in (False, True)
            ]
            x = jnp.concatenate(ways, axis=-1)
        return Head(self.features, self.dropout, name="tags")(x, train=train)
