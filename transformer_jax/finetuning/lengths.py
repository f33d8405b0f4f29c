"""Batches whose rows end where their longest example does, so that less padding is computed.

A bucket is a length to which rows are cut. Each bucket is another shape to compile.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from transformer_jax.data.rows import Row, TrainRows
from transformer_jax.distributed import sharding

# Rows of more than two tiles are cut to whole tiles, which the fused attention kernels take.
_TILE = 128
# Shorter rows are cut to multiples of this part of their length.
_PARTS = 8


def buckets(length: int) -> tuple[int, ...]:
    """Returns the lengths to which rows of `length` tokens may be cut, the longest first."""
    step = _TILE if length > 2 * _TILE else -(-length // _PARTS)
    return (length, *range((length - 1) // step * step, 0, -step))


def of_mesh(mesh: Any, length: int) -> tuple[int, ...]:
    """Returns the `buckets` of rows on a mesh, `config.mesh`.

    Where the mesh splits rows, only their full length is known to be divisible.
    """
    rows_are_split = any(mesh[axis] != 1 for axis in sharding.rules(mesh)["length"])
    return (length,) if rows_are_split else buckets(length)


@dataclasses.dataclass(frozen=True)
class Examples:
    """Examples whose rows are made on demand. A batch of rows is cut to the bucket it fits in."""

    examples: Sequence[Any]
    make_row: Callable[[Any], Row]  # of lengths[0] tokens
    num_tokens: np.ndarray  # (examples,): without padding
    lengths: tuple[int, ...]  # of the buckets, the longest first
    shapes: Callable[[int], dict[str, tuple[int, ...]]]  # of a row's arrays, by its length

    def __len__(self) -> int:
        return len(self.examples)

    def rows(self, numbers: Sequence[tuple[int, int]]) -> list[Row]:
        """Returns the longest rows of (number of an example, epoch), as a component does."""
        return [self.make_row(self.examples[number]) for number, _ in numbers]

    def bucket(self, numbers: Sequence[int]) -> int:
        """Returns the number of the shortest of `lengths` in which these examples fit."""
        longest = max(self.num_tokens[number] for number in numbers)
        return max(bucket for bucket, length in enumerate(self.lengths) if length >= longest)

    def stack(self, numbers: Sequence[int], bucket: int) -> Row:
        """Returns the rows of these examples, arrays (len(numbers), ...)."""
        rows = [self.make_row(self.examples[number]) for number in numbers]
        cuts = {
            name: (slice(None), *map(slice, shape))
            for name, shape in self.shapes(self.lengths[bucket]).items()
        }
        return {name: np.stack([row[name] for row in rows])[cuts[name]] for name in rows[0]}

    def batches(self, size: int, window: int) -> Iterator[tuple[np.ndarray, Row]]:
        """Yields (numbers of the examples, rows) for batches of all examples.

        The examples of `window` batches are sorted by length together. Rows of zeros fill up the
        last batch.
        """
        for start in range(0, len(self), size * window):
            num_tokens = self.num_tokens[start : start + size * window]
            order = start + np.argsort(num_tokens, kind="stable")
            for first in range(0, len(order), size):
                numbers = order[first : first + size]
                rows = self.stack(numbers, self.bucket(numbers))
                missing = size - len(numbers)
                yield numbers, {name: _extended(rows[name], missing) for name in rows}


def _extended(array: np.ndarray, num_rows: int) -> np.ndarray:
    """Returns the array with so many rows of zeros at its end."""
    return np.pad(array, [(0, num_rows), *[(0, 0)] * (array.ndim - 1)])


@dataclasses.dataclass(frozen=True, eq=False)
class Batches:
    """The training batches. `drawn` decides which examples an update has.

    The examples of `group` updates are sorted by length together; then the batches are shuffled.
    """

    drawn: TrainRows  # its one component is as long as `examples`
    examples: Examples
    group: int

    def size(self, step: int) -> int:
        return self.drawn.size(step)

    def until(self, step: int) -> float:
        return self.drawn.until(step)

    def row_shape(self, step: int) -> int:
        """Returns the bucket of the rows of update `step`."""
        return self.examples.bucket(self._numbers(step))

    def batch(self, step: int, places: Sequence[int]) -> Row:
        numbers = self._numbers(step)
        chosen = [numbers[place] for place in places]
        return self.examples.stack(chosen, self.examples.bucket(numbers))

    def _numbers(self, step: int) -> np.ndarray:
        return self._group(step // self.group)[step % self.group]

    @functools.cached_property
    def _group(self) -> Callable[[int], list[np.ndarray]]:
        """The examples of each update of a group. The last groups are cached."""
        return functools.lru_cache(maxsize=4)(self._sorted)

    def _sorted(self, group: int) -> list[np.ndarray]:
        steps = range(group * self.group, (group + 1) * self.group)
        drawn = [self._drawn(step) for step in steps]
        if self.group == 1:
            return drawn
        numbers = np.concatenate(drawn)
        numbers = numbers[np.argsort(self.examples.num_tokens[numbers], kind="stable")]
        order = np.random.default_rng((self.drawn.seed, group)).permutation(self.group)
        parts = np.split(numbers, np.cumsum([len(drawn[place]) for place in order])[:-1])
        return [part for _, part in sorted(zip(order, parts), key=lambda pair: pair[0])]

    def _drawn(self, step: int) -> np.ndarray:
        places = range(self.size(step))
        return np.array([number for _, number, _ in self.drawn.numbers(step, places)])
