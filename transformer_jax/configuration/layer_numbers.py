"""Layers of a stack, by their numbers from 0: "0,2,4", or a slice such as "::2"; "" is all."""

import re

_NUMBERS = re.compile(r"\d+(,\d+)*|-?\d*:-?\d*(:-?[1-9]\d*)?")


def is_valid(layers: str) -> bool:
    """Returns whether a text names layers."""
    return not layers or _NUMBERS.fullmatch(layers) is not None


def chosen(layers: str, num_layers: int) -> list[int]:
    """Returns the numbers of the layers, in a stack of `num_layers`. The largest may be too large.

    A negative limit of a slice counts from the top.
    """
    if not layers:
        return list(range(num_layers))
    if ":" not in layers:
        return [int(number) for number in layers.split(",")]
    limits = (int(limit) if limit else None for limit in layers.split(":"))
    return list(range(num_layers)[slice(*limits)])
