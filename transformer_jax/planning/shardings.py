"""The arrays of a training step: parameters, optimizer state and batch, with their shards."""

import itertools
import math

import jax

from transformer_jax.training.optimizer import names

_HEADER = ("", "shape", "sharding", "MB a device")


def bytes_per_device(tree) -> int:
    """Returns the bytes on a device of a tree of sharded ShapeDtypeStructs.

    They include the padding of a TPU's tiles.
    """
    return sum(
        _elements(leaf.sharding)(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def _elements(sharding):
    return _tiled if next(iter(sharding.device_set)).platform == "tpu" else math.prod


def _tiled(shape: tuple[int, ...]) -> int:
    """Returns the elements that an array of 4-byte numbers takes on a TPU.

    The two innermost axes fill tiles of 8 x 128, or of fewer rows where the array has fewer. The
    compiler chooses the innermost axes that waste the least.
    """
    if len(shape) < 2:
        return _rounded_up(math.prod(shape), 128)
    return min(
        math.prod(shape)
        // (shape[i] * shape[j])
        * _rounded_up(shape[i], min(8, 1 << (shape[i] - 1).bit_length()))
        * _rounded_up(shape[j], 128)
        for i, j in itertools.permutations(range(len(shape)), 2)
    )


def _rounded_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def table(program) -> list[str]:
    """Returns the lines of a table of all parameters, optimizer arrays and batch arrays.

    Each line has the shape, the mesh axes of each dimension and the bytes on a device. An array of
    the optimizer has its kind, such as mu or nu, and the name of its parameter.
    """
    parts = {
        "parameter": program.state.params,
        "optimizer": program.state.opt_state,
        "batch": program.batch,
    }
    rows = [row for part, tree in parts.items() for row in _rows(part, tree)]
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [
        f"{name:{widths[0]}}  {shape:{widths[1]}}  {split:{widths[2]}}  {size:>{widths[3]}}"
        for name, shape, split, size in rows
    ]


def axes(sharding) -> str:
    """Returns the mesh axes of each dimension, such as "(fsdp, -, tensor)".

    Axes with a single device are left out.
    """
    sizes = sharding.mesh.shape
    dimensions = []
    for entry in sharding.spec:
        axes = (entry,) if isinstance(entry, str) else entry or ()
        dimensions.append("*".join(axis for axis in axes if sizes[axis] > 1) or "-")
    return f"({', '.join(dimensions)})"


def _rows(part: str, tree):
    yield (part, *_HEADER[1:])
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        yield (
            "  " + _name(path),
            str(leaf.shape),
            axes(leaf.sharding),
            f"{bytes_per_device(leaf) / 1e6:.2f}",
        )


def _name(path) -> str:
    """Returns the words of a path, without optax's wrappers and the labels that they give."""
    wrappers = ("inner_state", "inner_states")
    fields = [getattr(key, "name", None) for key in path]
    words = [
        name
        for field, key in zip([None, *fields], path)
        if field != "inner_states"
        for name in names([key])
    ]
    kinds = [field for field in fields if field and field not in wrappers]
    return "/".join([*kinds, *words]) or str(path)
