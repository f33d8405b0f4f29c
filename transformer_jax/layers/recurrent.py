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

    With `all_states`, the second value is the state after each position, arrays (B, L, width).
    Positions that are not `filled` (B, L) are padding and leave the state unchanged. With
    `reverse`, the recurrence therefore starts at the last filled position of each row. Where
    `restarts` (B, L), the state is zero before the position.
    """

    cell: Cell
    reverse: bool = False
    all_states: bool = False
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
    ) -> tuple[Float[Array, "B L F"], tuple]:
        # Positions in front, before the gates make the array larger.
        x = jnp.moveaxis(x, 1, 0)  # (L, B, M)
        restarts = jnp.zeros(filled.shape, bool) if restarts is None else restarts
        masks = (jnp.asarray(filled).T, jnp.asarray(restarts).T)
        if self.reverse:
            x, masks = jax.tree.map(partial(jnp.flip, axis=0), (x, masks))
        projected = Linear(
            (x.shape[-1],),
            (self.cell.gates, self.cell.width),
            axes=("embed", None, "mlp"),
            dtype=x.dtype,
            name="input",
        )(x)  # (L, B, gates, width)
        weights = recurrent_weights(self, self.cell, x.dtype)
        dropout = Dropout(self.weight_dropout, shared=True)
        weights = {
            name: (dropout(matrix, train=train), bias) for name, (matrix, bias) in weights.items()
        }
        if state is None:
            state = zero_state(self.cell, x.shape[1], x.dtype)
        if self.cell.adds_input:
            matrix, _ = weights["recurrent"]
            weights["recurrent"] = matrix, projected.reshape(*projected.shape[:2], -1)
            projected = None
        step = partial(self._step, self.cell)
        states, last = recur(step, weights, (), (projected, masks), state)
        if self.reverse:
            states = jax.tree.map(partial(jnp.flip, axis=0), states)
        states = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), states)
        return (states[0], states) if self.all_states else (states, last)

    @property
    def _step(self):
        return whole_step if self.all_states else masked_step


def recurrent_weights(
    module: nn.Module, cell: Cell, dtype: jnp.dtype, *, ending: str = ""
) -> Weights:
    """Declares the recurrent matrices of a cell as parameters of a module, and returns them.

    `ending` is that of the parameters' names.
    """
    weights = {}
    for name, shape in cell.matrices.items():
        init = declared(nn.initializers.orthogonal(), ("mlp", None), decays=True, inputs=1)
        matrix = module.param(name + ending, init, shape, jnp.float32)
        weights[name] = (jnp.asarray(matrix, dtype), None)
    if cell.candidate_bias:
        init = declared(nn.initializers.zeros, ("mlp",))
        bias = module.param("candidate_bias" + ending, init, (cell.width,), jnp.float32)
        bias = bias.astype(dtype)
        others = (cell.gates - 1) * cell.width
        weights["recurrent"] = (weights["recurrent"][0], jnp.pad(bias, (others, 0)))
    return weights


def masked_step(cell: Cell, product: Product, shared: tuple, position: tuple, state: State):
    """A step of a cell. Padding leaves the state unchanged, and a restart begins with zeros."""
    after, _ = whole_step(cell, product, shared, position, state)
    return after, after[0]


def whole_step(cell: Cell, product: Product, shared: tuple, position: tuple, state: State):
    """As `masked_step`. The output of the step is its state."""
    x, (filled, restarts) = position
    state = jax.tree.map(lambda s: jnp.where(restarts[:, None], 0, s), state)
    after = cell(product, x, state)
    after = jax.tree.map(lambda new, old: jnp.where(filled[:, None], new, old), after, state)
    return after, after


class Bidirectional(nn.Module):
    """x (B, L, M) -> the outputs of both directions (B, L, D = 2 F), and both last states.

    The last state of the second direction is that of the first position of a row. With
    `all_states`, the states are those after each position, arrays (B, L, width). Where `begins`
    (B, L), a text begins in a packed row, and where `ends` (B, L), one ends.
    """

    cell: Cell
    all_states: bool = False

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B L M"],
        filled: Bool[ArrayLike, "B L"],
        states: tuple[State | None, State | None] = (None, None),
        begins: Bool[ArrayLike, "B L"] | None = None,
        ends: Bool[ArrayLike, "B L"] | None = None,
    ) -> tuple[Float[Array, "B L D"], tuple]:
        one = partial(Unidirectional, self.cell, all_states=self.all_states)
        forward, backward = one(name="forward"), one(reverse=True, name="backward")
        left, last = forward(x, filled, states[0], begins)
        right, first = backward(x, filled, states[1], ends)
        return jnp.concatenate([left, right], axis=-1), (last, first)


class Stack(nn.Module):
    """Layers of one cell, with dropout between them: x (B, L, M) -> outputs (B, L, F), states.

    The states are those of the layers, in their order; a bidirectional layer has a pair. They are
    the last ones, or with `all_states` those after each position. Layers from the second on add
    their input to their output where `residual`.
    """

    cell: Cell
    num_layers: int
    bidirectional: bool = False
    dropout: float = 0.0
    residual: bool = False
    all_states: bool = False

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
                both = Bidirectional(self.cell, self.all_states, name=name)
                y, after = both(x, filled, before, begins, ends)
            else:
                before = None if states is None else states[layer]
                one = Unidirectional(self.cell, all_states=self.all_states, name=name)
                y, after = one(x, filled, before, begins)
            x = x + y if self.residual and layer else y
            if layer + 1 < self.num_layers:
                x = Dropout(self.dropout)(x, train=train)
            last.append(after)
        return x, tuple(last)
