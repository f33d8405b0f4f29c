"""Byte records in a store: of any length, each with the same whole numbers by name."""

import itertools
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from transformer_jax.config import UserError
from transformer_jax.data.store.tokens import Store, Writer

_BLOCK_BYTES = 2**22  # written together
_BLOCK_RECORDS = 2**12


class Record(NamedTuple):
    """One record: its bytes, and numbers such as {"label": 3}."""

    content: bytes
    numbers: dict[str, int] = {}


def fill_records(writer: Writer, read: Callable[[], Iterator[Record]]) -> dict:
    """Writes the records of `read()`, or those that an interrupted build lacks.

    Returns the metadata. Raises UserError where a record has other numbers than the first.
    """
    progress = writer.restart or {"records": 0, "numbers": None}
    count, names = progress["records"], progress["numbers"]
    if writer.restart is None:
        writer.array("offsets", np.zeros(1, np.int64))
    for block in _blocks(itertools.islice(read(), count, None)):
        names = sorted(block[0].numbers) if names is None else names
        for number, record in enumerate(block, count):
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
        writer.mark({"records": count, "numbers": names})
    if not count:
        raise UserError("the source has no records")
    return {"records": count, "numbers": names}


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
        self._offsets = self._store.array("offsets")  # (N + 1,)

    def __len__(self) -> int:
        return self._store.meta["records"]

    def read(self, numbers: Sequence[int]) -> list[np.ndarray]:
        """Returns the bytes of these records, uint8 (length,) each, read in parallel."""
        return self._store.read([self._offsets[i : i + 2] for i in numbers])

    def array(self, name: str) -> np.ndarray:
        """Returns the number `name` of all records, int64 (N,)."""
        return self._store.array(f"number.{name}")
