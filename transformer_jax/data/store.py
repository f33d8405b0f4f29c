"""Token and record stores: a flat array of tokens or bytes with small index arrays, built in parts.

A store is built once and is a folder on a disk or in a bucket:

    00000/          the first part; its bounds depend only on the bytes of the text
        tokens/     uint16 or uint32, in chunks of 32 KiB and shards of 32 MiB
        bytes/      uint8, instead of tokens: the concatenated contents of byte records
        <name>/     index arrays of the part (rows, numbers of records)
        store.json  the metadata of the part, the digests of files without a CRC, and its own digest
    00001/          the next part
    building        exists during a build; an interrupted build continues with the missing parts
    store.json      the metadata of the store and of each part, and its own digest

The arrays are in TensorStore's zarr3 format, in which each chunk and each shard index has a
CRC-32C. store.json is written last, so a store or a part is complete if and only if it has that
file. The folders of `cached_files` have the same store.json.
"""

import bisect
import concurrent.futures
import contextlib
import dataclasses
import fcntl
import hashlib
import importlib.util
import itertools
import json
import os
import pathlib
import re
import shutil
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorstore as ts

from transformer_jax import storage
from transformer_jax.config import RunError, UserError
from transformer_jax.distributed import hosts
from transformer_jax.pictures.progress import doing, say, track
from transformer_jax.storage import buckets

FORMAT = 5  # Part of every key, so that a new layout leads to new folders.
CONTEXT = ts.Context()
# Seconds that reading a small file may take. TensorStore alone would retry for a quarter of an
# hour before it reports a bucket that can't be reached.
_TIMEOUT = 60
# How TensorStore's messages about damaged data begin. It has no type of exception of its own for
# them, and other messages mean storage that can't be reached, where building again would not help.
_DAMAGE = ("DATA_LOSS", "NOT_FOUND: chunk", "FAILED_PRECONDITION: Error reading")


class DamagedStore(UserError):
    """The content of a store differs from what was written."""

    def __init__(self, path, detail):
        super().__init__(
            f"{path} is damaged ({detail}); build it again with --config.data.rebuild=true"
        )


@contextlib.contextmanager
def storage_errors(path):
    """Turns errors of a disk or bucket into a UserError of one line, or into a DamagedStore."""
    try:
        yield
    # TensorStore raises a TimeoutError without text, or a ValueError that starts with a code.
    except (OSError, ValueError) as error:
        detail = str(error).split(" [")[0] or f"no answer within {_TIMEOUT} seconds"
        if detail.startswith(_DAMAGE):
            raise DamagedStore(path, detail) from None
        raise UserError(f"{path}: {detail}") from None


