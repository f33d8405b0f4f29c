"""Declared parameters and their names, affine maps, dropout, and FLOPs by formula."""

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float

from transformer_jax.distributed import sharding

# --------------------------------------------------------------------------------------------------
# Parameters declare their logical axes, whether weight decay applies, and their role in a matrix
# product, so that sharding and optimizers need no list of parameter names. Modules declare
# auxiliary losses.

Path = tuple[str, ...]  # the path of a parameter, such as ("norm", "scale")


def names(path) -> Path:
    """Returns a JAX key path as strings, without the boxes that hold logical axes."""
    return tuple(str(key.key) for key in path if hasattr(key, "key"))


@dataclasses.dataclass(frozen=True)
class Traits:
    """The declaration of a parameter. It is a leaf of a pytree."""

    # Logical axes, one for each dimension. The first axis of a stack of layers is "layers", and the
    # next one of a layer's experts is "experts".
    axes: tuple[str | None, ...]
    # Whether weight decay applies.
    decays: bool = False
    # Number of leading axes, not counting "layers" and "experts", that a matrix contracts with its
    # input; the remaining axes belong to its output. 0: an embedding or a vector.
    inputs: int = 0
    head: bool = False  # whether the matrix is an output head
    # For queries of attention: muP divides them by the growth of their last axis to this power.
    query_power: float = 0.0
    layers: int = dataclasses.field(default=0, compare=False)  # number of layers of a stack

    @property
    def is_stack(self) -> bool:
        """Whether the first axis is the layers of a stack, each with its own parameter."""
        return self.axes[:1] == ("layers",)

    @property
    def num_stacked(self) -> int:
        """The number of leading axes along which each entry is a parameter of its own."""
        return self.is_stack + ("experts" in self.axes[self.is_stack :][:1])


class Declared(nn.LogicallyPartitioned):
    """The box of a parameter with its traits. A scan over layers adds the axis "layers"."""

    decays: bool = struct.field(default=False, pytree_node=False)
    inputs: int = struct.field(default=0, pytree_node=False)
    head: bool = struct.field(default=False, pytree_node=False)
    query_power: float = struct.field(default=0.0, pytree_node=False)


def declared(
    init: Callable[..., jax.Array],
    axes: tuple[str | None, ...],
    **traits: Any,
) -> Callable[..., Declared]:
    """Returns an initializer that boxes the parameter of `init` with its `Traits`."""

    def boxed(*args, **kwargs):
        return Declared(init(*args, **kwargs), axes, **traits)

    return boxed


def traits(boxed: Any) -> Any:
    """Returns the tree of the `Traits` of a tree of boxed parameters.

    A parameter without a declaration has no logical axes and does not decay.
    """

    def traits_of(leaf):
        if isinstance(leaf, Declared):
            layers = leaf.value.shape[0] if leaf.names[:1] == ("layers",) else 0
            return Traits(leaf.names, leaf.decays, leaf.inputs, leaf.head, leaf.query_power, layers)
        if isinstance(leaf, nn.LogicallyPartitioned):
            return Traits(leaf.names)
        return Traits((None,) * np.ndim(leaf))

    return jax.tree.map(traits_of, boxed, is_leaf=_is_box)


def unsplit(boxed: Any) -> Any:
    """Returns a tree whose boxes name no logical axis of size 1, because no mesh divides it."""

    def without_unit_axes(box):
        if not isinstance(box, nn.LogicallyPartitioned) or not isinstance(box.value, jax.Array):
            return box
        shape = box.value.shape
        return box.replace(names=tuple(n if k > 1 else None for n, k in zip(box.names, shape)))

    return jax.tree.map(without_unit_axes, boxed, is_leaf=_is_box)


def _is_box(leaf) -> bool:
    return isinstance(leaf, nn.LogicallyPartitioned)


def sown_losses(collections: dict) -> dict[str, jax.Array]:
    """Returns each auxiliary loss, summed over all modules and layers.

    A module sows an auxiliary loss by `self.sow("losses", name, value)`. `collections` is what
    `model.apply(..., mutable=["losses"])` returns beside the output.
    """
    sums = {}
    leaves = jax.tree_util.tree_leaves_with_path(collections.get("losses", {}))
    for path, value in leaves:
        name = [key.key for key in path if isinstance(key, jax.tree_util.DictKey)][-1]
        sums[name] = sums.get(name, 0.0) + value.sum()
    return sums


# --------------------------------------------------------------------------------------------------
# The names of the tensors in a tree of parameters, such as "norm/scale".
#
# A name leaves out the boxes that hold logical axes, so that it is the same in boxed and in unboxed
# trees.


def tensors_by_name(tree) -> dict:
    """Returns the leaves of a tree of arrays or shapes by name."""
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_leaf)
    return {tensor_name(path): leaf for path, leaf in leaves}


def tensor_name(path) -> str:
    return "/".join(names(path))


def is_leaf(x) -> bool:
    return hasattr(x, "shape")


