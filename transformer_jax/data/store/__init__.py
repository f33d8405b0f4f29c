"""The store: a flat array of tokens or bytes, and small index arrays. It is built once.

A store is a folder on a disk or in a bucket:

    tokens/         uint16 or uint32, in chunks of 32 KiB and shards of 32 MiB
    bytes/          uint8, in the place of tokens: the contents of byte records, one after the other
    <name>/         int64 index arrays (offsets, rows, numbers of records), read at once
    restart         during a build: the last mark, from which an interrupted build continues
    store.json      metadata, the digests of files without a CRC, and its own digest

The arrays are TensorStore's zarr3; each chunk and each shard's index has a CRC-32C. store.json is
written last, so a store is complete where it has that file. The folders of `cached_files` have the
same store.json.
"""

from transformer_jax.data.store.cache import build, build_records, cached_files
from transformer_jax.data.store.files import DamagedStore
from transformer_jax.data.store.records import Record, Records
from transformer_jax.data.store.tokens import Store, Writer

__all__ = [
    "DamagedStore",
    "Record",
    "Records",
    "Store",
    "Writer",
    "build",
    "build_records",
    "cached_files",
]
