"""Caches of a limited size: the least recently used entries go first."""

import os
import pathlib
from collections.abc import Callable, Iterable
from typing import NamedTuple

from transformer_jax.config import UserError


class Entry(NamedTuple):
    """A file or folder of a cache."""

    path: pathlib.Path
    used: float  # when it was last used, in seconds
    size: int  # bytes


def limit(variable: str, default: float) -> float:
    """Returns the bytes of a cache: those of the environment variable, in GB, or `default`."""
    text = os.environ.get(variable)
    if not text:
        return default
    try:
        gigabytes = float(text)
    except ValueError:
        gigabytes = -1
    if not gigabytes >= 0:
        raise UserError(f"{variable}={text}: must be a number of GB, or inf")
    return gigabytes * 1e9


def remove(
    entries: Iterable[Entry], most: float, is_removed: Callable[[pathlib.Path], bool]
) -> list[Entry]:
    """Removes entries until the others have at most `most` bytes. Returns the removed ones.

    `is_removed(path)` removes an entry, or returns False because it is in use.
    """
    entries = sorted(entries, key=lambda entry: entry.used)
    size = sum(entry.size for entry in entries)
    removed = []
    for entry in entries:
        if size <= most:
            break
        if is_removed(entry.path):
            size -= entry.size
            removed.append(entry)
    return removed
