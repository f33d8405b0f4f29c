"""The names of the tensors in a tree of parameters, such as "norm/scale"."""

from collections.abc import Iterable

import jax

from transformer_jax.training import optimizer


def by_name(tree) -> dict:
    """The leaves of a tree of arrays, or of their shapes, by name."""
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_leaf)
    return {of_path(path): leaf for path, leaf in leaves}


def of_path(path) -> str:
    return "/".join(optimizer.names(path))


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
