"""Writing and reading a store of tokens, or of bytes."""

import io
import json
import pathlib
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorstore as ts

from transformer_jax.data.store.columns import ColumnWriter, open_column
from transformer_jax.data.store.files import Folder, storage_errors

_MARK_SECONDS = 30  # between two marks


class Writer:
    """Fills a store that is being built: its values and index arrays, each in order.

    The values are tokens uint16 or uint32, or bytes uint8. `name` is their folder.

    `restart` is the progress of an interrupted build's last mark, or None. The store already holds
    everything that was written before that mark.
    """

    def __init__(self, folder: Folder, name: str, dtype):
        self.restart = None
        self._folder = folder
        self._name = name
        self._columns = {name: ColumnWriter(folder, name, dtype)}
        mark = folder.read("restart", sealed=True)
        if mark:
            header, *remainders = np.load(io.BytesIO(mark)).values()
            self.restart, num_written = json.loads(header.item())
            self._columns = {
                name: ColumnWriter(folder, name, remainder.dtype, size, remainder)
                for (name, size), remainder in zip(num_written.items(), remainders)
            }
        self._marked_size = self.size
        self._marked_at = time.monotonic()

    @property
    def size(self) -> int:
        """The number of values so far."""
        return self._columns[self._name].size

    def append(self, values: np.ndarray) -> None:
        self._columns[self._name].append(values)

    def array(self, name: str, values: np.ndarray) -> None:
        """Appends to the index array `name`."""
        if name not in self._columns:
            self._columns[name] = ColumnWriter(self._folder, name, np.int64)
        self._columns[name].append(values)

    def mark(self, progress: Any) -> None:
        """Makes all values so far durable, together with `progress` (JSON-able).

        Calls are cheap: a mark is written once a shard, or after 30 seconds.
        """
        is_new_shard = self.size - self._marked_size >= self._columns[self._name].shard
        if not is_new_shard and time.monotonic() - self._marked_at < _MARK_SECONDS:
            return
        num_written = {name: column.num_written for name, column in self._columns.items()}
        content = io.BytesIO()
        np.savez(
            content,
            json.dumps([progress, num_written]),
            *(column.unwritten() for column in self._columns.values()),
        )
        self._folder.write("restart", content.getvalue(), sealed=True)
        self._marked_size = self.size
        self._marked_at = time.monotonic()

    def finish(self, metadata: dict) -> None:
        """Writes the values that remain and declares the store complete."""
        for column in self._columns.values():
            column.close()
        self._folder.complete(metadata, [f"{name}/zarr.json" for name in self._columns])


class Store:
    """A complete store, opened for reading.

    `meta` is its metadata. Raises DamagedStore where the content differs from what was written.
    """

    def __init__(self, path: str | pathlib.Path, name: str = "tokens"):
        self._folder = Folder(path)
        self.path = self._folder.path
        self.meta, _ = self._folder.open_complete()
        self._name = name
        self._values: ts.TensorStore = open_column(self._folder, name)

    def __reduce__(self):
        # Another process opens the store again.
        return Store, (self.path, self._name)

    def array(self, name: str) -> np.ndarray:
        """Returns a whole index array, int64 (N,)."""
        with storage_errors(self.path):
            return open_column(self._folder, name)[:].read().result()

    def read(self, spans: Sequence[tuple[int, int]]) -> list[np.ndarray]:
        """Returns the values [start, stop) of each span, read in parallel."""
        with storage_errors(self.path):
            futures = [self._values[int(start) : int(stop)].read() for start, stop in spans]
            return [future.result() for future in futures]
