"""Stores and small files that are built once, under a key, and read from the cache later."""

import json
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from transformer_jax.data.store.files import FORMAT, Folder, sha256
from transformer_jax.data.store.records import Record, Records, fill_records
from transformer_jax.data.store.tokens import Store, Writer
from transformer_jax.pictures.progress import say


def build(
    cache: str,
    name: str,
    key: dict,
    vocab_size: int,
    fill: Callable[[Writer], dict],
    *,
    rebuild: bool = False,
) -> Store:
    """Returns the token store of `key` below `cache`; builds it with `fill` if it does not exist.

    `cache` is a folder or the URL of a bucket that TensorStore opens (gs://bucket/prefix, s3://).
    `key` is JSON-able and holds everything that decides the content. `fill` writes the tokens and
    arrays and returns the metadata; it continues from `writer.restart`. The processes of one
    machine that need the same store wait for the first of them.
    """

    dtype = np.uint16 if vocab_size <= 2**16 else np.uint32
    make = partial(_filled, values="tokens", dtype=dtype, fill=fill)
    return Store(_built_folder(cache, name, key, make, rebuild).path)


def build_records(
    cache: str,
    name: str,
    key: dict,
    read: Callable[[], Iterator[Record]],
    *,
    rebuild: bool = False,
) -> Records:
    """Returns the byte records of `key` below `cache`; builds them where they do not exist.

    `read` returns all records from the first, in the same order each time. The rest is as for
    `build`. Raises UserError where there are no records, or where their numbers differ by name.
    """
    make = partial(_filled, values="bytes", dtype=np.uint8, fill=partial(fill_records, read=read))
    return Records(_built_folder(cache, name, key, make, rebuild).path)


def _filled(folder: Folder, values: str, dtype, fill: Callable[[Writer], dict]) -> None:
    """Builds the store of `values` in `folder`, or continues an interrupted build."""
    kind = values.removesuffix("s")
    writer = Writer(folder, values, dtype)
    if writer.restart is not None:
        say(f"continuing with {kind} store {folder.path} after {writer.size:,} {values}")
    writer.finish(fill(writer))
    say(f"built {kind} store {folder.path} ({writer.size:,} {values})")


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

    def write(folder: Folder) -> None:
        files = make()
        for file, content in files.items():
            folder.write(file, content)
        folder.complete({}, files)

    _, files = _built_folder(cache, name, key, write, rebuild).open_complete()
    return files


def _built_folder(
    cache: str, name: str, key: dict, make: Callable[[Folder], None], rebuild: bool
) -> Folder:
    """Returns the folder of `key`, after calling `make` where it is not complete."""
    digest = sha256(json.dumps({"format": FORMAT, **key}, sort_keys=True).encode())[:16]
    folder = Folder(f"{str(cache).rstrip('/')}/{name}-{digest}")
    if not rebuild and folder.has("store.json") and not folder.has("restart"):
        return folder
    with folder.exclusive():
        if rebuild or not (folder.has("store.json") or folder.read("restart")):
            folder.clear()
        if not folder.has("store.json"):
            make(folder)
        folder.delete("restart")
    return folder
