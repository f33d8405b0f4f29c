"""Where everything a training step takes will live: a table of parameters, optimizer state and
batch.
"""

import itertools
import math

import jax

from transformer_jax.training.optimizer import names

_HEADER = ("", "shape", "sharding", "MB a device")


def bytes_per_device(tree) -> int:
    """Of a tree of ShapeDtypeStructs with shardings, as they are split, with what a TPU's tiles
    pad.
    """
    return sum(
        _elements(leaf.sharding)(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def _elements(sharding):
    return _tiled if next(iter(sharding.device_set)).platform == "tpu" else math.prod


def _tiled(shape: tuple[int, ...]) -> int:
    """Elements that a TPU holds of an array of 4-byte numbers: the two innermost axes fill tiles of
    8 x 128 (of fewer rows where there are fewer), and the compiler puts those axes innermost that
    waste least.
    """
    up = lambda size, multiple: -(-size // multiple) * multiple
    if len(shape) < 2:
        return up(math.prod(shape), 128)
    rows = lambda size: up(size, min(8, 1 << (size - 1).bit_length()))
    return min(
        math.prod(shape) // (shape[i] * shape[j]) * rows(shape[i]) * up(shape[j], 128)
        for i, j in itertools.permutations(range(len(shape)), 2)
    )


def table(program) -> list[str]:
    """Lines: every parameter, every array of the optimizer and of the batch with its shape, the
    mesh axes its dimensions are split over, and its bytes on a device.

    Arrays of the optimizer are named as the parameters they belong to, behind what they are, such
    as mu and nu.
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
    """The mesh axes each dimension is split over, as "(fsdp, -, tensor)"; axes of one device split
    nothing.
    """
    sizes = sharding.mesh.shape
    split = [
        [axis for axis in ((given,) if isinstance(given, str) else given or ()) if sizes[axis] > 1]
        for given in sharding.spec
    ]
    return "(" + ", ".join("*".join(found) or "-" for found in split) + ")"


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
    """A path's words; of optax's tuples, the fields that say something."""
    fields = [
        key.name
        for key in path
        if hasattr(key, "name") and key.name != "inner_state" and key.name != "inner_states"
    ]
    return "/".join(
        (*fields, *(name for name in names(path) if name not in ("trained", "frozen")))
    ) or str(path)
