"""Adafactor (Shazeer & Stern 2018): mean squares of the rows and the columns of each matrix.

As optax.adafactor, with two differences. The layers of a stack are matrices of their own. A kernel
of more than two axes is the matrix from its inputs to its outputs.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import tree_map_with_path
from jaxtyping import Array, Float

from transformer_jax.layers.parameters import Traits, unsplit

_LEAST = 128  # rows and columns of a matrix whose mean square is factored
_EPSILON = 1e-30  # epsilon 1 of the paper, added to the squares
_THRESHOLD = 1.0  # largest root mean square of an update
_LEAST_SCALE = 1e-3  # epsilon 2 of the paper, the least scale of a parameter

TraitsOf = Callable[[Any], Traits]  # by a parameter's key path in jax


class FactoredState(NamedTuple):
    """The mean squares of gradients.

    Attributes:
      count: the updates so far.
      rows: of a matrix the means over its columns, which have size 1; else the mean squares.
      columns: of a matrix the means over its rows, likewise; else nothing.
    """

    count: jax.Array
    rows: Any
    columns: Any


def direction(decay_exponent: float, traits_of: TraitsOf) -> list[optax.GradientTransformation]:
    """Returns algorithms 4 and 5 of the paper: scaling by mean squares, clipping, and the scale of
    the parameter.
    """

    def clipped(path, update):
        return update / jnp.maximum(1.0, _rms(update, traits_of(path)) / _THRESHOLD)

    def scaled(path, update, param):
        return update * jnp.maximum(_rms(param, traits_of(path)), _LEAST_SCALE)

    return [
        _by_factors(decay_exponent, traits_of),
        optax.stateless(lambda updates, _: tree_map_with_path(clipped, updates)),
        optax.stateless(lambda updates, params: tree_map_with_path(scaled, updates, params)),
    ]


def _rms(x: Float[Array, "..."], traits: Traits) -> Float[Array, "..."]:
    """Returns the root mean square of each layer, with size 1 in place of the other axes."""
    axes = tuple(range(traits.is_stack, x.ndim))
    return jnp.sqrt(jnp.mean(jnp.square(x), axis=axes, keepdims=True))


def _by_factors(decay_exponent: float, traits_of: TraitsOf) -> optax.GradientTransformation:
    def zeros(path, param):
        _, outputs = _sides(param, traits_of(path))
        return jnp.zeros_like(jnp.sum(param, axis=outputs, keepdims=True))

    def zeros_of_columns(path, param):
        inputs, _ = _sides(param, traits_of(path))
        if not inputs:
            return optax.MaskedNode()
        return jnp.zeros_like(jnp.sum(param, axis=inputs, keepdims=True))

    def init(params):
        return FactoredState(
            jnp.zeros((), jnp.int32),
            unsplit(tree_map_with_path(zeros, params)),
            unsplit(tree_map_with_path(zeros_of_columns, params)),
        )

    def update(grads, state: FactoredState, params):
        count = optax.safe_increment(state.count)
        decay = 1.0 - count.astype(jnp.float32) ** -decay_exponent

        def mean(old, grad, axes: tuple[int, ...]):
            square = jnp.square(grad) + _EPSILON
            return decay * old + (1 - decay) * square.mean(axis=axes, keepdims=True)

        def mean_of_rows(path, grad, old):
            return mean(old, grad, _sides(grad, traits_of(path))[1])

        def mean_of_columns(path, grad, old):
            inputs, _ = _sides(grad, traits_of(path))
            return mean(old, grad, inputs) if inputs else old

        def scaled(path, grad, row, column):
            inputs, _ = _sides(grad, traits_of(path))
            if not inputs:
                return grad * jax.lax.rsqrt(row)
            relative = row / row.mean(axis=inputs, keepdims=True)
            return grad * jax.lax.rsqrt(relative) * jax.lax.rsqrt(column)

        rows = tree_map_with_path(mean_of_rows, grads, state.rows)
        columns = tree_map_with_path(mean_of_columns, grads, state.columns)
        updates = tree_map_with_path(scaled, grads, rows, columns)
        return updates, FactoredState(count, rows, columns)

    return optax.GradientTransformation(init, update)


def _sides(x: Float[Array, "..."], traits: Traits) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the axes of a matrix's rows and those of its columns; none where it isn't factored.

    An embedding is a matrix, too.
    """
    first = int(traits.is_stack)
    between = first + max(traits.inputs, 1)
    sides = tuple(range(first, between)), tuple(range(between, x.ndim))
    least = min(math.prod(x.shape[axis] for axis in side) for side in sides)
    return sides if least >= _LEAST else ((), ())
