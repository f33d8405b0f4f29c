"""Recurrent cells: the vanilla cell, the gated recurrent unit and long short-term memory.

A cell is a step of a recurrence. The input projection of all positions is computed beforehand. A
cell that `adds_input` to its product "recurrent" takes None where it is that product's bias.
"""

import dataclasses
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.layers.recurrence import Product

# The first array is the output.
State = tuple[Float[Array, "B _"], ...]
Name = Literal["rnn", "gru", "gru_reset_before", "lstm"]


@dataclasses.dataclass(frozen=True)
class Vanilla:
    """h' = tanh(x + h R), or with a rectifier in place of tanh (Elman 1990)."""

    width: int
    nonlinearity: Literal["tanh", "relu"] = "tanh"
    gates: ClassVar[int] = 1
    adds_input: ClassVar[bool] = True
    candidate_bias: ClassVar[bool] = False

    @property
    def state_widths(self) -> tuple[int, ...]:
        """The widths of the arrays of a state, the output's first."""
        return (self.width,)

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """The shapes of the recurrent matrices by name."""
        return {"recurrent": (self.width, self.width)}

    def __call__(
        self, product: Product, x: Float[Array, "B gates F"] | None, state: State
    ) -> State:
        (output,) = state
        z = product("recurrent", output)
        z = z if x is None else x[:, 0] + z
        return (jnp.tanh(z) if self.nonlinearity == "tanh" else jax.nn.relu(z),)


@dataclasses.dataclass(frozen=True)
class GRU:
    """The gated recurrent unit. The gates are reset, update and candidate, in this order.

    The candidate is tanh(x + r * (h R + b)) with `reset_after`, as in torch and cuDNN. Otherwise it
    is tanh(x + (r * h) R) (Cho et al. 2014, section 2.3).
    """

    width: int
    reset_after: bool = True
    gates: ClassVar[int] = 3
    adds_input: ClassVar[bool] = False

    @property
    def candidate_bias(self) -> bool:
        """Whether the recurrent product of the candidate has a bias of its own."""
        return self.reset_after

    @property
    def state_widths(self) -> tuple[int, ...]:
        """The widths of the arrays of a state, the output's first."""
        return (self.width,)

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """The shapes of the recurrent matrices by name."""
        if self.reset_after:
            return {"recurrent": (self.width, 3 * self.width)}
        return {
            "recurrent": (self.width, 2 * self.width),
            "candidate": (self.width, self.width),
        }

    def __call__(self, product: Product, x: Float[Array, "B gates F"], state: State) -> State:
        (output,) = state
        h = product("recurrent", output).reshape(len(x), -1, self.width)
        reset = jax.nn.sigmoid(x[:, 0] + h[:, 0])
        update = jax.nn.sigmoid(x[:, 1] + h[:, 1])
        if self.reset_after:
            candidate = jnp.tanh(x[:, 2] + reset * h[:, 2])
        else:
            candidate = jnp.tanh(x[:, 2] + product("candidate", reset * output))
        return ((1 - update) * candidate + update * output,)


@dataclasses.dataclass(frozen=True)
class LSTM:
    """Long short-term memory (Hochreiter & Schmidhuber 1997; forget gate of Gers et al. 2000).

    The gates are input, forget, candidate and output, in this order. The forget gate has a bias of
    1 beside the parameter: at initialization the cell keeps its content. With a `projection`, the
    output has that width (Sak et al. 2014). `clip` bounds the cell and the projected output.
    """

    width: int
    projection: int | None = None
    clip: float | None = None
    gates: ClassVar[int] = 4
    adds_input: ClassVar[bool] = True
    candidate_bias: ClassVar[bool] = False

    @property
    def state_widths(self) -> tuple[int, ...]:
        """The widths of the arrays of a state, the output's first."""
        return (self.projection or self.width, self.width)

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """The shapes of the recurrent matrices by name."""
        shapes = {"recurrent": (self.state_widths[0], 4 * self.width)}
        if self.projection:
            shapes["projection"] = (self.width, self.projection)
        return shapes

    def __call__(
        self, product: Product, x: Float[Array, "B gates F"] | None, state: State
    ) -> State:
        output, cell = state
        gates = product("recurrent", output).reshape(-1, self.gates, self.width)
        i, f, g, o = jnp.moveaxis(gates if x is None else x + gates, 1, 0)
        cell = jax.nn.sigmoid(f + 1) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
        cell = self._clipped(cell)
        output = jax.nn.sigmoid(o) * jnp.tanh(cell)
        if self.projection:
            output = self._clipped(product("projection", output))
        return output, cell

    def _clipped(self, x):
        return x if self.clip is None else jnp.clip(x, -self.clip, self.clip)


Cell = Vanilla | GRU | LSTM


def make(name: Name, width: int) -> Cell:
    """Returns the cell of this name and width."""
    match name:
        case "rnn":
            return Vanilla(width)
        case "gru":
            return GRU(width)
        case "gru_reset_before":
            return GRU(width, reset_after=False)
        case "lstm":
            return LSTM(width)
    raise ValueError(f"{name!r}: must be one of 'rnn', 'gru', 'gru_reset_before', 'lstm'")


def zero_state(cell: Cell, rows: int, dtype: jnp.dtype) -> State:
    """Returns the state before the first position, zeros (rows, width)."""
    return tuple(jnp.zeros((rows, width), dtype) for width in cell.state_widths)
