"""Parameters declare their logical axes, their weight decay and their role in a product."""

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from flax import struct


@dataclasses.dataclass(frozen=True)
class Traits:
    """The declaration of a parameter. In a tree of JAX it is a leaf."""

    # Logical axes, one for each dimension. The first one of a stack of layers is "layers".
    axes: tuple[str | None, ...]
    # Whether weight decay applies.
    decays: bool = False
    # Number of leading axes, without "layers", that a matrix contracts with its input. The other
    # axes are those of its output. 0: an embedding, an output head or a vector.
    inputs: int = 0
    layers: int = dataclasses.field(default=0, compare=False)  # number of those of a stack

    @property
    def is_stack(self) -> bool:
        """Whether the first axis counts layers, each with a parameter of its own."""
        return self.axes[:1] == ("layers",)


class Declared(nn.LogicallyPartitioned):
    """The box of a parameter with its traits. A scan over layers adds the axis "layers" to it."""

    decays: bool = struct.field(default=False, pytree_node=False)
    inputs: int = struct.field(default=0, pytree_node=False)


def declared(
    init: Callable[..., jax.Array],
    axes: tuple[str | None, ...],
    *,
    decays: bool = False,
    inputs: int = 0,
) -> Callable[..., Declared]:
    """Returns an initializer that boxes the parameter of `init` with its `Traits`."""

    def boxed(*args, **kwargs):
        return Declared(init(*args, **kwargs), axes, decays=decays, inputs=inputs)

    return boxed


def traits(boxed: Any) -> Any:
    """Returns the tree of the `Traits` of a tree of boxed parameters.

    A parameter that declares nothing has no logical axes and does not decay.
    """

    def of(leaf):
        if isinstance(leaf, Declared):
            layers = leaf.value.shape[0] if leaf.names[:1] == ("layers",) else 0
            return Traits(leaf.names, leaf.decays, leaf.inputs, layers)
        if isinstance(leaf, nn.LogicallyPartitioned):
            return Traits(leaf.names)
        return Traits((None,) * np.ndim(leaf))

    return jax.tree.map(of, boxed, is_leaf=lambda leaf: isinstance(leaf, nn.LogicallyPartitioned))


def unsplit(boxed: Any) -> Any:
    """Returns a tree whose boxes name no logical axis of size 1: no mesh divides it."""

    def of(box):
        if not isinstance(box, nn.LogicallyPartitioned) or not isinstance(box.value, jax.Array):
            return box
        shape = box.value.shape
        return box.replace(names=tuple(n if k > 1 else None for n, k in zip(box.names, shape)))

    return jax.tree.map(of, boxed, is_leaf=lambda leaf: isinstance(leaf, nn.LogicallyPartitioned))


def sown_losses(collections: dict) -> dict[str, jax.Array]:
    """Returns the sum over all modules and layers of each auxiliary loss.

    A module sows one by `self.sow("losses", name, value)`. `collections` are those that
    `model.apply(..., mutable=["losses"])` returns.
    """
    sums = {}
    leaves = jax.tree_util.tree_leaves_with_path(collections.get("losses", {}))
    for path, value in leaves:
        name = [key.key for key in path if isinstance(key, jax.tree_util.DictKey)][-1]
        sums[name] = sums.get(name, 0.0) + value.sum()
    return sums
