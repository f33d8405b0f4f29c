"""Long short-term memory (Hochreiter & Schmidhuber 1997, with the forget gate of Gers et al. 2000)."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_jax.layers.linear import Linear


class LSTM(nn.Module):
    """x (B, L, M), filled (B, L) bool -> outputs (B, L, features). Padding leaves the state as it
    was, so that `reverse` begins at each row's end.
    """

    features: int
    reverse: bool = False

    @nn.compact
    def __call__(self, x: jax.Array, filled: jax.Array) -> jax.Array:
        # input, forget, candidate, output
        gates = Linear(
            (x.shape[-1],), (4, self.features), ("embed", None, "mlp"), dtype=x.dtype, name="input"
        )(x)
        init = nn.with_logical_partitioning(nn.initializers.orthogonal(), ("mlp", None))
        recurrent = self.param(
            "recurrent", init, (self.features, 4 * self.features), jnp.float32
        ).astype(x.dtype)

        def step(state, at):
            output, cell = state
            gates, filled = at
            i, f, g, o = jnp.moveaxis(gates + (output @ recurrent).reshape(gates.shape), 1, 0)
            # + 1: at first it remembers
            new_cell = jax.nn.sigmoid(f + 1) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
            new = jax.nn.sigmoid(o) * jnp.tanh(new_cell), new_cell
            state = jax.tree.map(
                lambda new, old: jnp.where(filled[:, None], new, old), new, (output, cell)
            )
            return state, state[0]

        zeros = jnp.zeros((len(x), self.features), x.dtype)
        _, outputs = jax.lax.scan(
            step, (zeros, zeros), (jnp.moveaxis(gates, 1, 0), filled.T), reverse=self.reverse
        )
        return jnp.moveaxis(outputs, 0, 1)
