"""Low-rank adapters of matrices (LoRA): W + alpha / r A B (Hu et al. 2021, section 4.1).

A matrix W is (*inputs, *outputs), A is (*inputs, r) and B is (r, *outputs). If W is a stack of
layers, all three have a leading axis "layers". In a parameter tree, A and B are siblings of their
matrix, under its name with a suffix.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from transformer_jax import config as configs
from transformer_jax.layers.parameters import Declared, Traits

# Both are siblings of their matrix rather than its children, so that the matrix keeps the name that
# it has without adapters.
A, B = "_lora_A", "_lora_B"
Tree = dict  # of dicts of arrays


def matrix_of(name: str) -> str:
    """Returns the name of the matrix of an adapter; any other name is returned unchanged."""
    return name.removesuffix(A).removesuffix(B)


def is_adapter(name: str) -> bool:
    """Returns whether a parameter of this name is the A or the B of an adapter."""
    return matrix_of(name) != name


def is_matrix(traits: Traits) -> bool:
    """Returns whether a parameter can have an adapter: a matrix of a layer, a table or a head.

    The matrices of experts have none.
    """
    if traits.num_stacked > traits.is_stack:
        return False
    return traits.decays and len(traits.axes) - traits.is_stack > 1


def joined(params: Tree, join: Callable[[Any, Any, Any], Any]) -> Tree:
    """Returns the tree without adapters, with each adapted W replaced by join(W, A, B)."""
    tree = {}
    for name, value in params.items():
        if isinstance(value, dict):
            tree[name] = joined(value, join)
        elif name + A in params:
            tree[name] = join(value, params[name + A], params[name + B])
        elif not is_adapter(name):
            tree[name] = value
    return tree


def without(params: Tree) -> Tree:
    """Returns the tree without adapters, with the matrices unchanged."""
    return joined(params, lambda matrix, *_: matrix)


@dataclasses.dataclass(frozen=True)
class Adapters:
    """The keys of `config.lora` that determine how adapters change their matrices."""

    alpha: float
    layers: str = ""

    @classmethod
    def of(cls, lora) -> "Adapters":
        """Returns the adapters of a section `config.lora`."""
        return cls(lora.alpha, lora.layers)

    def initial(self, key: jax.Array, rank: int, box: Declared) -> tuple[Declared, Declared]:
        """Returns the initial A and B of a boxed matrix.

        A is Gaussian with variance 1 / (3 inputs), the variance of PEFT's uniform initialization,
        and B is zero, so that the adapted matrix starts out equal to W. They have the logical axes
        of the inputs and outputs of the matrix.
        """
        matrix, names = box.value, box.names
        stack = int(names[0] == "layers")
        # A table declares no inputs, but an adapter needs at least one: the first axis, its ids.
        between = stack + max(box.inputs, 1)
        inputs, outputs = matrix.shape[stack:between], matrix.shape[between:]
        leading = (len(self.chosen(len(matrix))),) if stack else ()
        deviation = (3 * math.prod(inputs)) ** -0.5
        a = deviation * jax.random.normal(key, (*leading, *inputs, rank), jnp.float32)
        b = jnp.zeros((*leading, rank, *outputs), jnp.float32)
        own = partial(Declared, decays=True)
        return (
            own(a, (*names[:between], None), inputs=len(inputs)),
            own(
                b,
                (*names[:stack], None, *names[between:]),
                inputs=1,
                query_power=box.query_power,
            ),
        )

    def merged(
        self, matrix: Float[Array, "*W"], a: Float[Array, "*A"], b: Float[Array, "*B"]
    ) -> Float[Array, "*W"]:
        """Returns W + alpha / r A B, with the shape and dtype of W."""
        stacked = _is_stacked(matrix, a, b)
        if stacked:
            a, b = self._in_all_layers(len(matrix), a, b)
        return _merged(self.alpha, stacked, matrix, a, b)

    def lazy(self, matrix: jax.Array, a: jax.Array, b: jax.Array) -> "LowRank | jax.Array":
        """Returns `merged`, but for a stack in a form that a scan merges one layer at a time.

        This way, neither the merged stack nor its gradient is ever in memory.
        """
        if not _is_stacked(matrix, a, b):
            return self.merged(matrix, a, b)
        return LowRank(matrix, *self._in_all_layers(len(matrix), a, b), self.alpha)

    def chosen(self, num_layers: int) -> list[int]:
        """Returns the sorted indices of the layers with adapters in a stack of `num_layers`."""
        return sorted({*configs.chosen_layers(self.layers, num_layers)})

    def _in_all_layers(self, num_layers: int, *arrays: jax.Array) -> list[jax.Array]:
        """Expands arrays (layers with adapters, ...) to (layers, ...), zero for the others."""
        if not self.layers:
            return [*arrays]
        # Zeros leave the matrices of the other layers unchanged, and the scan needs all layers.
        rows = jnp.array(self.chosen(num_layers))
        return [jnp.zeros((num_layers, *x.shape[1:]), x.dtype).at[rows].set(x) for x in arrays]


@struct.dataclass
class LowRank(nn.meta.AxisMetadata):
    """A matrix and its adapter as one boxed parameter, which Linen unboxes when a layer reads it.

    A scan over layers slices the three arrays like any parameter, and the product exists only for
    the current layer.
    """

    matrix: jax.Array
    a: jax.Array
    b: jax.Array
    alpha: float = struct.field(pytree_node=False)

    def unbox(self) -> jax.Array:
        return _merged(self.alpha, False, self.matrix, self.a, self.b)

    def replace_boxed(self, val):
        return val

    def add_axis(self, index: int, params: dict) -> "LowRank":
        return self

    def remove_axis(self, index: int, params: dict) -> "LowRank":
        return self


def _is_stacked(matrix, a, b) -> bool:
    """Returns whether the first axis of all three is the layers of a stack."""
    return a.ndim + b.ndim - 2 > matrix.ndim


def _merged(alpha: float, stacked: bool, matrix, a, b) -> jax.Array:
    num_inputs = a.ndim - 1 - stacked
    letters = "abcdefgh"[: matrix.ndim - stacked]
    inputs, outputs = letters[:num_inputs], letters[num_inputs:]
    layer = "l" if stacked else ""
    product = jnp.einsum(
        f"{layer}{inputs}r,{layer}r{outputs}->{layer}{letters}",
        a,
        b,
        # The default precision of accelerators would round the adapters to fewer bits than float32.
        precision=jax.lax.Precision.HIGHEST,
    )
    return matrix + (alpha / a.shape[-1] * product).astype(matrix.dtype)


@partial(jax.jit, static_argnums=(0, 1))
def placed(adapters: Adapters, sharding, matrix, a, b) -> jax.Array:
    """Returns the merged matrix with the given sharding."""
    return jax.lax.with_sharding_constraint(adapters.merged(matrix, a, b), sharding)
