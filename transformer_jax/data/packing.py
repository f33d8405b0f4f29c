"""Packing of several short pairs or texts into a row, planned once and kept in a token store."""

import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from transformer_jax.data import store

# Rows that may still take a pair. Beyond them, the fullest row is closed.
_NUM_OPEN = 500
_NO_ROOM = np.int32(2**31 - 1)


def plan(
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    source_length: int,
    target_length: int,
    key: tuple[int, ...],
) -> list[list[int]]:
    """Returns the pair numbers of each row, so that both sides of a row fit their lengths.

    The pairs are taken in an order drawn from `key`, and each goes to the open row in which it
    leaves the least room (best fit). Rows therefore mix lengths as the data does. Each pair must
    fit a row alone.
    """
    order = np.random.Generator(np.random.Philox(key)).permutation(len(source_lengths))
    rows: list[list[int]] = []
    open_rows: list[list[int]] = [[]] * _NUM_OPEN
    # Free positions of the open rows: sources, targets, and both together.
    source_room, target_room, room = np.zeros((3, _NUM_OPEN), np.int32)
    for pair, source, target in zip(
        order.tolist(), source_lengths[order].tolist(), target_lengths[order].tolist()
    ):
        fits = (source_room >= source) & (target_room >= target)
        slot = int(np.where(fits, room, _NO_ROOM).argmin())
        if not fits[slot]:
            # The pair fits no open row: a new one replaces the fullest.
            slot = int(room.argmin())
            source_room[slot] = source_length
            target_room[slot] = target_length
            room[slot] = source_length + target_length
            open_rows[slot] = []
            rows.append(open_rows[slot])
        open_rows[slot].append(pair)
        source_room[slot] -= source
        target_room[slot] -= target
        room[slot] -= source + target
    return rows


def plan_texts(lengths: np.ndarray, length: int, key: tuple[int, ...]) -> list[list[int]]:
    """Returns the text numbers of each row, as `plan` does for pairs. Each text must fit alone."""
    return plan(lengths, np.zeros_like(lengths), length, 0, key)


class Sequences:
    """The tokens of many texts, as one flat array."""

    def __init__(self):
        self._tokens = []
        self._lengths = []

    def append(self, sequences: list[Sequence[int]]) -> None:
        self._tokens.append(np.fromiter(itertools.chain.from_iterable(sequences), np.uint32))
        self._lengths.append(np.array([len(ids) for ids in sequences], np.int64))

    def join(self) -> None:
        """Ends the appending."""
        self.tokens = np.concatenate([np.zeros(0, np.uint32), *self._tokens])
        self.lengths = np.concatenate([np.zeros(0, np.int64), *self._lengths])
        self._starts = starts(self.lengths)
        del self._tokens, self._lengths

    def sequence(self, number: int) -> np.ndarray:
        start = self._starts[number]
        return self.tokens[start : start + self.lengths[number]]


def starts(lengths: np.ndarray) -> np.ndarray:
    """Returns the first position of each segment."""
    return np.cumsum(lengths) - lengths


def write(writer: store.Writer, rows: Iterable[Sequence[np.ndarray]]) -> None:
    """Writes rows, each given as its sequences. The array "rows" has the first token of each."""
    first_tokens = [0]
    for sequences in rows:
        writer.append(np.concatenate(sequences))
        first_tokens.append(writer.size)
    writer.array("rows", np.array(first_tokens, np.uint32))


class StoredRows:
    """The rows of a token store whose parts `write` has written. `part["rows"]` is their number."""

    def __init__(self, stored: store.Store):
        self._store = stored
        self._numbering = store.Numbering(part["rows"] for part in stored.parts)
        # The first token of each row of a part, then the number of tokens: 4 bytes a row, of the
        # parts that were read.
        self._first_tokens: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self._numbering)

    def read(self, numbers: Sequence[int]) -> list[np.ndarray]:
        """Returns the tokens of these rows, read in parallel."""
        return self._store.read([self._span(number) for number in numbers])

    def _span(self, number: int) -> tuple[int, int]:
        """Returns the tokens of a row, counted from the first token of the store."""
        part, index = self._numbering.locate(number)
        if part not in self._first_tokens:
            self._first_tokens[part] = self._store.part_array(part, "rows")
        start, stop = self._first_tokens[part][index : index + 2].tolist()
        first = self._store.values.starts[part]
        return first + start, first + stop
