"""The rules of a model (`Growing`, models/model.py) for the tensors of an earlier run."""

from collections.abc import Callable, Mapping

import jax
import numpy as np

from transformer_jax.config import named_class


def vocabulary(config) -> tuple[str, ...]:
    """The names of the tensors whose rows are the tokens of the vocabulary."""
    return _model(config).vocabulary


def vocab_size(config) -> int:
    """The number of tokens; 0 for a model of images or sound."""
    return config.model.get("vocab_size", 0)


def origin(config, name: str, stored: Mapping) -> str:
    """Returns the name of the stored tensor with which a tensor begins, if there is one."""
    return name if name in stored else _model(config).origin(name)


def change(
    config, name: str, stored: tuple[int, ...], wanted: tuple[int, ...]
) -> Callable[[jax.Array], jax.Array] | None:
    """Returns the function from a stored tensor to one of another shape.

    None where the shapes are equal, and where the model has no rule for the tensor.
    """
    stored, wanted = tuple(stored), tuple(wanted)
    if stored == wanted or not stored:
        return None
    if stored[0] < wanted[0] and stored[1:] == wanted[1:]:
        rows = _model(config).origins_of_rows(name, stored[0], wanted[0])
        if rows is not None:
            return lambda tensor: tensor[np.array(rows)]
    return _model(config).resize(name, stored, wanted)


def _model(config) -> type:
    return named_class("model", config.model.name)
