"""Long short-term memory (Hochreiter & Schmidhuber 1997; forget gate of Gers et al. 2000)."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float

from transformer_jax.layers.linear import Linear
from transformer_jax.layers.parameters import declared

# Output and cell.
State = tuple[Float[Array, "B F"], Float[Array, "B F"]]


class LSTM(nn.Module):
    """x (B, L, M) -> outputs (B, L, features), and the state after the last position.

    The state is (output, cell), both (B, features). Positions that are not `filled` (B, L) are
    padding and leave the state unchanged. With `reverse`, the recurrence therefore starts at the
    last filled position of each row. Where `restarts` (B, L), the state is zero before the
    position.
    """

    features: int
    reverse: bool = False

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B L M"],
        filled: Bool[ArrayLike, "B L"],
        state: State | None = None,
        restarts: Bool[ArrayLike, "B L"] | None = None,
    ) -> tuple[Float[Array, "B L F"], State]:
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
            gates, filled, restarts = inputs
            output, cell = jax.tree.map(lambda x: jnp.where(restarts[:, None], 0, x), state)
            gates = gates + (output @ recurrent).reshape(gates.shape)
            i, f, g, o = jnp.moveaxis(gates, 1, 0)
            # The forget gate has a bias of 1: at initialization the cell keeps its content.
            new_cell = jax.nn.sigmoid(f + 1) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
            new_output = jax.nn.sigmoid(o) * jnp.tanh(new_cell)
            output = jnp.where(filled[:, None], new_output, output)
            cell = jnp.where(filled[:, None], new_cell, cell)
            return (output, cell), output

        if state is None:
            state = (jnp.zeros((len(x), self.features), x.dtype),) * 2
        restarts = jnp.zeros(filled.shape, bool) if restarts is None else restarts
        inputs = (jnp.moveaxis(gates, 1, 0), filled.T, restarts.T)
        state, outputs = jax.lax.scan(step, state, inputs, reverse=self.reverse)
        return jnp.moveaxis(outputs, 0, 1), state
