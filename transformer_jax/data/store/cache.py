"""Token stores and small files that are built once, under a key, and read from the cache later."""

import json
from collections.abc import Callable

from transformer_jax.data.store.files import FORMAT, Folder, sha256
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
    """Returns the store of `key` below `cache`; builds it with `fill` where it does not exist.

    `cache` is a folder or the URL of a bucket that TensorStore opens (gs://bucket/prefix, s3://).
    `key` is JSON-able and holds everything that decides the content. `fill` writes the tokens and
    arrays and returns the metadata; it continues from `writer.restart`. The processes of one
    machine that need the same store wait for the first of them.
    """

    def make(folder: Folder) -> None:
        writer = Writer(folder, vocab_size)
        if writer.restart is not None:
            say(f"continuing with token store {folder.path} after {writer.size:,} tokens")
        writer.finish(fill(writer))
        say(f"built token store {folder.path} ({writer.size:,} tokens)")

    return Store(_built_folder(cache, name, key, make, rebuild).path)


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
