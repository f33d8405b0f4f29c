"""Writing a part of a store, and reading a store: its tokens, or its bytes."""

import bisect
import concurrent.futures
import itertools
import pathlib
from collections.abc import Iterable, Sequence

import numpy as np
import tensorstore as ts

from transformer_jax.data.store.files import CONTEXT, DamagedStore, Folder, storage_errors

_CHUNK_BYTES = 2**15
_SHARD_BYTES = 2**25
_CACHED = ts.Context({"cache_pool": {"total_bytes_limit": 2**28}}, CONTEXT)


def open_column(folder: Folder, name: str) -> ts.TensorStore:
    """Returns an array of a complete part, opened for reading."""
    spec = {
        "driver": "zarr3",
        "kvstore": folder.url(name),
        # A missing shard must not read as zeros.
        "fill_missing_data_reads": False,
        "recheck_cached_data": "open",
    }
    with storage_errors(folder.path):
        return ts.open(spec, read=True, context=_CACHED).result()


class ColumnWriter:
    """An array in a part that is being built.

    Writes whole shards, so that no shard is written twice. The values that do not fill a shard yet
    stay in memory.
    """

    def __init__(self, folder: Folder, name: str, dtype):
        self.folder = folder
        self.name = name
        self.dtype = np.dtype(dtype)
        self.num_written = 0
        self.size = 0
        self.shard = _SHARD_BYTES // self.dtype.itemsize  # values
        self._unwritten = []

    def append(self, values: np.ndarray) -> None:
        self._unwritten.append(np.asarray(values, self.dtype))
        self.size += len(values)
        count = (self.size - self.num_written) // self.shard * self.shard
        if count:
            # The final size is not known yet.
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
            "store_data_equal_to_fill_value": True,
        }
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


_OPENED_TOGETHER = 16  # parts, where an index array of all of them is read


class Writer:
    """Fills a part of a store: its values and index arrays, each in order.

    The values are tokens uint16 or uint32, or bytes uint8. `name` is their folder.
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
        """Appends to the index array `name`, which has the type of its first values."""
        if name not in self._columns:
            self._columns[name] = ColumnWriter(self._folder, name, np.asarray(values).dtype)
        self._columns[name].append(values)

    def finish(self, metadata: dict) -> dict:
        """Declares the part complete, and returns its metadata: `metadata`, number of values."""
        for column in self._columns.values():
            column.close()
        metadata = {self._name: self.size, **metadata}
        self._folder.complete(metadata, [f"{name}/zarr.json" for name in self._columns])
        return metadata


class Numbering:
    """Numbers that run on from part to part; `counts` are the numbers of each part."""

    def __init__(self, counts: Iterable[int]):
        self.starts = [0, *itertools.accumulate(counts)]

    def __len__(self) -> int:
        return self.starts[-1]

    def locate(self, number: int) -> tuple[int, int]:
        """Returns the part that holds `number`, and the number within the part."""
        part = bisect.bisect_right(self.starts, number, hi=len(self.starts) - 1) - 1
        return part, number - self.starts[part]


class Store:
    """A complete store, opened for reading. Its parts are opened when they are read.

    `meta` is its metadata and `parts` that of each part. The store stays in its cache while this
    object lives. Raises DamagedStore where the content differs from what was written.
    """

    def __init__(self, path: str | pathlib.Path, name: str = "tokens"):
        self._folder = Folder(path)
        self._folder.hold()
        self.path = self._folder.path
        content, _ = self._folder.open_complete()
        self.meta = content["whole"]
        self.parts = content["parts"]
        self.values = Numbering(part[name] for part in self.parts)
        self._name = name
        self._opened: list[ts.TensorStore | None] = [None] * len(self.parts)

    def __reduce__(self):
        # Another process opens the store again.
        return Store, (self.path, self._name)

    def array(self, name: str) -> np.ndarray:
        """Returns the index array `name` of all parts, one after the other."""
        with concurrent.futures.ThreadPoolExecutor(_OPENED_TOGETHER) as pool:
            numbers = range(len(self.parts))
            return np.concatenate([*pool.map(lambda part: self.part_array(part, name), numbers)])

    def part_array(self, part: int, name: str) -> np.ndarray:
        """Returns the index array `name` of a part."""
        with storage_errors(self.path):
            return open_column(self._part(part), name)[:].read().result()

    def read(self, spans: Sequence[tuple[int, int]]) -> list[np.ndarray]:
        """Returns the values [start, stop) of each span, read in parallel."""
        with storage_errors(self.path):
            pieces = [self._pieces(int(start), int(stop)) for start, stop in spans]
            return [
                np.concatenate([future.result() for future in futures])
                if len(futures) > 1
                else futures[0].result()
                for futures in pieces
            ]

    def _pieces(self, start: int, stop: int) -> list[ts.Future]:
        """Starts to read a span. Returns the values of each part that it crosses."""
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
        """Returns the folder of a part, after verifying it."""
        folder = self._folder.part(part)
        metadata, _ = folder.open_complete()
        if metadata != self.parts[part]:
            raise DamagedStore(self.path, f"part {part} is not the one that store.json describes")
        return folder
