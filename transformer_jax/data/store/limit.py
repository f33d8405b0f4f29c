"""The size of a cache on a disk: the stores that were not used for longest are removed.

Buckets have no limit here; they have their own rules for old objects.
"""

import contextlib
import os
import pathlib
import re
import shutil
from collections.abc import Iterator

from transformer_jax.data.store.files import Folder
from transformer_jax.pictures.progress import say
from transformer_jax.storage import least_used

LIMIT = "TRANSFORMER_JAX_STORES_GB"
_BYTES = 200e9
_SHARE = 0.5  # of the disk


def keep_small(cache: pathlib.Path) -> None:
    """Removes the least recently used stores of a folder, beyond the limit.

    No store is removed that a process has open, or builds. What is removed is built again where it
    is needed.
    """
    most = least_used.limit(LIMIT, min(_BYTES, _SHARE * shutil.disk_usage(cache).total))
    removed = least_used.remove(_entries(cache), most, lambda path: Folder(path).remove())
    if removed:
        names = ", ".join(entry.path.name for entry in removed)
        size = sum(entry.size for entry in removed) / 1e9
        say(f"removed from {cache}, beyond {LIMIT}={most / 1e9:g}: {names} ({size:,.2f} GB)")


def _entries(cache: pathlib.Path) -> Iterator[least_used.Entry]:
    for path in cache.iterdir():
        is_store = re.search("-[0-9a-f]{16}$", path.name)
        if is_store and (used := Folder(path).last_used()) is not None:
            yield least_used.Entry(path, used, _size(path))


def _size(path: pathlib.Path) -> int:
    size = 0
    for folder, _, names in os.walk(path):
        for name in names:
            # Another process may have removed it.
            with contextlib.suppress(FileNotFoundError):
                size += os.path.getsize(os.path.join(folder, name))
    return size
