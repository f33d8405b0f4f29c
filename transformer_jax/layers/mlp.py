"""Position-wise feed-forward network."""

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
    # of the second projection; None: kernel_init
    output_init: nn.initializers.Initializer | None = None
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        model, hidden = (x.shape[-1],), (self.d_ff,)
        y = Linear(model, hidden, ("embed", "mlp"), True, self.kernel_init, self.dtype, name="wi")(
            x
        )
        y = sharding.constrain(self.activation(y), "batch", "length", "mlp")
        return Linear(
            hidden,
            model,
            ("mlp", "embed"),
            True,
            self.output_init or self.kernel_init,
            self.dtype,
            name="wo",
        )(y)
