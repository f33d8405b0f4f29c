"""The token store: one flat array of tokens beside small index arrays, built once and read at
random.

A folder on a disk or in a bucket (TensorStore zarr3; every chunk, and the index of every shard,
under a CRC-32C):
    tokens/         uint16 or uint32, chunks of 32 KiB in shards of 32 MiB
    <name>/         int64 index arrays (offsets, rows), read whole
    restart         only while it is being built: the last mark, from which a killed build goes on
    store.json      meta data, the SHA-256 of what no CRC covers, and its own
A store is there exactly when its store.json is, which is written last. Files that are written whole
are kept in the same way.
"""

import contextlib
import fcntl
import hashlib
import io
import json
import pathlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorstore as ts

from transformer_jax.config import UserError
from transformer_jax.pictures.progress import say
from transformer_jax.storage import buckets

FORMAT = 4  # part of every key: a change of layout rebuilds
_CHUNK, _SHARD = 2**15, 2**25  # bytes
_MARK_SECONDS = 30  # between marks
_PATIENCE = 60  # seconds for a small file; TensorStore itself would try for a quarter of an hour
_CONTEXT = ts.Context()
_CACHED = ts.Context({"cache_pool": {"total_bytes_limit": 2**28}}, _CONTEXT)


class DamagedStore(UserError):
    """A token store, or files kept like one, that are not what was written."""

    def __init__(self, path, detail):
        super().__init__(
            f"{path} is damaged ({detail}); build it again with --config.data.rebuild=true"
        )


class Writer:
    """Fills a store that is being built: tokens and index arrays, each in order.

    `restart`: None, or the progress of the last mark of a killed build; what was written before
    that mark is there already.
    """

    def __init__(self, folder: "_Folder", vocab_size: int):
        self.restart, self._folder = None, folder
        self._columns = {
            "tokens": _Column(folder, "tokens", np.uint16 if vocab_size <= 2**16 else np.uint32)
        }
        if saved := folder.read("restart", sealed=True):
            header, *rests = np.load(io.BytesIO(saved)).values()
            self.restart, written = json.loads(header.item())
            self._columns = {
                name: _Column(folder, name, rest.dtype, size, rest)
                for (name, size), rest in zip(written.items(), rests)
            }
        self._marked, self._time = self.size, time.monotonic()

    @property
    def size(self) -> int:
        """Tokens so far."""
        return self._columns["tokens"].size

    def append(self, tokens: np.ndarray) -> None:
        self._columns["tokens"].append(tokens)

    def array(self, name: str, values: np.ndarray) -> None:
        """Appends to the index array `name`."""
        self._columns.setdefault(name, _Column(self._folder, name, np.int64)).append(values)

    def mark(self, progress: Any) -> None:
        """Makes what was written so far durable, and `progress` (JSON-able) with it. Cheap: done
        once a shard, or after 30 seconds.
        """
        if (
            self.size - self._marked < self._columns["tokens"].shard
            and time.monotonic() - self._time < _MARK_SECONDS
        ):
            return
        content = io.BytesIO()
        header = json.dumps(
            [progress, {name: column.written for name, column in self._columns.items()}]
        )
        np.savez(content, header, *(column.rest() for column in self._columns.values()))
        self._folder.write("restart", content.getvalue(), sealed=True)
        self._marked, self._time = self.size, time.monotonic()

    def finish(self, meta: dict) -> None:
        for column in self._columns.values():
            column.close()
        self._folder.complete(meta, [f"{name}/zarr.json" for name in self._columns])


