"""Byte records in a store: of any length, each with the same whole numbers by name."""

import itertools
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from transformer_jax.config import UserError
from transformer_jax.data.store.files import Folder
from transformer_jax.data.store.tokens import Numbering, Store, Writer
from transformer_jax.pictures.progress import say

_BLOCK_BYTES = 2**22  # written together
_BLOCK_RECORDS = 2**12
_PART_BYTES = 2**28  # an interrupted build repeats at most one part


class Record(NamedTuple):
    """One record: its bytes, and numbers such as {"label": 3}."""

    content: bytes
    numbers: dict[str, int] = {}


def fill_records(folder: Folder, read: Callable[[], Iterator[Record]]) -> None:
    """Writes the records of `read()` into the parts that an interrupted build lacks.

    Raises UserError where a record has other numbers than the first.
    """
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
    """Returns the metadata of the parts that are complete; clears the one after them."""
    parts = []
    while folder.part(len(parts)).has("store.json"):
        parts.append(folder.part(len(parts)).open_complete()[0])
    folder.part(len(parts)).clear()
    return parts


def _fill_part(folder: Folder, blocks: Iterator[list[Record]], earlier: list[dict]) -> dict | None:
    """Writes the next part and returns its metadata; None where no record is left."""
    block = next(blocks, None)
    if block is None:
        return None
    names = earlier[0]["numbers"] if earlier else sorted(block[0].numbers)
    writer = Writer(folder, "bytes", np.uint8)
    writer.array("offsets", np.zeros(1, np.int64))
    first, count = sum(part["records"] for part in earlier), 0
    while block:
        for number, record in enumerate(block, first + count):
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
    """Yields records in lists of a few MiB, or of one larger record."""
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
        self._offsets: dict[int, np.ndarray] = {}  # of each part that was read

    def __len__(self) -> int:
        return len(self._numbering)

    def read(self, numbers: Sequence[int]) -> list[np.ndarray]:
        """Returns the bytes of these records, uint8 (length,) each, read in parallel."""
        return self._store.read([self._span(int(number)) for number in numbers])

    def _span(self, number: int) -> tuple[int, int]:
        """Returns the bytes of a record, counted from the first byte of the store."""
        part, index = self._numbering.locate(number)
        if part not in self._offsets:
            self._offsets[part] = self._store.part_array(part, "offsets")
        start, stop = self._offsets[part][index : index + 2].tolist()
        first = self._store.values.starts[part]
        return first + start, first + stop

    def array(self, name: str) -> np.ndarray:
        """Returns the number `name` of all records, int64 (N,)."""
        return self._store.array(f"number.{name}")