def joined(prefix: str, name: str) -> str:
    return f"{prefix}/{name}" if prefix else name


def is_below(name: str, prefix: str) -> bool:
    return not prefix or name == prefix or name.startswith(f"{prefix}/")


def below(tensors: dict, prefix: str, apart: Iterable[str] = ()) -> dict:
    """Returns the tensors below a prefix by the rest of their names, except those below `apart`."""
    return {
        name[len(prefix) :].lstrip("/"): tensor
        for name, tensor in tensors.items()
        if is_below(name, prefix) and not any(is_below(name, other) for other in apart)
    }


# --------------------------------------------------------------------------------------------------
# Trees of parameters: splitting them into trained and frozen ones, and merging them again.
#
# Frozen parameters are a tree of their own, so that neither gradients nor optimizer states exist
# for them.

Tree = dict  # of dicts of arrays


def split(params: Tree, is_frozen: Callable[[tuple[str, ...]], bool]) -> tuple[Tree, Tree]:
    """Returns the tree of the trained parameters and the tree of the frozen ones."""
    trees = ({}, {})
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        *folders, name = names(path)
        tree = trees[is_frozen((*folders, name))]
        for folder in folders:
            tree = tree.setdefault(folder, {})
        tree[name] = leaf
    return trees


def paths(params: Tree) -> set[tuple[str, ...]]:
    """Returns the paths of the leaves of a tree of arrays or shapes."""
    leaves = jax.tree_util.tree_leaves_with_path(params, is_leaf=lambda x: not isinstance(x, dict))
    return {names(path) for path, _ in leaves}


def merged(tree: Tree, other: Tree) -> Tree:
    """Returns the union of two trees, which must have no leaf in common."""
    common = tree.keys() & other.keys()
    return {**tree, **other} | {key: merged(tree[key], other[key]) for key in common}


# --------------------------------------------------------------------------------------------------
# Affine maps, dropout, recomputation in the backward pass, and the dtype of the computation.
#
# Parameters are float32 and cast where they are used. If the optimizer added its small updates to
# bfloat16 numbers, most of them would be rounded away.


