"""Long short-term memory (Hochreiter & Schmidhuber 1997; forget gate of Gers et al. 2000)."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_jax.layers.linear import Linear
from transformer_jax.layers.parameters import declared


class LSTM(nn.Module):
    """x (B, L, M), filled (B, L) bool -> outputs (B, L, features).

    Positions that are not filled are padding and leave the state unchanged. With `reverse`, the
    recurrence therefore starts at the last filled position of each row.
    """

    features: int
    reverse: bool = False

    @nn.compact
    def __call__(self, x: jax.Array, filled: jax.Array) -> jax.Array:
        # (B, L, 4, features): input gate, forget gate, candidate, output gate
        gates = Linear(
            (x.shape[-1],),
            (4, self.features),
            axes=("embed", None, "mlp"),
            dtype=x.dtype,
            name="input",
        )(x)
        init = declared(nn.initializers.orthogonal(), ("mlp", None), decays=True, inputs=1)
        shape = (self.features, 4 * self.features)
        recurrent = self.param("recurrent", init, shape, jnp.float32).astype(x.dtype)

        def step(state, inputs):
            output, cell = state
            gates, filled = inputs
            gates = gates + (output @ recurrent).reshape(gates.shape)
            i, f, g, o = jnp.moveaxis(gates, 1, 0)
            # The forget gate has a bias of 1: at initialization the cell keeps its content.
            new_cell = jax.nn.sigmoid(f + 1) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
            new_output = jax.nn.sigmoid(o) * jnp.tanh(new_cell)
            output = jnp.where(filled[:, None], new_output, output)
            cell = jnp.where(filled[:, None], new_cell, cell)
            return (output, cell), output

        zeros = jnp.zeros((len(x), self.features), x.dtype)
        inputs = (jnp.moveaxis(gates, 1, 0), filled.T)
        _, outputs = jax.lax.scan(step, (zeros, zeros), inputs, reverse=self.reverse)
        return jnp.moveaxis(outputs, 0, 1)
