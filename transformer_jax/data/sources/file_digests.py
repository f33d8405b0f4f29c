"""The digests of raw files, remembered: a start reads no file that an earlier start has read.

A digest holds for a path and a version of the file: size and time of change, or in a bucket the
generation. The digests lie in `config.data.cache`, in the folder `digests`.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import time
from collections.abc import Sequence

from transformer_jax.config import UserError
from transformer_jax.data.store.files import Folder
from transformer_jax.distributed import hosts
from transformer_jax.storage import buckets

_FILE = "digests.json"
_MOST = 100_000  # the oldest digests beyond that many are forgotten
_SMALL = 2**20  # bytes; to read a smaller file takes no longer than to write its digest
_SAVE_SECONDS = 30  # between two writes of the file
# Seconds. Two changes within a tick of the file system's clock may leave size and time equal, so
# the digest of a file that has just changed is not remembered.
_FRESH = 2

Key = tuple[str, tuple]  # a path or URL, and the version of the file


@dataclasses.dataclass
class _Memory:
    """The digests that this process knows."""

    digests: dict[Key, str] = dataclasses.field(default_factory=dict)
    folder: str = ""  # where those of earlier starts lie; "" for nowhere
    is_read: bool = True  # whether `digests` has them


_memory = _Memory()


def remember_in(data) -> None:
    """From now on, digests are read from the cache of `data`, config.data, and added to it.

    With config.data.rebuild, those of earlier starts do not count.
    """
    folder = f"{str(data.cache).rstrip('/')}/digests"
    if data.rebuild:
        _memory.digests.clear()
    if data.rebuild or folder != _memory.folder:
        _memory.folder, _memory.is_read = folder, data.rebuild


def sha256(paths: Sequence[str]) -> list[str]:
    """Returns the SHA-256 digest of each file. Reads those whose version is not known."""
    if not _memory.is_read:
        _memory.is_read = True
        _memory.digests = _read(_memory.folder) | _memory.digests
    digests = []
    new: dict[Key, str] = {}
    saved_at = time.monotonic()
    for path in paths:
        started = time.time()
        key = place, version = _key(path)
        digest = _memory.digests.get(key)
        if digest is None:
            with buckets.path(place).open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if _is_settled(version, started) and _key(path) == key:
                new[key] = _memory.digests[key] = digest
        digests.append(digest)
        if time.monotonic() - saved_at > _SAVE_SECONDS:
            _save(new)
            saved_at = time.monotonic()
    _save(new)
    return digests


def share() -> None:
    """Gives all processes the digests that process 0 knows.

    Each then reads only files of another version, such as copies on its own disk. Every process
    must call it.
    """
    _memory.digests |= _of_rows(hosts.share(_rows(_memory.digests)))


def _key(path: str) -> Key:
    # Behind all links, because a link may come to name another file.
    place = buckets.path(path)
    place = os.path.realpath(place) if isinstance(place, pathlib.Path) else str(place)
    return place, buckets.version(place)


def _is_settled(version: tuple, now: float) -> bool:
    match version:
        case (_, nanoseconds):
            return now - nanoseconds / 1e9 > _FRESH
    return True


def _save(new: dict[Key, str]) -> None:
    """Adds the digests of large files to those of the folder, where it can be written."""
    large = {key: digest for key, digest in new.items() if _is_large(key[1])}
    if not large or not _memory.folder:
        return
    with contextlib.suppress(UserError):
        folder = Folder(_memory.folder)
        with folder.exclusive():
            digests = _read(_memory.folder) | large
            latest = dict(list(digests.items())[-_MOST:])
            folder.write(_FILE, json.dumps(_rows(latest)).encode(), sealed=True)


def _is_large(version: tuple) -> bool:
    match version:
        case (size, _):
            return size >= _SMALL
    return True  # each request to a bucket takes time


def _read(folder: str) -> dict[Key, str]:
    """Returns the digests that were saved in the folder; none where they can't be read."""
    # DamagedStore is a UserError.
    with contextlib.suppress(UserError, ValueError, TypeError):
        return _of_rows(json.loads(Folder(folder).read(_FILE, sealed=True) or b"[]"))
    return {}


def _rows(digests: dict[Key, str]) -> list:
    return [[place, version, digest] for (place, version), digest in digests.items()]


def _of_rows(rows: list) -> dict[Key, str]:
    return {(place, tuple(version)): digest for place, version, digest in rows}
