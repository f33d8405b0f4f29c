"""The position-wise feed-forward network."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.distributed import sharding
from transformer_jax.layers import activations
from transformer_jax.layers.linear import Dropout, Linear, recomputed


class MLP(nn.Module):
    """activation(x W1 + b1) W2 + b2 (Vaswani et al. 2017, section 3.3): (B, L, M) -> (B, L, M).

    With `gated` it is (activation(x W1 + b1) * (x V + c)) W2 + b2 (Shazeer 2020): SwiGLU with
    jax.nn.silu, GEGLU with jax.nn.gelu.
    """

    d_ff: int
    activation: Callable[[jax.Array], jax.Array] = jax.nn.relu
    gated: bool = False
    use_bias: bool = True
    kernel_init: nn.initializers.Initializer = nn.initializers.xavier_uniform()
    # Initializer of the last kernel; None: kernel_init.
    output_init: nn.initializers.Initializer | None = None
    dropout: float = 0.0  # on the hidden layer
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "B L M"], *, train: bool = False) -> Float[Array, "B L M"]:
        y = self._hidden("wi", x)  # (B, L, F)
        y = recomputed(self.activation, y)(y)
        if self.gated:
            y = y * self._hidden("wv", x)
        y = sharding.constrain(y, "batch", "length", "mlp")
        y = activations.named(self, "hidden", y)
        y = Dropout(self.dropout)(y, train=train)
        output = Linear(
            (self.d_ff,),
            (x.shape[-1],),
            axes=("mlp", "embed"),
            use_bias=self.use_bias,
            kernel_init=self.output_init or self.kernel_init,
            dtype=self.dtype,
            name="wo",
        )
        return output(y)

    def _hidden(self, name: str, x: Float[Array, "B L M"]) -> Float[Array, "B L F"]:
        """Projects x to the width of the hidden layer."""
        projection = Linear(
            (x.shape[-1],),
            (self.d_ff,),
            axes=("embed", "mlp"),
            use_bias=self.use_bias,
            kernel_init=self.kernel_init,
            dtype=self.dtype,
            name=name,
        )
        return projection(x)