class Linear(nn.Module):
    """y = x W + b over the last axes of x: (B, L, *inputs) -> (B, L, *outputs).

    `inputs` and `outputs` are shapes, and `axes` are the logical axes of the kernel (*inputs,
    *outputs). The kernel is float32; the product is computed in `dtype`. `head` declares the kernel
    as an output head, as opposed to a matrix between hidden states, and `query_power` its outputs
    as queries of attention (`Traits`).
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    axes: tuple[str | None, ...]
    use_bias: bool = True
    head: bool = False
    query_power: float = 0.0
    kernel_init: Callable = nn.initializers.xavier_uniform()
    dtype: jnp.dtype = jnp.float32

    def setup(self):
        # The initializer sees the kernel as a matrix (fan_in, fan_out). From the kernel's own
        # shape, it would take the leading axes for a receptive field and compute other fans.
        def init(key, shape):
            return self.kernel_init(key, self._fans, jnp.float32).reshape(shape)

        kernel_init = declared(
            init,
            self.axes,
            decays=True,
            inputs=len(self.inputs),
            head=self.head,
            query_power=self.query_power,
        )
        self.kernel = self.param("kernel", kernel_init, self.inputs + self.outputs)
        if self.use_bias:
            bias_axes = self.axes[len(self.inputs) :]
            bias_init = declared(nn.initializers.zeros, bias_axes, query_power=self.query_power)
            self.bias = self.param("bias", bias_init, self.outputs)

    @property
    def _fans(self) -> tuple[int, int]:
        return math.prod(self.inputs), math.prod(self.outputs)

    def gathered(self) -> Float[Array, "*axes"]:
        """Returns the kernel (*inputs, *outputs) in `dtype`, gathered over the mesh axis fsdp."""
        # Without this constraint, the partitioner gathers the kernels of attention a second time
        # after their reshape, which is a tenth of all communication of GPT-3 175B on 64 chips.
        axes = [None if axis == "embed" else axis for axis in self.axes]
        return sharding.constrain(self.kernel.astype(self.dtype), *axes)

    def __call__(self, x: Float[Array, "*axes"]) -> Float[Array, "*other"]:
        fan_in, fan_out = self._fans
        matrix = self.gathered().reshape(fan_in, fan_out)
        # Batch and length are merged, because XLA on CPU differentiates products of (B, L, M) 1.6
        # times slower. A length that is split over devices cannot be merged.
        batch_shape = x.shape[: x.ndim - len(self.inputs)]
        tokens = batch_shape if sharding.parts("length") > 1 else (math.prod(batch_shape),)
        if tokens == (1,):
            # XLA on CPU would fuse the reshape with the product of a single vector and read the
            # matrix by columns, which is twenty times slower.
            matrix = jax.lax.optimization_barrier(matrix)
        y = x.astype(self.dtype).reshape(*tokens, fan_in) @ matrix
        if self.use_bias:
            y = y + self.bias.astype(self.dtype).reshape(fan_out)
        return y.reshape(*batch_shape, *self.outputs)


class Dropout(nn.Module):
    """Dropout (Srivastava et al. 2014).

    Sets a fraction `rate` of x to zero and scales the rest by 1 / (1 - rate). The first axis of x
    is the batch, unless x is `shared` by all examples. With `locked`, x is (B, L, ...), and all
    positions of an example have the same mask (Gal & Ghahramani 2016).
    """

    rate: float
    shared: bool = False
    locked: bool = False

    @nn.compact
    def __call__(self, x: Float[Array, "*axes"], *, train: bool) -> Float[Array, "*axes"]:
        if not train or self.rate == 0:
            return x

        def draw(key, shape):
            return jax.random.bernoulli(key, 1 - self.rate, shape)

        key = self.make_rng("dropout")
        shape = (len(x), 1, *x.shape[2:]) if self.locked else x.shape
        # In a group of rows, `draw_rows` returns the group's part of the mask for the whole batch,
        # so that the mask does not depend on the groups.
        keep = draw(key, shape) if self.shared else sharding.draw_rows(draw, key, shape)
        return jnp.where(keep, x / (1 - self.rate), jnp.zeros_like(x))


# The name of the means and variances of a norm, which are saved: they have one number for each
# position, and with them the backward pass computes neither of them again.
STATISTICS = "statistics"
# The name of products that are saved wherever matrix products are, although they have batch axes.
PRODUCTS = "products"


def recomputed(f: Callable, x: jax.Array) -> Callable:
    """Returns f, whose backward pass recomputes f(x) if the dtype of x has fewer than 32 bits.

    The forward pass then saves only x and what f has named `STATISTICS`. Otherwise a norm saves
    three arrays of float32, and GELU two arrays of the dtype of x, which is 28 of 65 GB for BERT
    large with 256 rows of 128 tokens on a GPU. In float32, the usual dtype on a CPU, f is
    unchanged, because time matters more than memory there.
    """
    if x.dtype.itemsize >= 4:
        return f
    return jax.checkpoint(f, policy=jax.checkpoint_policies.save_only_these_names(STATISTICS))


def compute_dtype(name: str) -> jnp.dtype:
    """Returns the dtype named by `config.model.dtype`.

    "auto" is bfloat16 on accelerators and float32 on a CPU.
    """
    if name == "auto":
        name = "float32" if sharding.platform() == "cpu" else "bfloat16"
    return jnp.dtype(name)


# --------------------------------------------------------------------------------------------------
# FLOPs of a forward pass by formula: two for each multiply-add of a matrix product. XLA's cost
# analysis does not serve, because it counts the body of a scan only once.
#
# Padding is counted. Norms, softmax and embedding lookups are not.


@dataclasses.dataclass(frozen=True)
class LayerSizes:
    """The sizes of a Transformer layer. A width is the number of heads times their dimension."""

    d_model: int
    width: int
    d_ff: int
    kv_width: int | None = None  # of keys and values; None: width
    mlp_inputs: int = 1  # matrices from d_model to d_ff: 2 in a gated MLP

    @classmethod
    def of(cls, model) -> "LayerSizes":
        """Returns the sizes of a model's layers, with the defaults of `head_dim` and `d_ff`."""
        head_dim = model.head_dim or model.d_model // model.num_heads
        return cls(model.d_model, model.num_heads * head_dim, model.d_ff or 4 * model.d_model)

    def attention(self, queries: int, keys: int, pairs: float) -> float:
        """Returns the FLOPs of an attention block: its four projections, scores and weighted sum.

        `pairs` is the number of visible (query, key) pairs.
        """
        kv_width = self.width if self.kv_width is None else self.kv_width
        projections = 4 * self.d_model * (self.width * queries + kv_width * keys)
        return projections + 4 * self.width * pairs

    def mlp(self, length: int) -> int:
        """Returns the FLOPs of the products of an MLP block."""
        return 2 * (self.mlp_inputs + 1) * self.d_model * self.d_ff * length

    def layer(self, length: int, pairs: float) -> float:
        """Returns the FLOPs of a layer of self-attention and MLP."""
        return self.attention(length, length, pairs) + self.mlp(length)


def causal_pairs(length: int, window: int | None = None) -> float:
    """Returns the number of pairs that are visible under a causal mask, half of the square.

    With `window`, each query sees at most that many keys.
    """
    if window is None:
        return length**2 / 2
    window = min(window, length)
    return length * window - window**2 / 2


def dense(rows: int, inputs: int, outputs: int) -> int:
    """Returns the FLOPs of a dense layer on `rows` vectors."""
    return 2 * rows * inputs * outputs


def recurrent(length: int, inputs: int, cell) -> int:
    """Returns the FLOPs of a recurrent layer of one direction (layers/recurrent.py)."""
    recurrent = sum(dense(length, *shape) for shape in cell.matrices.values())
    return dense(length, inputs, cell.gates * cell.width) + recurrent
