"""A recurrence whose gradients of the weights are one product over all steps.

Differentiating `jax.lax.scan` adds the gradient of each weight matrix up in every step. Here the
backward pass keeps the two factors of that gradient, and multiplies them once for all steps.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# The matrices (I, O) of a step by name, each with a bias (O,), one for each position (L, *B, O), or
# None.
Weights = Mapping[str, tuple[Float[Array, "I O"], Float[Array, "*L O"] | None]]
Product = Callable[[str, Float[Array, "*B I"]], Float[Array, "*B O"]]
# (product, shared, (inputs, masks), state) -> (state, output)
Step = Callable[[Product, Any, tuple[Any, Any], Any], tuple[Any, Any]]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def recur(
    step: Step, weights: Weights, shared: Any, positions: tuple[Any, Any], state: Any
) -> tuple[Any, Any]:
    """Applies a step to each position in turn. Returns the outputs (L, ...) and the last state.

    Args:
      step: a hashable function of `product`, `shared`, the position's inputs and masks, and the
        state before it. `product(name, x)` is x W + b with the weights of that name, which a step
        uses once. It returns the state after the position, and the output.
      weights: the matrices and biases of `product`. An input that is added to a product is best
        its bias for each position: then it takes no memory beside the product.
      shared: a tree of arrays that all steps see, such as the keys of an attention.
      positions: inputs and masks, two trees of arrays (L, ...). A mask has no gradient.
      state: a tree of arrays, the state before the first position.
    """
    return _forward(step, weights, shared, positions, state)[0]


def _forward(step, weights, shared, positions, state):
    biases = {name: bias for name, (_, bias) in weights.items() if bias is not None}
    of_positions = {name: bias for name, bias in biases.items() if bias.ndim > 1}

    def one(state, position):
        position, of_position = position
        bias_of = biases | of_position
        products = {}

        def product(name, x):
            products[name] = x @ weights[name][0]
            if name in bias_of:
                products[name] += bias_of[name]
            return products[name]

        after, output = step(product, shared, position, state)
        return after, (output, state, products)

    last, (outputs, states, products) = jax.lax.scan(one, state, (positions, of_positions))
    return (outputs, last), (weights, shared, positions, states, products)


def _backward(step, residuals, gradients):
    weights, shared, (inputs, masks), states, products = residuals
    of_outputs, of_last = gradients
    # Transposed once, outside the loop: XLA on CPU is faster with matrices that are row-major.
    transposed = {name: matrix.T for name, (matrix, _) in weights.items()}

    def one(carry, position):
        of_state, of_shared = carry
        inputs, masks, state, products, of_output = position

        def replayed(products, shared, inputs, state):
            factors = {}

            def product(name, x):
                factors[name] = x
                return _with_value(x, transposed[name], products[name])

            return step(product, shared, (inputs, masks), state), factors

        _, pull_back, factors = jax.vjp(replayed, products, shared, inputs, state, has_aux=True)
        of_products, added, of_inputs, of_state = pull_back((of_state, of_output))
        of_shared = jax.tree.map(jnp.add, of_shared, added)
        return (of_state, of_shared), (of_inputs, factors, of_products)

    zeros = jax.tree.map(jnp.zeros_like, shared)
    (of_state, of_shared), (of_inputs, factors, of_products) = jax.lax.scan(
        one,
        (of_last, zeros),
        (inputs, masks, states, products, of_outputs),
        reverse=True,
    )
    of_weights = {name: _of_weights(weights[name], factors, of_products, name) for name in weights}
    return of_weights, of_shared, (of_inputs, None), of_state


recur.defvjp(_forward, _backward)


def _of_weights(weights, factors, of_products, name):
    matrix, bias = weights
    x = factors[name].reshape(-1, matrix.shape[0])  # (L * B, I)
    of_product = of_products[name].reshape(-1, matrix.shape[1])  # (L * B, O)
    of_bias = None
    if bias is not None:
        of_bias = of_product.sum(axis=0) if bias.ndim == 1 else of_products[name]
    return x.T @ of_product, of_bias


@jax.custom_vjp
def _with_value(x, transposed, value):
    """Returns x @ matrix, whose value is known. Its gradient goes to `x` and to `value`."""
    return value


def _with_value_forward(x, transposed, value):
    return value, transposed


def _with_value_backward(transposed, gradient):
    return gradient @ transposed, jnp.zeros_like(transposed), gradient


_with_value.defvjp(_with_value_forward, _with_value_backward)
