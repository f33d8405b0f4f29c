"""Recurrences, cells and recurrent layers, and dropout of attention weights."""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, ArrayLike, Bool, Float, Int, UInt32

from transformer_jax.distributed import sharding
from transformer_jax.layers.parameters import Dropout, Linear, declared

# --------------------------------------------------------------------------------------------------
# A recurrence that computes the gradient of each weight matrix as one product over all steps.
#
# Differentiating `jax.lax.scan` would compute and accumulate this gradient in every step. Here the
# backward pass saves the two factors of the gradient and multiplies them once for all steps.

Weights = Mapping[str, tuple[Float[Array, "I O"], Float[Array, "*L O"] | None]]
Product = Callable[[str, Float[Array, "*B I"]], Float[Array, "*B O"]]
Step = Callable[[Product, Any, tuple[Any, Any], Any], tuple[Any, Any]]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def recur(
    step: Step, weights: Weights, shared: Any, positions: tuple[Any, Any], state: Any
) -> tuple[Any, Any]:
    """Applies a step to each position in turn. Returns the outputs (L, ...) and the last state.

    Args:
      step: a hashable function of `product`, `shared`, the inputs and masks of a position, and the
        state before it. It returns the state after the position and the output. `product(name, x)`
        is x W + b with the weights of that name, each of which a step uses once.
      weights: the matrices (I, O) of `product` by name, each with a bias (O,), a bias for each
        position (L, *B, O), or None. An input that is added to a product should be passed as its
        bias for each position, because it then takes no memory beside the product.
      shared: a tree of arrays that all steps read, such as the keys of attention.
      positions: inputs and masks, two trees of arrays (L, ...). A mask has no gradient.
      state: a tree of arrays, the state before the first position.
    """
    return _forward(step, weights, shared, positions, state)[0]


def _forward(step, weights, shared, positions, state):
    biases = {name: bias for name, (_, bias) in weights.items() if bias is not None}
    position_biases = {name: bias for name, bias in biases.items() if bias.ndim > 1}

    def one(state, position):
        position, position_bias = position
        bias_by_name = biases | position_bias
        products = {}

        def product(name, x):
            products[name] = x @ weights[name][0]
            if name in bias_by_name:
                products[name] += bias_by_name[name]
            return products[name]

        after, output = step(product, shared, position, state)
        return after, (output, state, products)

    # The products are saved, so that the backward pass replays the steps without multiplying by the
    # matrices again.
    last, (outputs, states, products) = jax.lax.scan(one, state, (positions, position_biases))
    return (outputs, last), (weights, shared, positions, states, products)


def _backward(step, residuals, gradients):
    weights, shared, (inputs, masks), states, products = residuals
    d_outputs, d_last = gradients
    # The matrices are transposed once, outside the loop, because XLA on CPU is faster with
    # row-major ones.
    transposed = {name: matrix.T for name, (matrix, _) in weights.items()}

    def one(carry, position):
        d_state, d_shared = carry
        inputs, masks, state, products, d_output = position

        def replayed(products, shared, inputs, state):
            factors = {}

            def product(name, x):
                factors[name] = x
                return _with_value(x, transposed[name], products[name])

            return step(product, shared, (inputs, masks), state), factors

        _, pull_back, factors = jax.vjp(replayed, products, shared, inputs, state, has_aux=True)
        d_products, added, d_inputs, d_state = pull_back((d_state, d_output))
        # A step may use shared arrays in any way, so their gradients are added up step by step.
        # Those of the weights are one product over all steps after the loop.
        d_shared = jax.tree.map(jnp.add, d_shared, added)
        return (d_state, d_shared), (d_inputs, factors, d_products)

    zeros = jax.tree.map(jnp.zeros_like, shared)
    (d_state, d_shared), (d_inputs, factors, d_products) = jax.lax.scan(
        one,
        (d_last, zeros),
        (inputs, masks, states, products, d_outputs),
        reverse=True,
    )
    d_weights = {
        name: _weight_gradients(weights[name], factors, d_products, name) for name in weights
    }
    return d_weights, d_shared, (d_inputs, None), d_state


recur.defvjp(_forward, _backward)


def _weight_gradients(weights, factors, d_products, name):
    matrix, bias = weights
    # Steps and rows become one axis, so that a single product sums over both.
    x = factors[name].reshape(-1, matrix.shape[0])  # (L * B, I)
    d_product = d_products[name].reshape(-1, matrix.shape[1])  # (L * B, O)
    d_bias = None
    if bias is not None:
        d_bias = d_product.sum(axis=0) if bias.ndim == 1 else d_products[name]
    return x.T @ d_product, d_bias


@jax.custom_vjp
def _with_value(x, transposed, value):
    """Returns x @ matrix, whose value is already known from the forward pass.

    The gradient goes to x, and unchanged to `value`, where it is the gradient of the product that
    the gradient of the matrix needs.
    """
    return value


def _with_value_forward(x, transposed, value):
    return value, transposed


