"""Files on disks and in buckets, and caches of a limited size.

From a cache that exceeds its size, the least recently used entries are removed first.
"""

import os
import pathlib
from collections.abc import Callable, Iterable
from typing import NamedTuple

from transformer_jax.config import UserError


class CacheEntry(NamedTuple):
    """A file or folder in a cache."""

    path: pathlib.Path
    used: float  # the time when it was last used, in seconds since the epoch
    size: int  # bytes


def cache_limit(variable: str, default: float) -> float:
    """Returns the size limit of a cache in bytes.

    It is the value of the environment variable, which is in GB, or `default` if that is not set.
    Raises UserError if the value is not a number from 0.
    """
    text = os.environ.get(variable)
    if not text:
        return default
    try:
        gigabytes = float(text)
    except ValueError:
        gigabytes = -1
    # The condition is not `gigabytes < 0`, because that would accept nan.
    if not gigabytes >= 0:
        raise UserError(f"{variable}={text}: must be a number of GB, or inf")
    return gigabytes * 1e9


def remove_least_used(
    entries: Iterable[CacheEntry], most: float, try_to_remove: Callable[[pathlib.Path], bool]
) -> list[CacheEntry]:
    """Removes entries until the others have at most `most` bytes, and returns the removed ones.

    `try_to_remove(path)` removes an entry and returns True, or returns False if it is in use.
    """
    entries = sorted(entries, key=lambda entry: entry.used)
    size = sum(entry.size for entry in entries)
    removed = []
    for entry in entries:
        if size <= most:
            break
        # An entry in use is kept, even if the cache then exceeds its limit, because its user would
        # fail.
        if try_to_remove(entry.path):
            size -= entry.size
            removed.append(entry)
    return removed
