"""Digests of the files in a checkpoint, to find out whether a file has changed.

Each process computes those of the files that it has written.
The compressed chunks that Orbax writes have no checksum, and a flipped bit would pass for a weight.
"""

import concurrent.futures
import contextlib
import fnmatch
import hashlib
import json
import os
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence

import jax
import numpy as np
from jax.experimental import multihost_utils

NAME = "digests.json"  # {name: SHA-256} of the other files in its folder
# One of several processes writes it for its files. Those are not in NAME, but this file is.
_PART = "digests-{}.json"
# Orbax writes the time of the commit into this file, and nothing is restored from it.
_STAMP = "_CHECKPOINT_METADATA"


def write_part(folder: pathlib.Path) -> None:
    """Writes the digests of the files that this process, one of several, has written.

    Orbax gives each process a folder for its parts of the arrays. Later it merges these into one
    database, which refers to their files and does not change them.
    """
    own = [
        name
        for part in folder.glob(f"*/ocdbt.process_{jax.process_index()}")
        for name in _files(folder, part)
    ]
    # The folder of an item, such as params, has a suffix until all is merged.
    final = [re.sub(r"^([^./]*)[^/]*", r"\1", name) for name in own]
    _save(folder / _PART.format(jax.process_index()), zip(final, _of(folder, own)))


def write(folder: pathlib.Path) -> None:
    """Writes the digests of all files below `folder` that have none from `write_part`."""
    parts = folder.glob(_PART.format("*"))
    written = {name for part in parts for name in json.loads(part.read_bytes())}
    names = [name for name in _files(folder, folder) if name not in {*written, _STAMP}]
    _save(folder / NAME, zip(names, _of(folder, names)))


def _files(folder: pathlib.Path, below: pathlib.Path) -> list[str]:
    """The files below a folder, relative to `folder`, in order."""
    return sorted(str(path.relative_to(folder)) for path in below.rglob("*") if path.is_file())


def _save(path: pathlib.Path, digests: Iterable[tuple[str, str | None]]) -> None:
    with path.open("w") as file:
        json.dump(dict(digests), file, indent=0)
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
        parts = [name for name in digests if fnmatch.fnmatch(name, _PART.format("*"))]
        if reason := _mismatch(folder, digests, parts):
            return reason
        for part in parts:
            digests |= json.loads((folder / part).read_bytes())
        return _mismatch(
            folder, digests, sorted(digests)[jax.process_index() :: jax.process_count()]
        )
    except (ValueError, TypeError):
        return f"{NAME}: damaged"


def _mismatch(folder: pathlib.Path, digests: Mapping[str, str], names: Sequence[str]) -> str | None:
    for name, digest in zip(names, _of(folder, names)):
        if digest != digests[name]:
            return f"{name}: {'checksum mismatch' if digest else 'missing'}"
    return None


def _of(folder: pathlib.Path, names: Sequence[str]) -> list[str | None]:
    """The SHA-256 of each named file in the folder; None for a missing file."""

    def digest(name: str) -> str | None:
        with contextlib.suppress(FileNotFoundError), (folder / name).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    with concurrent.futures.ThreadPoolExecutor() as pool:
        return list(pool.map(digest, names))