def _with_value_backward(transposed, gradient):
    # The matrix gets zeros, because its gradient is computed after the loop, for all steps at once.
    return gradient @ transposed, jnp.zeros_like(transposed), gradient


_with_value.defvjp(_with_value_forward, _with_value_backward)


# --------------------------------------------------------------------------------------------------
# Recurrent cells: vanilla RNN, gated recurrent unit and long short-term memory.
#
# A cell is a step of a recurrence. The input projections of all positions are computed beforehand,
# as one product. If a cell `adds_input` to its product "recurrent", the projection can be the bias
# of this product, and the cell then receives None as its input.

State = tuple[Float[Array, "B _"], ...]
Name = Literal["rnn", "gru", "gru_reset_before", "lstm"]


@dataclasses.dataclass(frozen=True)
class Vanilla:
    """h' = tanh(x + h R) (Elman 1990), or with ReLU instead of tanh."""

    width: int
    nonlinearity: Literal["tanh", "relu"] = "tanh"
    gates: ClassVar[int] = 1
    adds_input: ClassVar[bool] = True
    candidate_bias: ClassVar[bool] = False

    @property
    def state_widths(self) -> tuple[int, ...]:
        """The widths of the arrays of a state, starting with its output."""
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

    With `reset_after`, the candidate is tanh(x + r * (h R + b)), as in PyTorch and cuDNN. Otherwise
    it is tanh(x + (r * h) R) (Cho et al. 2014, section 2.3).
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
        """The widths of the arrays of a state, starting with its output."""
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

    The gates are input, forget, candidate and output, in this order. A constant 1 is added to the
    bias of the forget gate, so that the cell keeps its content at initialization. With a
    `projection`, the output has that width (Sak et al. 2014). `clip` bounds the cell and the
    projected output.
    """

    width: int
    projection: int | None = None
    clip: float | None = None
    gates: ClassVar[int] = 4
    adds_input: ClassVar[bool] = True
    candidate_bias: ClassVar[bool] = False

    @property
    def state_widths(self) -> tuple[int, ...]:
        """The widths of the arrays of a state, starting with its output."""
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


# --------------------------------------------------------------------------------------------------
# Recurrent layers: unidirectional, bidirectional, and stacks of layers.
#
# Rows may be padded and may hold several texts. Every layer therefore takes masks that tell where
# its state stays unchanged and where it is reset.


class Unidirectional(nn.Module):
    """x (B, L, M) -> the outputs of the cell (B, L, F), and the state after the last position.

    With `all_states`, the second value is the state after each position, arrays (B, L, width).
    Positions that are not `filled` (B, L) are padding and leave the state unchanged, so that with
    `reverse` the recurrence effectively starts at the last filled position of each row. Where
    `restarts` (B, L) is true, the state is reset to zero before the position.
    """

    cell: Cell
    reverse: bool = False
    all_states: bool = False
    weight_dropout: float = 0.0  # on the recurrent matrices, with one mask for all positions

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
        # The inputs are transposed before the projection, because the gates make the array larger.
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
        # `shared`, because the first axis of a matrix is not a batch.
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
        # The states after each position take memory, so they are outputs of the step only if asked
        # for.
        return whole_step if self.all_states else masked_step


def recurrent_weights(
    module: nn.Module, cell: Cell, dtype: jnp.dtype, *, ending: str = ""
) -> Weights:
    """Declares the recurrent matrices of a cell as parameters of a module, and returns them.

    `ending` is appended to the names of the parameters.
    """
    weights = {}
    for name, shape in cell.matrices.items():
        # Orthogonal matrices keep the norm of a state over many steps, so that gradients neither
        # vanish nor explode at the start.
        init = declared(nn.initializers.orthogonal(), ("mlp", None), decays=True, inputs=1)
        matrix = module.param(name + ending, init, shape, jnp.float32)
        weights[name] = (jnp.asarray(matrix, dtype), None)
    if cell.candidate_bias:
        # The reset gate multiplies this bias, so it can't be merged with the input's.
        init = declared(nn.initializers.zeros, ("mlp",))
        bias = module.param("candidate_bias" + ending, init, (cell.width,), jnp.float32)
        bias = bias.astype(dtype)
        # The other gates get zeros, because their biases are in the input projection.
        others = (cell.gates - 1) * cell.width
        weights["recurrent"] = (weights["recurrent"][0], jnp.pad(bias, (others, 0)))
    return weights


def masked_step(cell: Cell, product: Product, shared: tuple, position: tuple, state: State):
    """A step of a cell. Padding leaves the state unchanged, and a restart resets it to zero."""
    after, _ = whole_step(cell, product, shared, position, state)
    return after, after[0]


def whole_step(cell: Cell, product: Product, shared: tuple, position: tuple, state: State):
    """Like `masked_step`, but the output of the step is its whole state."""
    x, (filled, restarts) = position
    state = jax.tree.map(lambda s: jnp.where(restarts[:, None], 0, s), state)
    after = cell(product, x, state)
    after = jax.tree.map(lambda new, old: jnp.where(filled[:, None], new, old), after, state)
    return after, after


class Bidirectional(nn.Module):
    """x (B, L, M) -> the outputs of both directions (B, L, D = 2 F), and both last states.

    The last state of the backward direction is the one at the first position of a row. With
    `all_states`, the states are those after each position, arrays (B, L, width). In a packed row,
    `begins` (B, L) is true at the first position of each text and `ends` (B, L) at the last one.
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
    """A stack of recurrent layers with dropout between them: x (B, L, M) -> (B, L, F), states.

    The states are listed by layer; a bidirectional layer has a pair of states. They are the last
    states or, with `all_states`, those after each position. With `residual`, all layers but the
    first add their input to their output.
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
            # The first layer has no residual connection, because its input may have another width
            # than its output.
            x = x + y if self.residual and layer else y
            if layer + 1 < self.num_layers:
                x = Dropout(self.dropout)(x, train=train)
            last.append(after)
        return x, tuple(last)


# --------------------------------------------------------------------------------------------------
# Dropout of attention weights, as a function of the indices of a weight.
#
# Whether a weight is kept depends only on a seed for its row and head and on the numbers of its
# query and key, through integer operations. Therefore a kernel that never holds all weights in
# memory can compute the same mask block by block, in the forward and the backward pass and on any
# mesh. A mask drawn by jax.random.bernoulli would have to be drawn as a whole.


@struct.dataclass
class WeightDropout:
    """Sets a fraction `rate` of the weights to zero and scales the rest by 1 / (1 - rate)."""

    seeds: UInt32[Array, "B H 2"]
    rate: float = struct.field(pytree_node=False)

    def __call__(
        self,
        weights: Float[Array, "B H Q K"],
        queries: Int[Array, "#B Q"] | None = None,
        keys: Int[Array, "#B K"] | None = None,
    ) -> Float[Array, "B H Q K"]:
        """Returns the weights after dropout.

        `queries` and `keys` are their numbers, by default their positions.
        """
        queries = jnp.arange(weights.shape[2])[None] if queries is None else queries
        keys = jnp.arange(weights.shape[3])[None] if keys is None else keys
        return self.drop(weights, queries[:, None, :, None], keys[:, None, None, :])

    def drop(
        self,
        weights: Float[Array, "B H *S"],
        queries: Int[Array, "#B #H *#S"],
        keys: Int[Array, "#B #H *#S"],
    ) -> Float[Array, "B H *S"]:
        """Returns weights with any further axes after dropout, by the numbers of query and key."""
        seeds = self.seeds.reshape(*self.seeds.shape[:2], *[1] * (weights.ndim - 2), 2)
        keep = is_kept((seeds[..., 0], seeds[..., 1]), queries, keys, self.rate)
        return jnp.where(keep, weights / (1 - self.rate), 0.0)

    def repeated(self, count: int) -> "WeightDropout":
        """Returns the dropout for rows that have been repeated `count` times each."""
        return self if count == 1 else self.replace(seeds=jnp.repeat(self.seeds, count, axis=0))

    def for_heads(self, heads: slice) -> "WeightDropout":
        """Returns the dropout for a slice of the heads."""
        return self.replace(seeds=self.seeds[:, heads])


def drawn(key: jax.Array, rate: float, batch: int, heads: int) -> WeightDropout:
    """Draws the dropout of a layer in a step, with a seed for each row of the batch and head."""
    return WeightDropout(sharding.draw_rows(jax.random.bits, key, (batch, heads, 2)), rate)


def is_kept(
    seeds: tuple[UInt32[Array, "*#S"], UInt32[Array, "*#S"]],
    queries: Int[Array, "*#Q"],
    keys: Int[Array, "*#K"],
    rate: float,
) -> Bool[Array, "*S"]:
    """Returns True with probability 1 - rate for each query and key."""
    # The query is mixed before it meets the key. Otherwise all pairs with the same XOR of both
    # would share a number.
    by_query = _mixed(queries.astype(jnp.uint32) ^ seeds[0])
    # The key is multiplied, because the odd factor 2^32 / golden ratio spreads successive keys over
    # all bits.
    by_key = keys.astype(jnp.uint32) * jnp.uint32(0x9E3779B9) + seeds[1]
    # The numbers are compared as integers, so that all kernels and platforms drop the same weights.
    return _mixed(by_query ^ by_key) >= jnp.uint32(round(rate * 2**32))


def _mixed(x: UInt32[Array, "*S"]) -> UInt32[Array, "*S"]:
    """A bijection on 32 bits in which each bit of the result depends on all bits of x.

    This is the hash function lowbias32 (https://nullprogram.com/blog/2018/07/31/).
    """
    x = (x ^ (x >> jnp.uint32(16))) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> jnp.uint32(15))) * jnp.uint32(0x846CA68B)
    return x ^ (x >> jnp.uint32(16))