class Store:
    """An open store: `meta`, `array(name)` whole, `read(spans)` at random. Raises DamagedStore
    where bytes are not as written.
    """

    def __init__(self, path: str | pathlib.Path):
        self._folder = _Folder(path)
        self.path = self._folder.path
        self.meta, _ = self._folder.opened()
        self._tokens = self._open("tokens")

    def array(self, name: str) -> np.ndarray:
        with _told(self.path):
            return self._open(name)[:].read().result()

    def read(self, spans: Sequence[tuple[int, int]]) -> list[np.ndarray]:
        """The tokens [start, stop) of each span; the reads run side by side."""
        with _told(self.path):
            futures = [self._tokens[int(start) : int(stop)].read() for start, stop in spans]
            return [f.result() for f in futures]

    def _open(self, name):  # a missing shard must not read as zeros
        spec = {
            "driver": "zarr3",
            "kvstore": self._folder.url(name),
            "fill_missing_data_reads": False,
            "recheck_cached_data": "open",
        }
        with _told(self.path):
            return ts.open(spec, read=True, context=_CACHED).result()


def build(
    cache: str,
    name: str,
    key: dict,
    vocab_size: int,
    fill: Callable[[Writer], dict],
    rebuild: bool = False,
) -> Store:
    """The store of `key` (JSON-able, all that decides its content) below `cache`, built by `fill`
    if it is not there.

    `cache` is a folder or a bucket's URL (gs://bucket/prefix, s3://..., whatever TensorStore
    opens). `fill` writes tokens and arrays and returns the meta data; it goes on from
    `writer.restart`. Processes of a machine that want the same store wait for the first.
    """

    def make(folder):
        writer = Writer(folder, vocab_size)
        if writer.restart is not None:
            say(f"going on with token store {folder.path} after {writer.size:,} tokens")
        writer.finish(fill(writer))
        say(f"built token store {folder.path} ({writer.size:,} tokens)")

    return Store(_made(cache, name, key, make, rebuild).path)


def kept(
    cache: str, name: str, key: dict, make: Callable[[], dict[str, bytes]], rebuild: bool = False
) -> dict[str, bytes]:
    """The small files that `make` returns for `key`, made once and kept below `cache` (see
    `build`), all of them or none.
    """

    def write(folder):
        files = make()
        for file, content in files.items():
            folder.write(file, content)
        folder.complete({}, files)

    return _made(cache, name, key, write, rebuild).opened()[1]


def _made(cache, name, key, make, rebuild):
    digest = _sha256(json.dumps({"format": FORMAT, **key}, sort_keys=True).encode())[:16]
    folder = _Folder(f"{str(cache).rstrip('/')}/{name}-{digest}")
    if rebuild or not folder.has("store.json") or folder.has("restart"):
        with folder.alone():
            if rebuild or not (folder.has("store.json") or folder.read("restart")):
                folder.clear()
            if not folder.has("store.json"):
                make(folder)
            folder.write("restart", None)
    return folder


