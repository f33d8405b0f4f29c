"""Stores and small files that are built once, under a key, and read from the cache later."""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from transformer_jax.config import UserError
from transformer_jax.data.store import workers
from transformer_jax.data.store.files import FORMAT, Folder, sha256
from transformer_jax.data.store.records import Record, Records, fill_records
from transformer_jax.data.store.tokens import Store, Writer
from transformer_jax.pictures.progress import doing, say
from transformer_jax.storage import least_used


@dataclasses.dataclass(frozen=True)
class Content:
    """The content of a token store.

    Attributes:
      parts: returns the parts of a text, picklable values; called where the store is not complete.
      fill: writes the tokens and arrays of a part, and returns its metadata; picklable. Equal parts
        give equal tokens.
      whole: returns the metadata of the store, of those of its parts. Raises UserError where the
        store would be of no use.
      title: names the work in progress lines.
    """

    parts: Callable[[], Sequence]
    fill: Callable[[Writer, Any], dict]
    whole: Callable[[list[dict]], dict]
    title: str


def build(
    cache: str, name: str, key: dict, vocab_size: int, content: Content, *, rebuild: bool = False
) -> Store:
    """Returns the token store of `key` below `cache`; builds the parts that do not exist.

    `cache` is a folder or the URL of a bucket that TensorStore opens (gs://bucket/prefix, s3://).
    `key` is JSON-able and holds everything that decides the content. The processes of one machine
    that need the same store wait for the first of them.
    """
    dtype = np.uint16 if vocab_size <= 2**16 else np.uint32
    folder = _folder(cache, name, key)
    team = workers.current()
    team.agree({f"the folder of {content.title}": folder.name})
    if team.share(_is_complete(folder, rebuild)):
        return Store(folder.path)
    with doing(f"building {folder.path}"), _leading(folder, rebuild):
        if not team.share(folder.has("store.json")):
            _build_parts(folder, content, np.dtype(dtype).name)
    return Store(folder.path)


@dataclasses.dataclass(frozen=True)
class _Job:
    """Builds one part of the token store at `path`."""

    path: str
    dtype: str
    fill: Callable[[Writer, Any], dict]

    def __call__(self, numbered: tuple[int, Any]) -> None:
        number, part = numbered
        folder = Folder(self.path).part(number)
        # A worker may be given a part that another one has built.
        if not folder.has("store.json"):
            writer = Writer(folder, "tokens", self.dtype)
            writer.finish(self.fill(writer, part))

    def report(self, numbered: tuple[int, Any], error: UserError) -> None:
        """Leaves the reason why a part can't be built, for the process that completes the store."""
        Folder(self.path).part(numbered[0]).write("error", str(error).encode())


def _build_parts(folder: Folder, content: Content, dtype: str) -> None:
    """Builds the missing parts of a token store, and completes it."""
    team = workers.current()
    numbered = list(enumerate(content.parts()))
    missing = team.share(_missing(folder, len(numbered)) if team.leads else None)
    if not folder.has("building"):
        raise _not_shared(folder)
    if len(missing) < len(numbered):
        existing = len(numbered) - len(missing)
        say(f"continuing with token store {folder.path}: {existing} of {len(numbered)} parts exist")
    job = _Job(str(folder.path), dtype, content.fill)
    team.run(job, [numbered[number] for number in missing], content.title)
    if team.leads:
        _complete(folder, len(numbered), content.whole)
    team.share("complete")


def _missing(folder: Folder, count: int) -> list[int]:
    """Returns the numbers of the parts that do not exist, after clearing what is left of them."""
    names = folder.names()
    complete = {name.partition("/")[0] for name in names if name.endswith("/store.json")}
    for part in {name.partition("/")[0] for name in names if "/" in name} - complete:
        Folder(f"{folder.path}/{part}").clear()
    # A bucket that refuses writes is reported before the work begins.
    folder.write("building", b"")
    return [number for number in range(count) if f"{number:05}" not in complete]


def _complete(folder: Folder, count: int, whole: Callable[[list[dict]], dict]) -> None:
    """Writes the list of all parts. Raises UserError where a part is not there."""
    parts = []
    for number in range(count):
        part = folder.part(number)
        if not part.has("store.json"):
            error = part.read("error")
            raise UserError(error.decode()) if error else _not_shared(part)
        parts.append(part.open_complete()[0])
    metadata = {"whole": whole(parts), "parts": parts}
    folder.delete("building")
    folder.complete(metadata, ())
    size = sum(part["tokens"] for part in parts)
    say(f"built token store {folder.path} ({size:,} tokens)")


def build_records(
    cache: str,
    name: str,
    key: dict,
    read: Callable[[], Iterator[Record]],
    *,
    rebuild: bool = False,
) -> Records:
    """Returns the byte records of `key` below `cache`; builds the parts that do not exist.

    `read` returns all records from the first, in the same order each time. The rest is as for
    `build`. Raises UserError where there are no records, or where their numbers differ by name.
    """
    folder = _folder(cache, name, key)
    _make(folder, lambda: fill_records(folder, read), rebuild)
    return Records(folder.path)


def cached_files(
    cache: str,
    name: str,
    key: dict,
    make: Callable[[], dict[str, bytes]],
    *,
    rebuild: bool = False,
) -> dict[str, bytes]:
    """Returns the small files of `key` below `cache`; makes all of them where they do not exist.

    `cache` and `key` are those of `build`.
    """
    folder = _folder(cache, name, key)

    def write() -> None:
        folder.clear()
        if not folder.is_local:
            # A bucket that refuses writes is reported before the work begins.
            folder.write("building", b"")
        files = make()
        for file, content in files.items():
            folder.write(file, content)
        folder.delete("building")
        folder.complete({}, files)

    _make(folder, write, rebuild)
    return folder.open_complete()[1]


def _folder(cache: str, name: str, key: dict) -> Folder:
    """Returns the folder of `key`. It is not removed from the cache while the result lives."""
    digest = sha256(json.dumps({"format": FORMAT, **key}, sort_keys=True).encode())[:16]
    folder = Folder(f"{str(cache).rstrip('/')}/{name}-{digest}")
    folder.hold()
    return folder


def _is_complete(folder: Folder, rebuild: bool) -> bool:
    return not rebuild and folder.has("store.json")


def _make(folder: Folder, write: Callable[[], None], rebuild: bool) -> None:
    """Calls `write` where the folder is not complete.

    Where processes build together, the leading one has done so before the others come here.
    """
    if _is_complete(folder, rebuild):
        return
    if not workers.current().leads:
        raise _not_shared(folder)
    with doing(f"building {folder.path}"), _leading(folder, rebuild):
        if not folder.has("store.json"):
            write()


def _not_shared(folder: Folder) -> UserError:
    return UserError(
        f"config.data.cache: {folder.path} is not there, which another worker has built; "
        "the cache must be on storage that all workers share"
    )


@contextlib.contextmanager
def _leading(folder: Folder, rebuild: bool) -> Iterator[None]:
    """The leading process holds the folder's lock, and clears the folder to build it again.

    Afterwards it removes what others have built, where the cache has become too large.
    """
    if not workers.current().leads:
        yield
        return
    with folder.exclusive():
        if rebuild:
            folder.clear()
        yield
    if folder.is_local:
        keep_small(folder.path.parent)


# Only a cache on a disk is limited. Buckets have their own rules for old objects.
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
