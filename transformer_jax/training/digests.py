"""Digests of the files in a checkpoint, to find out whether a file has changed.

The compressed chunks that Orbax writes have no checksum, and a flipped bit would pass for a weight.
"""

import concurrent.futures
import contextlib
import hashlib
import json
import os
import pathlib
from collections.abc import Sequence

import jax
import numpy as np
from jax.experimental import multihost_utils

NAME = "digests.json"  # {name: SHA-256} of the other files in its folder


def write(folder: pathlib.Path, without: str) -> None:
    """Writes the digests of all files below `folder`, except those with the name `without`."""
    names = sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and path.name != without
    )
    with (folder / NAME).open("w") as file:
        json.dump(dict(zip(names, _of(folder, names))), file, indent=0)
        file.flush()
        os.fsync(file.fileno())


def damage(folder: pathlib.Path) -> str | None:
    """Compares all files with their digests. Returns the first damage, or None.

    Every process must call it: each reads a part of the files, and all return damage if one does.
    """
    reason = _damage_of_part(folder)
    if jax.process_count() > 1:
        is_damaged = multihost_utils.process_allgather(np.array(reason is not None)).any()
        if is_damaged and not reason:
            return "another process found damage"
    return reason


def _damage_of_part(folder: pathlib.Path) -> str | None:
    try:
        digests = json.loads((folder / NAME).read_bytes())
        names = sorted(digests)[jax.process_index() :: jax.process_count()]
        for name, digest in zip(names, _of(folder, names)):
            if digest != digests[name]:
                return f"{name}: {'checksum mismatch' if digest else 'missing'}"
    except (ValueError, TypeError):
        return f"{NAME}: damaged"
    return None


def _of(folder: pathlib.Path, names: Sequence[str]) -> list[str | None]:
    """The SHA-256 of each named file in the folder; None for a missing file."""

    def digest(name: str) -> str | None:
        with contextlib.suppress(FileNotFoundError), (folder / name).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    with concurrent.futures.ThreadPoolExecutor() as pool:
        return list(pool.map(digest, names))