@contextlib.contextmanager
def locked(path: pathlib.Path):
    """Holds an advisory lock, which the operating system releases when the process exits."""
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "w")
    with file:
        # The file is not removed afterwards: a process that waits for this lock would then hold the
        # lock of a deleted file, while the next one locks a new file of the same name.
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class _SharedLock:
    """An advisory lock that several processes may hold at the same time.

    The modification time of the lock file is the time when it was last acquired.
    """

    def __init__(self, path: pathlib.Path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # A descriptor and not a `with`, because the lock must last as long as the object.
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError:
            descriptor = os.open(path, os.O_RDONLY)  # the file belongs to another user
        # Closing the descriptor also releases the lock.
        weakref.finalize(self, os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        # The cache removes the stores whose lock files have the oldest times.
        os.utime(descriptor)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Folder:
    """A folder on a disk or in a bucket.

    A sealed file starts with the digest of its content, which is verified when the file is read.
    """

    def __init__(self, path: str | pathlib.Path):
        url = str(path).removeprefix("file://")
        self.is_local = "://" not in url
        self.path = buckets.path(url).absolute() if self.is_local else url
        base = self.path.as_uri() if self.is_local else url
        with storage_errors(self.path):
            # TensorStore for local folders too, so that a disk and a bucket have one code path.
            self._files = ts.KvStore.open(f"{base}/", context=CONTEXT).result()

    @property
    def name(self) -> str:
        return str(self.path).rpartition("/")[2]

    def url(self, name: str) -> str:
        """Returns the URL of a subfolder."""
        return (self._files / f"{name}/").url

    def part(self, number: int) -> "Folder":
        """Returns the subfolder of a part of the store."""
        return Folder(f"{self.path}/{number:05}")

    def names(self) -> list[str]:
        """Returns the names of all files, at any depth."""
        with storage_errors(self.path):
            return [name.decode() for name in self._files.list().result()]

    def has(self, name: str) -> bool:
        return self.read(name) is not None

    def read(self, name: str, sealed: bool = False) -> bytes | None:
        """Returns the content of a file, or None if there is no such file.

        Raises DamagedStore if the content of a sealed file does not match its digest.
        """
        with storage_errors(self.path):
            # One request instead of a check for existence and a read, between which the file could
            # vanish.
            entry = self._files.read(name).result(_TIMEOUT)
        if entry.state == "missing":
            return None
        if not sealed or not entry.value:
            return entry.value
        digest, _, content = entry.value.partition(b"\n")
        if digest.decode(errors="replace") != sha256(content):
            raise DamagedStore(self.path, f"{name}: checksum mismatch")
        return content

    def write(self, name: str, content: bytes, sealed: bool = False) -> None:
        self._set(name, f"{sha256(content)}\n".encode() + content if sealed else content)

    def delete(self, name: str) -> None:
        self._set(name, None)

    def _set(self, name: str, content: bytes | None) -> None:
        with storage_errors(self.path):
            self._files.write(name, content).result()

    @contextlib.contextmanager
    def exclusive(self):
        """Lets only one process of a machine build the folder at a time.

        A bucket has no locks, so the caller must ensure that only process 0 builds there.
        """
        if not self.is_local:
            yield
            return
        with locked(self._beside("lock")):
            # A write that was killed leaves these files, which TensorStore would not truncate.
            for partial in self.path.rglob("*.__lock"):
                partial.unlink()
            yield

    def hold(self) -> None:
        """Protects the folder from `remove` for the lifetime of this object.

        The processes that hold it share a lock, which the system releases when they exit.
        """
        # Without permission to write next to the folder, a process reads it without a lock.
        with contextlib.suppress(OSError):
            if self.is_local:
                self._held = _SharedLock(self._beside("used"))

    def last_used(self) -> float | None:
        """Returns the time when the folder was last held or built, in seconds since the epoch.

        Returns None for a folder that never was, such as one in a bucket.
        """
        for name in ("used", "lock"):
            with contextlib.suppress(FileNotFoundError):
                return self._beside(name).stat().st_mtime
        return None

    def remove(self) -> bool:
        """Removes a folder on a disk.

        Returns False if a process holds or builds it, or if it can't be removed.
        """
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError, UserError):
            for name in ("lock", "used"):
                # "a" creates a missing lock file, but keeps the time of an existing one.
                file = stack.enter_context(self._beside(name).open("a"))
                # Without waiting: a folder in use is skipped, and the next oldest one is removed.
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.clear()
            shutil.rmtree(self.path)
            return True
        return False

    def _beside(self, name: str) -> pathlib.Path:
        # Beside the folder and not in it, because a lock must survive the removal of the folder.
        # The dot keeps lock files out of listings of the cache.
        return self.path.with_name(f".{self.path.name}.{name}")

    def clear(self) -> None:
        """Deletes all files."""
        # store.json goes first, so that a partly deleted folder never looks complete.
        for name in self.names():
            if name.endswith("store.json"):
                self.delete(name)
        with storage_errors(self.path):
            self._files.delete_range(ts.KvStore.KeyRange()).result()

    def complete(self, metadata: dict, files: Iterable[str]) -> None:
        """Writes store.json, with the digests of `files`, which are those that no CRC covers."""
        body = {
            "format": FORMAT,
            "meta": metadata,
            # Read back from the storage, so that the digest is of what was written and not of what
            # was meant.
            "files": {name: sha256(self.read(name)) for name in files},
        }
        # The last write: only a complete folder has this file.
        self.write("store.json", json.dumps(body).encode(), sealed=True)

    def open_complete(self) -> tuple[dict, dict[str, bytes]]:
        """Verifies the files that store.json lists, and returns the metadata and these files.

        Raises DamagedStore if store.json or a file is missing or does not match its digest.
        """
        body = self.read("store.json", sealed=True)
        if not body:
            raise DamagedStore(self.path, "store.json: missing or empty")
        description = json.loads(body)
        files = {name: self.read(name) for name in description["files"]}
        for name, digest in description["files"].items():
            if sha256(files[name] or b"") != digest:
                raise DamagedStore(self.path, f"{name}: missing or checksum mismatch")
        return description["meta"], files


# Writing a part of a store, and reading the tokens or bytes of a store. TensorStore's arrays are
# used because they read spans in parallel, from a disk as from a bucket, and verify them.

# A chunk is the unit of reading and a shard the unit of writing, which is one file. Small chunks
# make random rows cheap to read, and large shards keep the number of files low.
_CHUNK_BYTES = 2**15
_SHARD_BYTES = 2**25
# Writers use `CONTEXT`, without a cache, because nothing that they write is read again.
_CACHED = ts.Context({"cache_pool": {"total_bytes_limit": 2**28}}, CONTEXT)


def open_column(folder: Folder, name: str) -> ts.TensorStore:
    """Returns an array of a complete part, opened for reading."""
    spec = {
        "driver": "zarr3",
        "kvstore": folder.url(name),
        # A missing shard is an error. By default, its values would read as zeros.
        "fill_missing_data_reads": False,
        # Chunks in the cache are not checked again on each read: a complete part never changes.
        "recheck_cached_data": "open",
    }
    with storage_errors(folder.path):
        return ts.open(spec, read=True, context=_CACHED).result()


class ColumnWriter:
    """An array in a part that is being built.

    Only whole shards are written, so that no shard is written twice. Values that do not fill a
    shard yet stay in memory.
    """

    def __init__(self, folder: Folder, name: str, dtype):
        self.folder = folder
        self.name = name
        self.dtype = np.dtype(dtype)
        self.num_written = 0
        self.size = 0
        self.shard = _SHARD_BYTES // self.dtype.itemsize  # in values, as zarr counts
        self._unwritten = []

    def append(self, values: np.ndarray) -> None:
        self._unwritten.append(np.asarray(values, self.dtype))
        self.size += len(values)
        count = (self.size - self.num_written) // self.shard * self.shard
        if count:
            # The final size is not known yet, and zarr needs a shape that contains all shards.
            # `close` writes the metadata with the actual shape; until then there is none, so
            # nothing reads the array.
            self._write(count, {"shape": [2**60]}, open=True, assume_metadata=True)

    def close(self) -> None:
        count = self.size - self.num_written
        self._write(count, {"shape": [self.size]}, open=True, create=True)

    def _write(self, count: int, shape: dict, **mode) -> None:
        """Writes the first `count` values that are not written yet."""
        spec = {
            "driver": "zarr3",
            "kvstore": self.folder.url(self.name),
            "metadata": self._metadata() | shape,
            # Otherwise a shard of zeros would not be written, and would later seem to be missing.
            "store_data_equal_to_fill_value": True,
        }
        # The empty array is for a column without any values, which still gets its metadata.
        values = np.concatenate([np.zeros(0, self.dtype), *self._unwritten])
        with storage_errors(self.folder.path):
            array = ts.open(spec, context=CONTEXT, **mode).result()
            if count:
                stop = self.num_written + count
                array[self.num_written : stop].write(values[:count]).result()
        self.num_written += count
        self._unwritten = [values[count:]]

    def _metadata(self) -> dict:
        codecs = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
        sharding = {
            "chunk_shape": [_CHUNK_BYTES // self.dtype.itemsize],
            "codecs": codecs,
            "index_codecs": codecs,
        }
        return {
            "data_type": self.dtype.name,
            "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [self.shard]}},
        }


_OPENED_TOGETHER = 16  # parts, because opening one in a bucket is mostly waiting


class Writer:
    """Fills a part of a store with values and index arrays, each of them in order.

    The values are tokens (uint16 or uint32) or bytes (uint8). `name` is the name of their folder.
    """

    def __init__(self, folder: Folder, name: str, dtype):
        self._folder = folder
        self._name = name
        self._columns = {name: ColumnWriter(folder, name, dtype)}

    @property
    def size(self) -> int:
        """The number of values so far."""
        return self._columns[self._name].size

    def append(self, values: np.ndarray) -> None:
        self._columns[self._name].append(values)

    def array(self, name: str, values: np.ndarray) -> None:
        """Appends to the index array `name`, with the dtype of the first appended values."""
        if name not in self._columns:
            self._columns[name] = ColumnWriter(self._folder, name, np.asarray(values).dtype)
        self._columns[name].append(values)

    def finish(self, metadata: dict) -> dict:
        """Completes the part, and returns its metadata: `metadata` and the number of values."""
        for column in self._columns.values():
            column.close()
        metadata = {self._name: self.size, **metadata}
        # The chunks have CRCs of their own, and zarr.json has none.
        self._folder.complete(metadata, [f"{name}/zarr.json" for name in self._columns])
        return metadata


class Numbering:
    """Consecutive numbers of items across parts. `counts` are the numbers of items in each part."""

    def __init__(self, counts: Iterable[int]):
        self.starts = [0, *itertools.accumulate(counts)]

    def __len__(self) -> int:
        return self.starts[-1]

    def locate(self, number: int) -> tuple[int, int]:
        """Returns the part that contains item `number`, and the item's index within the part."""
        # `hi` leaves out the last start, which is the end, and the right side skips empty parts.
        part = bisect.bisect_right(self.starts, number, hi=len(self.starts) - 1) - 1
        return part, number - self.starts[part]


class RowIndex:
    """The ranges of the rows of a store, whose parts have an index array "rows".

    It has the offset of the first token of each row in the part, and the number of the part's
    tokens as its last entry. The metadata of each part have the number of its rows under "rows".
    `part_starts` are the offsets of the parts in the store that the rows are read from.
    """

    def __init__(self, stored: "Store", part_starts: Sequence[int]):
        self._store = stored
        self._part_starts = part_starts
        self._numbering = Numbering(part["rows"] for part in stored.parts)
        # A part is added when it is first read, so that a process holds 4 bytes for each row of the
        # parts that it reads, and none of the others.
        self._offsets: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self._numbering)

    def span(self, number: int) -> tuple[int, int]:
        """Returns the range of a row's tokens, as offsets into the whole store."""
        part, index = self._numbering.locate(number)
        if part not in self._offsets:
            self._offsets[part] = self._store.part_array(part, "rows")
        start, stop = self._offsets[part][index : index + 2].tolist()
        first = self._part_starts[part]
        return first + start, first + stop


class Store:
    """A complete store, opened for reading. Its parts are opened when they are first read.

    `meta` is the metadata of the store, and `parts` is the metadata of each part. The store is not
    removed from its cache while this object exists. Raises DamagedStore if the content differs from
    what was written.
    """

    def __init__(self, path: str | pathlib.Path, name: str = "tokens"):
        self._folder = Folder(path)
        # Before store.json is read, so that no process removes the folder in between.
        self._folder.hold()
        self.path = self._folder.path
        content, _ = self._folder.open_complete()
        self.meta = content["whole"]
        self.parts = content["parts"]
        self.values = Numbering(part[name] for part in self.parts)
        self._name = name
        self._opened: list[ts.TensorStore | None] = [None] * len(self.parts)

    def __reduce__(self):
        # A process that unpickles the store opens it again, because neither TensorStore's handles
        # nor the lock that protects the folder can be sent.
        return Store, (self.path, self._name)

    def array(self, name: str) -> np.ndarray:
        """Returns the index array `name`, concatenated over all parts."""
        with concurrent.futures.ThreadPoolExecutor(_OPENED_TOGETHER) as pool:
            numbers = range(len(self.parts))
            return np.concatenate([*pool.map(lambda part: self.part_array(part, name), numbers)])

    def part_array(self, part: int, name: str) -> np.ndarray:
        """Returns the index array `name` of a part."""
        with storage_errors(self.path):
            return open_column(self._part(part), name)[:].read().result()

    def read(self, spans: Sequence[tuple[int, int]]) -> list[np.ndarray]:
        """Returns the values [start, stop) of each span, which are read in parallel."""
        with storage_errors(self.path):
            # All reads are started before the first result is awaited.
            pieces = [self._pieces(int(start), int(stop)) for start, stop in spans]
            return [
                np.concatenate([future.result() for future in futures])
                if len(futures) > 1
                else futures[0].result()
                for futures in pieces
            ]

    def _pieces(self, start: int, stop: int) -> list[ts.Future]:
        """Starts reading a span. Returns one future for each part that it overlaps."""
        part, first = self.values.locate(start)
        futures = []
        while stop > self.values.starts[part + 1]:
            futures.append(self._values(part)[first:].read())
            part, first = part + 1, 0
        last = stop - self.values.starts[part]
        return [*futures, self._values(part)[first:last].read()]

    def _values(self, part: int) -> ts.TensorStore:
        if self._opened[part] is None:
            self._opened[part] = open_column(self._part(part), self._name)
        return self._opened[part]

    def _part(self, part: int) -> Folder:
        """Verifies a part and returns its folder. Raises DamagedStore."""
        folder = self._folder.part(part)
        metadata, _ = folder.open_complete()
        # Each part may be intact and yet be of another build, if a rebuild was interrupted.
        if metadata != self.parts[part]:
            raise DamagedStore(self.path, f"part {part} is not the one that store.json describes")
        return folder


# Byte records in a store. Records may have any length, and all have integers of the same names, so
# that each name is one index array.
_BLOCK_BYTES = 2**22  # appended in one call, because a call for each record would be slow
_BLOCK_RECORDS = 2**12
_PART_BYTES = 2**28  # an interrupted build repeats at most one part


class Record(NamedTuple):
    """A record: its bytes, and integers by name, such as {"label": 3}."""

    content: bytes
    numbers: dict[str, int] = {}


def fill_records(folder: Folder, read: Callable[[], Iterator[Record]]) -> None:
    """Writes the records of `read()`, and skips those in parts that already exist.

    Raises UserError if there are no records, or if a record has other number names than the first.
    """
    # Unlike text, a source of records can't be divided in advance, so one process reads it in order
    # and skips the records of the parts that exist.
    folder.write("building", b"")
    parts = _existing_parts(folder)
    count = sum(part["records"] for part in parts)
    if parts:
        say(f"continuing with byte store {folder.path} after {count:,} records")
    blocks = _blocks(itertools.islice(read(), count, None))
    while part := _fill_part(folder.part(len(parts)), blocks, parts):
        parts.append(part)
    if not parts:
        raise UserError("the source has no records")
    whole = {"records": sum(part["records"] for part in parts), "numbers": parts[0]["numbers"]}
    folder.delete("building")
    folder.complete({"whole": whole, "parts": parts}, ())
    size = sum(part["bytes"] for part in parts)
    say(f"built byte store {folder.path} ({size:,} bytes)")


def _existing_parts(folder: Folder) -> list[dict]:
    """Returns the metadata of the complete parts, and clears the incomplete one after them."""
    parts = []
    while folder.part(len(parts)).has("store.json"):
        parts.append(folder.part(len(parts)).open_complete()[0])
    folder.part(len(parts)).clear()
    return parts


def _fill_part(folder: Folder, blocks: Iterator[list[Record]], earlier: list[dict]) -> dict | None:
    """Writes the next part and returns its metadata, or None if no record is left."""
    block = next(blocks, None)
    if block is None:
        return None
    names = earlier[0]["numbers"] if earlier else sorted(block[0].numbers)
    writer = Writer(folder, "bytes", np.uint8)
    # With the 0 in front, a record is the range between two neighboring entries.
    writer.array("offsets", np.zeros(1, np.int64))
    first, count = sum(part["records"] for part in earlier), 0
    while block:
        for number, record in enumerate(block, first + count):
            # Checked before anything of the block is written, so that the index arrays keep equal
            # lengths.
            if sorted(record.numbers) != names:
                raise UserError(
                    f"record {number} of the source has the numbers {sorted(record.numbers)}: "
                    f"the records before it have {names}"
                )
        sizes = [len(record.content) for record in block]
        writer.array("offsets", writer.size + np.cumsum(sizes))
        writer.append(np.frombuffer(b"".join(record.content for record in block), np.uint8))
        for name in names:
            writer.array(f"number.{name}", [record.numbers[name] for record in block])
        count += len(block)
        block = next(blocks, None) if writer.size < _PART_BYTES else None
    return writer.finish({"records": count, "numbers": names})


def _blocks(records: Iterator[Record]) -> Iterator[list[Record]]:
    """Yields records in lists of a few MiB; a larger record ends its list."""
    block, size = [], 0
    for record in records:
        block.append(record)
        size += len(record.content)
        if size >= _BLOCK_BYTES or len(block) == _BLOCK_RECORDS:
            yield block
            block, size = [], 0
    if block:
        yield block


class Records:
    """The records of a complete store. Raises DamagedStore as `Store` does."""

    def __init__(self, path: str | pathlib.Path):
        self._store = Store(path, "bytes")
        self._numbering = Numbering(part["records"] for part in self._store.parts)
        self._offsets: dict[int, np.ndarray] = {}  # by part; read on first use, to save memory

    def __len__(self) -> int:
        return len(self._numbering)

    def read(self, numbers: Sequence[int]) -> list[np.ndarray]:
        """Returns the bytes of these records, each uint8 (length,). They are read in parallel."""
        return self._store.read([self._span(int(number)) for number in numbers])

    def _span(self, number: int) -> tuple[int, int]:
        """Returns the byte range of a record, as offsets into the whole store."""
        part, index = self._numbering.locate(number)
        if part not in self._offsets:
            self._offsets[part] = self._store.part_array(part, "offsets")
        start, stop = self._offsets[part][index : index + 2].tolist()
        first = self._store.values.starts[part]
        return first + start, first + stop

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the numbers of a record."""
        return tuple(self._store.parts[0]["numbers"])

    def array(self, name: str) -> np.ndarray:
        """Returns the integer `name` of each record, int64 (N,)."""
        return self._store.array(f"number.{name}")


# Stores and small files that are built once under a key, and later read from the cache. The key,
# not the name of a file, identifies the content: nothing in the cache can be out of date.


@dataclasses.dataclass(frozen=True)
class Content:
    """How the content of a token store is made.

    Attributes:
      parts: returns the parts of a text, which are picklable. It is called only if the store is not
        complete.
      fill: writes the tokens and index arrays of a part and returns its metadata. It must be
        picklable, and equal parts must give equal tokens.
      whole: returns the metadata of the store, given the metadata of all parts. Raises UserError if
        the store would be useless.
      title: describes the work in progress lines.
    """

    parts: Callable[[], Sequence]
    fill: Callable[[Writer, Any], dict]
    whole: Callable[[list[dict]], dict]
    title: str


def build(
    cache: str, name: str, key: dict, vocab_size: int, content: Content, *, rebuild: bool = False
) -> Store:
    """Returns the token store of `key` in `cache`; builds the parts that do not exist yet.

    `cache` is a folder, or the URL of a bucket that TensorStore can open (gs://bucket/prefix,
    s3://). `key` can be serialized as JSON and contains everything that the content depends on. If
    several processes of a machine need the same store, one builds it and the others wait.
    """
    # Most vocabularies have fewer than 65,536 tokens, and 2 bytes halve what is read and stored.
    dtype = np.uint16 if vocab_size <= 2**16 else np.uint32
    folder = _folder(cache, name, key)
    team = current()
    # The name contains the digest of the key. If the keys of processes differ, so do their text or
    # their settings, and the parts that they build would not belong to one store.
    team.agree({f"the folder of {content.title}": folder.name})
    # Process 0 decides for all: if each looked by itself, one could see the file of another that
    # has just finished, and would miss the calls below that all processes must make together.
    if team.share(_is_complete(folder, rebuild)):
        return Store(folder.path)
    with doing(f"building {folder.path}"), _leading(folder, rebuild):
        # Asked again under the lock, because another process may have built the store during the
        # wait.
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
        # A runner may repeat a part that another worker has already built.
        if not folder.has("store.json"):
            writer = Writer(folder, "tokens", self.dtype)
            writer.finish(self.fill(writer, part))

    def report(self, numbered: tuple[int, Any], error: UserError) -> None:
        """Writes the reason why a part can't be built, for the process that completes the store."""
        Folder(self.path).part(numbered[0]).write("error", str(error).encode())


def _build_parts(folder: Folder, content: Content, dtype: str) -> None:
    """Builds the missing parts of a token store, and then completes it."""
    team = current()
    numbered = list(enumerate(content.parts()))
    missing = team.share(_missing(folder, len(numbered)) if team.leads else None)
    # Process 0 has written this file, so a process that does not see it is on other storage.
    if not folder.has("building"):
        raise _not_shared(folder)
    if len(missing) < len(numbered):
        existing = len(numbered) - len(missing)
        say(f"continuing with token store {folder.path}: {existing} of {len(numbered)} parts exist")
    job = _Job(str(folder.path), dtype, content.fill)
    team.run(job, [numbered[number] for number in missing], content.title)
    if team.leads:
        _complete(folder, len(numbered), content.whole)
    # A barrier: no process opens the store before process 0 has completed it.
    team.share("complete")


def _missing(folder: Folder, count: int) -> list[int]:
    """Returns the numbers of the missing parts, and clears the remains of interrupted ones."""
    names = folder.names()
    complete = {name.partition("/")[0] for name in names if name.endswith("/store.json")}
    for part in {name.partition("/")[0] for name in names if "/" in name} - complete:
        Folder(f"{folder.path}/{part}").clear()
    # A bucket that refuses writes should be reported before the work starts.
    folder.write("building", b"")
    return [number for number in range(count) if f"{number:05}" not in complete]


def _complete(folder: Folder, count: int, whole: Callable[[list[dict]], dict]) -> None:
    """Writes the store.json of a store. Raises UserError if a part is missing."""
    parts = []
    for number in range(count):
        part = folder.part(number)
        if not part.has("store.json"):
            # A worker of Apache Beam leaves its reason here, because its exception can't reach this
            # process.
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
    """Returns the byte records of `key` in `cache`; builds the parts that do not exist yet.

    `read` returns all records, starting with the first, and in the same order each time. The other
    arguments are the same as for `build`. Raises UserError if there are no records, or if they have
    different number names.
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
    """Returns the small files of `key` in `cache`; makes all of them if they do not exist.

    `cache` and `key` are the same as for `build`.
    """
    folder = _folder(cache, name, key)

    def write() -> None:
        folder.clear()
        if not folder.is_local:
            # A bucket that refuses writes should be reported before the work starts.
            folder.write("building", b"")
        files = make()
        for file, content in files.items():
            folder.write(file, content)
        folder.delete("building")
        # Last, as for a store, so that a kill before leaves an incomplete folder, which is written
        # anew.
        folder.complete({}, files)

    _make(folder, write, rebuild)
    return folder.open_complete()[1]


def _folder(cache: str, name: str, key: dict) -> Folder:
    """Returns the folder of `key`, which stays in the cache while the returned object exists."""
    # Sorted, so that the digest does not depend on the order in which a dict was filled. 16
    # hexadecimal digits are 64 bits, enough against chance in one cache.
    digest = sha256(json.dumps({"format": FORMAT, **key}, sort_keys=True).encode())[:16]
    folder = Folder(f"{str(cache).rstrip('/')}/{name}-{digest}")
    folder.hold()
    return folder


def _is_complete(folder: Folder, rebuild: bool) -> bool:
    return not rebuild and folder.has("store.json")


def _make(folder: Folder, write: Callable[[], None], rebuild: bool) -> None:
    """Calls `write` if the folder is not complete.

    If several processes build together, only the leading one writes; the others get here after it
    has finished, and raise UserError if they don't see its files.
    """
    if _is_complete(folder, rebuild):
        return
    if not current().leads:
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
    """Gives the leading process exclusive access, and clears the folder first for a rebuild.

    Afterwards, the leading process removes old stores if the cache has become too large.
    """
    if not current().leads:
        yield
        return
    with folder.exclusive():
        # Under the lock, because another process may be building this folder.
        if rebuild:
            folder.clear()
        yield
    if folder.is_local:
        # Only after a build, because only then has the cache grown.
        keep_small(folder.path.parent)


# Only a cache on a disk is limited, because buckets have lifecycle rules for old objects, and no
# locks by which a store in use could be recognized.
LIMIT = "TRANSFORMER_JAX_STORES_GB"
_BYTES = 200e9
_SHARE = 0.5  # of the disk, so that the cache alone never fills a small one


def keep_small(cache: pathlib.Path) -> None:
    """Removes the least recently used stores of a cache folder until it is within the limit.

    A store that a process has open or is building is never removed. A removed store is built again
    when it is needed.
    """
    most = storage.cache_limit(LIMIT, min(_BYTES, _SHARE * shutil.disk_usage(cache).total))
    removed = storage.remove_least_used(_entries(cache), most, lambda path: Folder(path).remove())
    if removed:
        names = ", ".join(entry.path.name for entry in removed)
        size = sum(entry.size for entry in removed) / 1e9
        say(f"removed from {cache}, beyond {LIMIT}={most / 1e9:g}: {names} ({size:,.2f} GB)")


def _entries(cache: pathlib.Path) -> Iterator[storage.CacheEntry]:
    for path in cache.iterdir():
        # Only what a store is named like: the user may keep other files in this folder.
        is_store = re.search("-[0-9a-f]{16}$", path.name)
        if is_store and (used := Folder(path).last_used()) is not None:
            yield storage.CacheEntry(path, used, _size(path))


def _size(path: pathlib.Path) -> int:
    size = 0
    for folder, _, names in os.walk(path):
        for name in names:
            # Another process may have removed the file in the meantime.
            with contextlib.suppress(FileNotFoundError):
                size += os.path.getsize(os.path.join(folder, name))
    return size


# Workers that build the parts of a store: this process, the processes of a job, or Apache Beam.
#
# The parts are independent of each other, so the store is the same for any number of workers.


class Job(Protocol):
    """Builds a part of a store. Must be picklable."""

    def __call__(self, part: Any) -> None: ...

    def report(self, part: Any, error: UserError) -> None:
        """Writes the reason why a part can't be built, for the process that completes the store."""


class Alone:
    """Builds all parts in this process, one after the other."""

    leads = True  # whether this process completes the stores, which only one may do

    def agree(self, values: dict[str, Any]) -> None:
        """Raises UserError if a process has other values than the leading one."""

    def share(self, value: Any) -> Any:
        """Returns the `value` of the leading process, which must be serializable as JSON."""
        return value

    def run(self, job: Job, parts: Sequence, title: str) -> None:
        """Calls `job` for each part, and returns after all parts have been built."""
        for part in track(parts, f"{title} (parts)", len(parts)):
            job(part)


class Processes(Alone):
    """Divides the parts among the processes of a job: process i of N builds parts i, i + N, ..."""

    def __init__(self):
        self.leads = hosts.index() == 0
        self.agree = hosts.agree
        self.share = hosts.share

    def run(self, job, parts, title):
        # Every N-th part and not N-ths of the list, so that each process has a share of every file.
        super().run(job, parts[hosts.index() :: hosts.count()], title)
        hosts.agree({})  # a barrier: process 0 must find all parts when it completes the store


_current = Alone()


def current() -> Alone:
    return _current


@contextlib.contextmanager
def using(workers: Alone) -> Iterator[None]:
    """Within the context, `workers` build the stores."""
    global _current
    previous, _current = _current, workers
    try:
        yield
    finally:
        _current = previous


# Building parts with Apache Beam, on its direct runner or on Dataflow, Flink or Spark, for a text
# that is too large for the machines of one job.


class Beam(Alone):
    """Builds the parts in an Apache Beam pipeline on `runner`.

    `options` are options of the runner, each as KEY=VALUE. The store and the text must be on
    storage that all workers can reach. Raises UserError if Apache Beam is not installed.
    """

    def __init__(self, runner: str, options: Sequence[str] = ()):
        if importlib.util.find_spec("apache_beam") is None:
            raise UserError(
                f"--beam_runner={runner}: Apache Beam is not installed: pip install -e '.[beam]'"
            )
        self._runner = runner
        self._options = [f"--{option}" for option in options]

    def run(self, job, parts, title):
        # Imported here, because it is an optional library.
        import apache_beam as beam
        from apache_beam.options import pipeline_options

        try:
            options = pipeline_options.PipelineOptions(self._options, runner=self._runner)
            with beam.Pipeline(options=options) as pipeline:
                numbered = pipeline | beam.Create(parts)
                # Without the reshuffle, a runner would fuse the two steps, and a single worker
                # would build all parts.
                spread = numbered | beam.Reshuffle()
                _ = spread | title >> beam.Map(_Reporting(job))
        except Exception as error:  # Each runner raises its own exceptions.
            line = " ".join(f"{type(error).__name__}: {error}".split())
            raise RunError(f"--beam_runner={self._runner}: {line[:500]}") from error


@dataclasses.dataclass(frozen=True)
class _Reporting:
    """Builds a part, and reports a UserError to the process that completes the store.

    An exception would make some runners retry the part, although a user's mistake fails each time.
    """

    job: Job

    def __call__(self, part: Any) -> None:
        try:
            self.job(part)
        except UserError as error:
            self.job.report(part, error)
