"""Parameters that no update changes. A run writes them once, apart from its checkpoints."""

import hashlib
import json
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from transformer_jax.distributed import hosts
from transformer_jax.training import optimizer

Tree = dict  # of dicts of arrays


def split(params: Tree, is_frozen: Callable[[tuple[str, ...]], bool]) -> tuple[Tree, Tree]:
    """Returns the trees of the trained and of the frozen parameters."""
    trees = ({}, {})
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        *folders, name = optimizer.names(path)
        tree = trees[is_frozen((*folders, name))]
        for folder in folders:
            tree = tree.setdefault(folder, {})
        tree[name] = leaf
    return trees


def names(params: Tree) -> set[tuple[str, ...]]:
    """Returns the paths of the leaves of a tree of arrays, or of their shapes."""
    leaves = jax.tree_util.tree_leaves_with_path(params, is_leaf=lambda x: not isinstance(x, dict))
    return {optimizer.names(path) for path, _ in leaves}


def merged(tree: Tree, other: Tree) -> Tree:
    """Returns the tree of the leaves of both trees, which have no leaf in common."""
    common = tree.keys() & other.keys()
    return {**tree, **other} | {key: merged(tree[key], other[key]) for key in common}


def digest(params: Tree) -> str:
    """Returns a digest of names, shapes and bits of parameters, equal on every mesh.

    Each device sums a hash of its own elements, and integer sums have no rounding.
    """
    leaves = jax.tree_util.tree_leaves_with_path(params)
    mesh = leaves[0][1].sharding.mesh
    replicated = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    arrays = [leaf for _, leaf in leaves]
    program = hosts.compiled(jax.jit(_checksums, out_shardings=replicated), arrays)
    content = [
        ["/".join(optimizer.names(path)), leaf.shape, str(leaf.dtype), checksum.tolist()]
        for (path, leaf), checksum in zip(leaves, jax.device_get(program(arrays)))
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def _checksums(arrays: list[jax.Array]) -> list[jax.Array]:
    return [_checksum(array) for array in arrays]


def _checksum(x: jax.Array) -> jax.Array:
    """Returns two sums (2,) uint32 of hashes of the elements and their places."""
    bits = jax.lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * x.dtype.itemsize}"))
    place = sum(
        jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
        * jnp.uint32(math.prod(x.shape[axis + 1 :]) % 2**32)
        for axis in range(x.ndim)
    )
    # The multipliers are odd, so that each step is a bijection (as in MurmurHash3).
    first = _mixed(bits.astype(jnp.uint32) ^ _mixed(place + jnp.uint32(1)))
    return jnp.stack([first.sum(dtype=jnp.uint32), _mixed(first).sum(dtype=jnp.uint32)])


def _mixed(x: jax.Array) -> jax.Array:
    """Returns MurmurHash3's final mix of uint32 numbers."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
