"""The store: a flat array of tokens or bytes, and small index arrays. It is built once, in parts.

A store is a folder on a disk or in a bucket:

    00000/          the first part, cut by the bytes of the text alone
        tokens/     uint16 or uint32, in chunks of 32 KiB and shards of 32 MiB
        bytes/      uint8, in the place of tokens: the contents of byte records, one after the other
        <name>/     index arrays of the part (rows, numbers of records)
        store.json  its metadata, the digests of files without a CRC, and its own digest
    00001/          the next part
    building        during a build: an interrupted build goes on with the parts that are missing
    store.json      the metadata of the store and of each part, and its own digest

The arrays are TensorStore's zarr3; each chunk and each shard's index has a CRC-32C. store.json is
written last, so a store or a part is complete where it has that file. The folders of `cached_files`
have the same store.json.
"""

from transformer_jax.data.store.cache import Content, build, build_records, cached_files
from transformer_jax.data.store.files import DamagedStore
from transformer_jax.data.store.records import Record, Records
from transformer_jax.data.store.tokens import Numbering, Store, Writer

__all__ = [
    "Content",
    "DamagedStore",
    "Numbering",
    "Record",
    "Records",
    "Store",
    "Writer",
    "build",
    "build_records",
    "cached_files",
]
