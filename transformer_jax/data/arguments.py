"""Checks of the arguments that the methods of several tasks take."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from transformer_jax.config import UserError

Data = TypeVar("Data")


def held_out(read: Callable[[str], Data | None], split: str, *endings: str) -> Data:
    """Returns `read(split)`, the data of a split that is not trained on.

    Raises UserError where `split` is not "valid" or "test", and where the run has no such data.
    The error then asks for the keys `config.data.<split>_<ending>`.
    """
    if split not in ("valid", "test"):
        raise UserError(f"split {split!r}: only 'valid' and 'test' can be evaluated")
    data = read(split)
    if data is None:
        keys = " and ".join(f"--config.data.{split}_{ending}" for ending in endings)
        raise UserError(f"--set={split}: this run has no such data; give {keys}")
    return data


def as_texts(texts: Iterable[str]) -> Iterable[str]:
    """Returns `texts` unchanged. Raises TypeError for a single string.

    A string is an iterable of strings, too: each of its characters would be taken for a text.
    """
    if isinstance(texts, str):
        raise TypeError(f"expected a list of texts, got one text: use [{texts[:30]!r}]")
    return texts
