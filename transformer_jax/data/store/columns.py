"""The flat arrays of a store."""

import numpy as np
import tensorstore as ts

from transformer_jax.data.store.files import CONTEXT, Folder, storage_errors

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
