"""Functions and models whose calls are programs: an op of a function that is not jitted is a
program of its own for each shape, and takes 20 ms to compile.
"""

import functools

import flax.linen as nn
import jax
import numpy as np


def jitted(function):
    """Jits a function. Arguments that are no arrays are static, also inside of containers."""

    @functools.partial(jax.jit, static_argnums=(0, 1))
    def program(structure, static, arrays):
        arrays = iter(arrays)
        leaves = [next(arrays) if leaf is jax.Array else leaf for leaf in static]
        arguments, options = jax.tree.unflatten(structure, leaves)
        return function(*arguments, **options)

    @functools.wraps(function)
    def call(*arguments, **options):
        leaves, structure = jax.tree.flatten((arguments, options))
        is_array = [isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves]
        static = tuple(jax.Array if array else leaf for array, leaf in zip(is_array, leaves))
        return program(structure, static, [x for x, array in zip(leaves, is_array) if array])

    return call


class Jitted:
    """A model whose methods are jitted. Values of arrays cannot be checked in them."""

    def __init__(self, model: nn.Module):
        self.model = model

    def __getattr__(self, name):
        attribute = getattr(self.model, name)
        if not callable(attribute) or isinstance(attribute, type | nn.Module):
            return attribute
        setattr(self, name, jitted(attribute))
        return getattr(self, name)


def jit_apply(monkeypatch):
    """Makes each call of a model's `apply` a program, for functions that call it themselves.

    It is another program in each call, as tracing may have effects: `capture` reads them.
    """
    apply = nn.Module.apply
    monkeypatch.setattr(nn.Module, "apply", lambda *args, **kwargs: jitted(apply)(*args, **kwargs))
