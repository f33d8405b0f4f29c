"""Parameters: their declaration, their names, affine maps, dropout, and counts of operations."""

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
# Parameters declare their logical axes, their weight decay and their role in a product. Modules
# declare auxiliary losses.

Path = tuple[str, ...]  # the words of a parameter's name


def names(path) -> Path:
    """Returns a jax key path as words, without the boxes that hold a parameter's logical axes."""
    return tuple(str(key.key) for key in path if hasattr(key, "key"))


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


# --------------------------------------------------------------------------------------------------
# The names of the tensors in a tree of parameters, such as "norm/scale".


def tensors_by_name(tree) -> dict:
    """The leaves of a tree of arrays, or of their shapes, by name."""
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
    """The tensors below a prefix, by the rest of their names; without those below `apart`."""
    return {
        name[len(prefix) :].lstrip("/"): tensor
        for name, tensor in tensors.items()
        if is_below(name, prefix) and not any(is_below(name, other) for other in apart)
    }


# --------------------------------------------------------------------------------------------------
# Trees of parameters: split into the trained and the frozen ones, and merged again.

Tree = dict  # of dicts of arrays


def split(params: Tree, is_frozen: Callable[[tuple[str, ...]], bool]) -> tuple[Tree, Tree]:
    """Returns the trees of the trained and of the frozen parameters."""
    trees = ({}, {})
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        *folders, name = names(path)
        tree = trees[is_frozen((*folders, name))]
        for folder in folders:
            tree = tree.setdefault(folder, {})
        tree[name] = leaf
    return trees


def paths(params: Tree) -> set[tuple[str, ...]]:
    """Returns the paths of the leaves of a tree of arrays, or of their shapes."""
    leaves = jax.tree_util.tree_leaves_with_path(params, is_leaf=lambda x: not isinstance(x, dict))
    return {names(path) for path, _ in leaves}


def merged(tree: Tree, other: Tree) -> Tree:
    """Returns the tree of the leaves of both trees, which have no leaf in common."""
    common = tree.keys() & other.keys()
    return {**tree, **other} | {key: merged(tree[key], other[key]) for key in common}


# --------------------------------------------------------------------------------------------------
# Affine maps, dropout, recomputation in the backward pass, and the dtype of the computation.


class Linear(nn.Module):
    """y = x W + b over the last axes of x: (B, L, *inputs) -> (B, L, *outputs).

    `inputs` and `outputs` are shapes. `axes` are the logical axes of the kernel, those of the
    inputs first. The kernel (*inputs, *outputs) is float32; the product is computed in `dtype`.
    `head` declares the kernel as an output head, which is no matrix between hidden states.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    axes: tuple[str | None, ...]
    use_bias: bool = True
    head: bool = False
    kernel_init: Callable = nn.initializers.xavier_uniform()
    dtype: jnp.dtype = jnp.float32

    def setup(self):
        # The fans of the initializer are those of the matrix (fan_in, fan_out), not those of the
        # kernel's shape.
        def init(key, shape):
            return self.kernel_init(key, self._fans, jnp.float32).reshape(shape)

        contracted = 0 if self.head else len(self.inputs)
        kernel_init = declared(init, self.axes, decays=True, inputs=contracted)
        self.kernel = self.param("kernel", kernel_init, self.inputs + self.outputs)
        if self.use_bias:
            bias_axes = self.axes[len(self.inputs) :]
            bias_init = declared(nn.initializers.zeros, bias_axes)
            self.bias = self.param("bias", bias_init, self.outputs)

    @property
    def _fans(self) -> tuple[int, int]:
        return math.prod(self.inputs), math.prod(self.outputs)

    def gathered(self) -> Float[Array, "*axes"]:
        """Returns the kernel (*inputs, *outputs) in `dtype`, whole on each device of fsdp."""
        # Gather the kernel over fsdp once. Otherwise the partitioner gathers the kernels of
        # attention again behind their reshape: a tenth of all communication of GPT-3 175B on 64
        # chips.
        axes = [None if axis == "embed" else axis for axis in self.axes]
        return sharding.constrain(self.kernel.astype(self.dtype), *axes)

    def __call__(self, x: Float[Array, "*axes"]) -> Float[Array, "*other"]:
        fan_in, fan_out = self._fans
        matrix = self.gathered().reshape(fan_in, fan_out)
        # Merge batch and length: XLA on CPU differentiates products of (B, L, M) 1.6 times slower.
        # A length that is split over devices cannot be merged.
        batch_shape = x.shape[: x.ndim - len(self.inputs)]
        tokens = batch_shape if sharding.parts("length") > 1 else (math.prod(batch_shape),)
        if tokens == (1,):
            # XLA on CPU would fuse the reshape with the product of a vector, and read the matrix by
            # columns: twenty times slower.
            matrix = jax.lax.optimization_barrier(matrix)
        y = x.astype(self.dtype).reshape(*tokens, fan_in) @ matrix
        if self.use_bias:
            y = y + self.bias.astype(self.dtype).reshape(fan_out)
        return y.reshape(*batch_shape, *self.outputs)


class Dropout(nn.Module):
    """Dropout (Srivastava et al. 2014).

    Sets a fraction `rate` of x to zero and scales the rest by 1 / (1 - rate). The first axis of x
    is the rows of a batch; x that is `shared` belongs to all of them. With `locked`, x is (B, L,
    ...), and its positions L have the same mask (Gal & Ghahramani 2016).
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
        keep = draw(key, shape) if self.shared else sharding.draw_rows(draw, key, shape)
        return jnp.where(keep, x / (1 - self.rate), jnp.zeros_like(x))


def recomputed(f: Callable, x: jax.Array) -> Callable:
    """Returns f, whose backward pass computes f(x) again where x has less than 32 bits.

    The forward pass then keeps x alone. Otherwise a norm keeps three arrays of float32, and GELU
    two arrays of the dtype of x: 28 of 65 GB for BERT large with 256 rows of 128 tokens on a GPU.
    In float32, the usual dtype on a CPU, f is unchanged: time matters more than memory there.
    """
    return f if x.dtype.itemsize >= 4 else jax.checkpoint(f)


def compute_dtype(name: str) -> jnp.dtype:
    """Returns the dtype named by `config.model.dtype`.

    "auto" is bfloat16 on accelerators and float32 on a CPU.
    """
    if name == "auto":
        name = "float32" if sharding.platform() == "cpu" else "bfloat16"
    return jnp.dtype(name)


# --------------------------------------------------------------------------------------------------
# FLOPs of a forward pass by formula: two for each multiply-add of a matrix product.
#
# Padding is counted. Norms, softmax and embedding look-ups are not.


@dataclasses.dataclass(frozen=True)
class LayerSizes:
    """The sizes of a Transformer layer. A width is the number of heads times their width."""

    d_model: int
    width: int
    d_ff: int
    kv_width: int | None = None  # of keys and values; None: width
    mlp_inputs: int = 1  # products from d_model to d_ff: 2 in a gated MLP

    @classmethod
    def of(cls, model) -> "LayerSizes":
        """Returns the sizes of a model's layers, with the defaults of `head_dim` and `d_ff`."""
        head_dim = model.head_dim or model.d_model // model.num_heads
        return cls(model.d_model, model.num_heads * head_dim, model.d_ff or 4 * model.d_model)

    def attention(self, queries: int, keys: int, pairs: float) -> float:
        """Returns the FLOPs of an attention block: its four projections, scores and weighted sum.

        `pairs` is the number of (query, key) pairs that the mask leaves.
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
    """Returns the number of pairs that a causal mask leaves: half the square.

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
