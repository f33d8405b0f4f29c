"""The token store: one flat array of tokens beside small index arrays, built once and read at random.

On disk (TensorStore zarr3, each chunk under a CRC-32C):
    tokens/         uint16 or uint32, chunks of 16k tokens in shards of 16M
    <name>/         int64 index arrays (offsets, rows), read whole
    store.json      meta data, the stamp of every file, and its own SHA-256
A store is either there whole or not at all: it is built in a hidden folder under a lock and renamed.
"""
import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Sequence

import numpy as np
import tensorstore as ts

from transformer_jax.config import UserError
from transformer_jax.progress import say

FORMAT = 3  # part of every store's key: a change of layout rebuilds
_CHUNK, _SHARD = 2**14, 2**24
_CACHE = ts.Context({"cache_pool": {"total_bytes_limit": 2**28}})


class DamagedStore(UserError):
    """A token store that is not what was written."""

    def __init__(self, path, detail):
        super().__init__(f"token store {path} is damaged ({detail}); build it again with --config.data.rebuild=true")


class Writer:
    """Fills a store that is being built: tokens in order, then index arrays."""

    def __init__(self, path: pathlib.Path, vocab_size: int):
        self.path, self.size = path, 0
        self._dtype = np.uint16 if vocab_size <= 2**16 else np.uint32
        self._tokens = ts.open(_zarr(path / "tokens", self._dtype, 0, create=True)).result()
        self._pending: list[np.ndarray] = []
        self._pending_size = 0

    def append(self, tokens: np.ndarray) -> None:
        self._pending.append(np.asarray(tokens, self._dtype))
        self._pending_size += len(tokens)
        if self._pending_size >= _SHARD:
            self._flush(self._pending_size // _SHARD * _SHARD)

    def array(self, name: str, values: np.ndarray) -> None:
        out = ts.open(_zarr(self.path / name, np.int64, len(values), create=True)).result()
        out[:].write(np.asarray(values, np.int64)).result()

    def _flush(self, size: int) -> None:  # whole shards, so that none is written twice
        data = np.concatenate(self._pending) if self._pending else np.zeros(0, self._dtype)
        self._tokens = self._tokens.resize(exclusive_max=[self.size + size]).result()
        if size:
            self._tokens[self.size:self.size + size].write(data[:size]).result()
        self.size += size
        self._pending, self._pending_size = [data[size:]], len(data) - size

    def finish(self, meta: dict) -> None:
        self._flush(self._pending_size)
        files = {str(p.relative_to(self.path)): _stamp(p) for p in sorted(self.path.rglob("*")) if p.is_file()}
        body = json.dumps({"format": FORMAT, "meta": meta, "files": files})
        with open(self.path / "store.json", "w") as out:
            out.write(f"{body}\n{hashlib.sha256(body.encode()).hexdigest()}\n")
            out.flush()
            os.fsync(out.fileno())


class Store:
    """An open store: `meta`, `array(name)` whole, `read(spans)` at random. Raises DamagedStore where bytes are not as written."""

    def __init__(self, path: pathlib.Path):
        self.path = path
        try:
            body, digest = (path / "store.json").read_text().splitlines()
            if hashlib.sha256(body.encode()).hexdigest() != digest:
                raise ValueError("store.json: checksum mismatch")
            content = json.loads(body)
        except (OSError, ValueError) as error:
            raise DamagedStore(path, error) from None
        for name, stamp in content["files"].items():  # a missing shard would read as zeros
            there = _stamp(path / name) if (path / name).is_file() else "missing"
            if there != stamp:
                raise DamagedStore(path, f"{name}: {there}, should be {stamp}")
        self.meta = content["meta"]
        self._tokens = self._open("tokens")

    def array(self, name: str) -> np.ndarray:
        with self._damage():
            return self._open(name)[:].read().result()

    def read(self, spans: Sequence[tuple[int, int]]) -> list[np.ndarray]:
        """The tokens [start, stop) of each span; the reads run side by side."""
        with self._damage():
            futures = [self._tokens[int(start):int(stop)].read() for start, stop in spans]
            return [f.result() for f in futures]

    def _open(self, name):
        with self._damage():
            return ts.open({"driver": "zarr3", "kvstore": _file(self.path / name), "recheck_cached_data": "open"}, read=True, context=_CACHE).result()

    @contextlib.contextmanager
    def _damage(self):
        try:
            yield
        except ValueError as error:  # TensorStore's DATA_LOSS, with the file's name
            raise DamagedStore(self.path, error) from None


def build(cache: str, name: str, key: dict, vocab_size: int, fill: Callable[[Writer], dict], rebuild: bool = False) -> Store:
    """The store of `key` (JSON-able, all that decides its content) below `cache`, built by `fill` if it is not there.

    `fill` writes tokens and arrays and returns the meta data. Processes that want the same store wait for the first.
    """
    folder = pathlib.Path(cache).expanduser()
    digest = hashlib.sha256(json.dumps({"format": FORMAT, **key}, sort_keys=True).encode()).hexdigest()[:16]
    path, half = folder / f"{name}-{digest}", folder / f".{name}-{digest}.building"
    if path.exists() and not rebuild:
        return Store(path)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / f".{name}-{digest}.lock"):
        if rebuild:
            shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
            shutil.rmtree(half, ignore_errors=True)  # what a killed build left
            half.mkdir()
            writer = Writer(half, vocab_size)
            writer.finish(fill(writer))
            os.rename(half, path)
            say(f"built token store {path} ({writer.size:,} tokens)")
    return Store(path)


@contextlib.contextmanager
def locked(path: pathlib.Path):
    """Holds an advisory lock; the system frees it when its process ends, however it ends."""
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _stamp(path: pathlib.Path) -> str:
    """What tells a file from the one written: its size, and its SHA-256 where no chunk's checksum covers it."""
    return f"sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}" if path.suffix == ".json" else f"{path.stat().st_size} bytes"


def _file(path: pathlib.Path) -> dict:
    return {"driver": "file", "path": str(path)}


def _zarr(path, dtype, size, create):
    checked = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
    sharding = {"chunk_shape": [_CHUNK], "codecs": checked, "index_codecs": checked}
    metadata = {"shape": [size], "data_type": np.dtype(dtype).name, "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
                "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [_SHARD]}}}
    return {"driver": "zarr3", "kvstore": _file(path), "metadata": metadata, "create": create}
