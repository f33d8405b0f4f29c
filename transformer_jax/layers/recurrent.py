"""Recurrent layers: one direction, both directions, and stacks of them."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float

from transformer_jax.layers.cells import Cell, State, zero_state
from transformer_jax.layers.linear import Dropout, Linear
from transformer_jax.layers.parameters import declared
from transformer_jax.layers.recurrence import Product, Weights, recur


class Unidirectional(nn.Module):
    """x (B, L, M) -> the cell's outputs (B, L, F), and the state after the last position.

    Positions that are not `filled` (B, L) are padding and leave the state unchanged. With
    `reverse`, the recurrence therefore starts at the last filled position of each row. Where
    `restarts` (B, L), the state is zero before the position.
    """

    cell: Cell
    reverse: bool = False
    weight_dropout: float = 0.0  # of the recurrent matrices, once for all positions

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B L M"],
        filled: Bool[ArrayLike, "B L"],
        state: State | None = None,
        restarts: Bool[ArrayLike, "B L"] | None = None,
        *,
        train: bool = False,
    ) -> tuple[Float[Array, "B L F"], State]:
        projected = Linear(
            (x.shape[-1],),
            (self.cell.gates, self.cell.width),
            axes=("embed", None, "mlp"),
            dtype=x.dtype,
            name="input",
        )(x)  # (B, L, gates, width)
        weights = recurrent_weights(self, self.cell, x.dtype)
        dropout = Dropout(self.weight_dropout, shared=True)
        weights = {
            name: (dropout(matrix, train=train), bias) for name, (matrix, bias) in weights.items()
        }
        if state is None:
            state = zero_state(self.cell, len(x), x.dtype)
        restarts = jnp.zeros(filled.shape, bool) if restarts is None else restarts
        masks = (jnp.asarray(filled).T, jnp.asarray(restarts).T)
        positions = (jnp.moveaxis(projected, 1, 0), masks)
        if self.reverse:
            positions = jax.tree.map(partial(jnp.flip, axis=0), positions)
        outputs, state = recur(partial(masked_step, self.cell), weights, (), positions, state)
        outputs = jnp.flip(outputs, axis=0) if self.reverse else outputs
        return jnp.moveaxis(outputs, 0, 1), state


def recurrent_weights(module: nn.Module, cell: Cell, dtype: jnp.dtype) -> Weights:
    """Declares the recurrent matrices of a cell as parameters of a module, and returns them."""
    weights = {}
    for name, shape in cell.matrices.items():
        init = declared(nn.initializers.orthogonal(), ("mlp", None), decays=True, inputs=1)
        weights[name] = (module.param(name, init, shape, jnp.float32).astype(dtype), None)
    if cell.candidate_bias:
        init = declared(nn.initializers.zeros, ("mlp",))
        bias = module.param("candidate_bias", init, (cell.width,), jnp.float32).astype(dtype)
        others = (cell.gates - 1) * cell.width
        weights["recurrent"] = (weights["recurrent"][0], jnp.pad(bias, (others, 0)))
    return weights


def masked_step(cell: Cell, product: Product, shared: tuple, position: tuple, state: State):
    """A step of a cell. Padding leaves the state unchanged, and a restart begins with zeros."""
    x, (filled, restarts) = position
    state = jax.tree.map(lambda s: jnp.where(restarts[:, None], 0, s), state)
    after = cell(product, x, state)
    after = jax.tree.map(lambda new, old: jnp.where(filled[:, None], new, old), after, state)
    return after, after[0]


class Bidirectional(nn.Module):
    """x (B, L, M) -> the outputs of both directions (B, L, D = 2 F), and both last states.

    The last state of the second direction is that of the first position of a row. Where `begins`
    (B, L), a text begins in a packed row, and where `ends` (B, L), one ends.
    """

    cell: Cell

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B L M"],
        filled: Bool[ArrayLike, "B L"],
        states: tuple[State | None, State | None] = (None, None),
        begins: Bool[ArrayLike, "B L"] | None = None,
        ends: Bool[ArrayLike, "B L"] | None = None,
    ) -> tuple[Float[Array, "B L D"], tuple[State, State]]:
        forward = Unidirectional(self.cell, name="forward")
        backward = Unidirectional(self.cell, reverse=True, name="backward")
        left, last = forward(x, filled, states[0], begins)
        right, first = backward(x, filled, states[1], ends)
        return jnp.concatenate([left, right], axis=-1), (last, first)


class Stack(nn.Module):
    """Layers of one cell, with dropout between them: x (B, L, M) -> outputs (B, L, F), states.

    The states are those of the layers, in their order; a bidirectional layer has a pair. Layers
    from the second on add their input to their output where `residual`.
    """

    cell: Cell
    num_layers: int
    bidirectional: bool = False
    dropout: float = 0.0
    residual: bool = False

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B L M"],
        filled: Bool[ArrayLike, "B L"],
        states: tuple | None = None,
        begins: Bool[ArrayLike, "B L"] | None = None,
        ends: Bool[ArrayLike, "B L"] | None = None,
        *,
        train: bool = False,
    ) -> tuple[Float[Array, "B L F"], tuple]:
        last = []
        for layer in range(self.num_layers):
            name = f"layer_{layer}"
            if self.bidirectional:
                before = (None, None) if states is None else states[layer]
                y, after = Bidirectional(self.cell, name=name)(x, filled, before, begins, ends)
            else:
                before = None if states is None else states[layer]
                y, after = Unidirectional(self.cell, name=name)(x, filled, before, begins)
            x = x + y if self.residual and layer else y
            if layer + 1 < self.num_layers:
                x = Dropout(self.dropout)(x, train=train)
            last.append(after)
        return x, tuple(last)