@contextlib.contextmanager
def locked(path: pathlib.Path):
    """Holds an advisory lock; the system frees it when its process ends, however it ends."""
    with _told(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "w")
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class _Folder:
    """The files of one store, on a disk or in a bucket. Each is written atomically."""

    def __init__(self, path: str | pathlib.Path):
        url = str(path).removeprefix("file://")
        self.local = "://" not in url
        self.path = buckets.path(url).absolute() if self.local else url
        with _told(self.path):
            self._files = ts.KvStore.open(
                f"{self.path.as_uri() if self.local else url}/", context=_CONTEXT
            ).result()

    def url(self, name: str) -> str:
        return (self._files / f"{name}/").url

    def has(self, name: str) -> bool:
        return self.read(name) is not None

    def read(self, name: str, sealed: bool = False) -> bytes | None:
        """The content, None without such a file. Sealed: it must be what was written, or
        DamagedStore is raised.
        """
        with _told(self.path):
            found = self._files.read(name).result(_PATIENCE)
        if not sealed or not found.value:
            return None if found.state == "missing" else found.value
        digest, _, content = found.value.partition(b"\n")
        if digest.decode(errors="replace") != _sha256(content):
            raise DamagedStore(self.path, f"{name}: checksum mismatch")
        return content

    # None: deletes it
    def write(self, name: str, content: bytes | None, sealed: bool = False) -> None:
        with _told(self.path):
            self._files.write(
                name, f"{_sha256(content)}\n".encode() + content if sealed else content
            ).result()

    @contextlib.contextmanager
    def alone(self):
        """On one machine builders wait for each other. In a bucket nothing is locked: process 0
        alone builds, the caller's business.
        """
        with (
            locked(self.path.with_name(f".{self.path.name}.lock"))
            if self.local
            else contextlib.nullcontext()
        ):
            # left by a killed write; TensorStore would not truncate it
            for half in self.path.rglob("*.__lock") if self.local else ():
                half.unlink()
            yield

    def clear(self) -> None:
        # these first: half a folder must not look like more
        for name in filter(self.has, ("restart", "store.json")):
            self.write(name, None)
        with _told(self.path):
            self._files.delete_range(ts.KvStore.KeyRange()).result()
        if not self.local:
            # a bucket that can't be written is better known before the work
            self.write("restart", b"")

    def complete(self, meta: dict, files: Iterable[str]) -> None:
        """Declares the folder complete. `files`: those that no CRC covers; `opened` checks and
        returns them.
        """
        body = {
            "format": FORMAT,
            "meta": meta,
            "files": {name: _sha256(self.read(name)) for name in files},
        }
        self.write("store.json", json.dumps(body).encode(), sealed=True)

    def opened(self) -> tuple[dict, dict[str, bytes]]:
        """Meta data and files."""
        if not (body := self.read("store.json", sealed=True)):
            raise DamagedStore(self.path, "store.json: missing or empty")
        content = json.loads(body)
        files = {name: self.read(name) for name in content["files"]}
        for name, digest in content["files"].items():
            if _sha256(files[name] or b"") != digest:
                raise DamagedStore(self.path, f"{name}: missing or checksum mismatch")
        return content["meta"], files


class _Column:
    """A flat array that is being written: whole shards as they fill, so that none is written twice;
    the rest waits.
    """

    def __init__(self, folder: _Folder, name: str, dtype, written: int = 0, rest: Sequence = ()):
        self.folder, self.name, self.dtype = folder, name, np.dtype(dtype)
        self.written, self.size, self._rest = (
            written,
            written + len(rest),
            [np.asarray(rest, dtype)],
        )
        self.shard = _SHARD // self.dtype.itemsize

    def append(self, values: np.ndarray) -> None:
        self._rest.append(np.asarray(values, self.dtype))
        self.size += len(values)
        if whole := (self.size - self.written) // self.shard * self.shard:
            # the size is known at the end
            self._write(whole, {"shape": [2**60]}, open=True, assume_metadata=True)

    def close(self) -> None:
        self._write(self.size - self.written, {"shape": [self.size]}, open=True, create=True)

    def rest(self) -> np.ndarray:
        self._rest = [np.concatenate(self._rest)]
        return self._rest[0]

    def _write(self, count, shape, **mode):
        checked = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
        sharding = {
            "chunk_shape": [_CHUNK // self.dtype.itemsize],
            "codecs": checked,
            "index_codecs": checked,
        }
        metadata = {
            "data_type": self.dtype.name,
            "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [self.shard]}},
        }
        spec = {
            "driver": "zarr3",
            "kvstore": self.folder.url(self.name),
            "metadata": metadata | shape,
            "store_data_equal_to_fill_value": True,
        }
        rest = self.rest()
        with _told(self.folder.path):
            out = ts.open(spec, context=_CONTEXT, **mode).result()
            if count:
                out[self.written : self.written + count].write(rest[:count]).result()
        self.written, self._rest = self.written + count, [rest[count:]]


@contextlib.contextmanager
def _told(path):
    """What goes wrong in a disk or bucket, in one line."""
    try:
        yield
    # TensorStore's: a TimeoutError without text, or ValueErrors that begin with a code
    except (OSError, ValueError) as error:
        detail = str(error).split(" [")[0] or f"no answer within {_PATIENCE} seconds"
        if detail.startswith(
            ("DATA_LOSS", "NOT_FOUND: chunk", "FAILED_PRECONDITION: Error reading")
        ):
            raise DamagedStore(path, detail) from None
        raise UserError(f"{path}: {detail}") from None


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
