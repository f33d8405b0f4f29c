"""The position-wise feed-forward network."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_jax.distributed import sharding
from transformer_jax.layers.linear import Linear


class MLP(nn.Module):
    """activation(x W1 + b1) W2 + b2 (Vaswani et al. 2017, section 3.3): (B, L, M) -> (B, L, M)."""

    d_ff: int
    activation: Callable[[jax.Array], jax.Array] = jax.nn.relu
    kernel_init: nn.initializers.Initializer = nn.initializers.xavier_uniform()
    # Initializer of the second kernel; None: kernel_init.
    output_init: nn.initializers.Initializer | None = None
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        model = (x.shape[-1],)
        hidden = (self.d_ff,)
        first = Linear(
            model,
            hidden,
            axes=("embed", "mlp"),
            kernel_init=self.kernel_init,
            dtype=self.dtype,
            name="wi",
        )
        second = Linear(
            hidden,
            model,
            axes=("mlp", "embed"),
            kernel_init=self.output_init or self.kernel_init,
            dtype=self.dtype,
            name="wo",
        )
        y = self.activation(first(x))  # (B, L, F)
        y = sharding.constrain(y, "batch", "length", "mlp")
        return second(y)
