"""Batches that end where their longest example does: padding behind it is not computed."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from transformer_jax.data.rows import Row, TrainRows

# rows of more than two tiles are cut to whole ones, which the fused kernels of attention take;
# shorter rows to eighths
_TILE, _PARTS = 128, 8


def shorter(length: int) -> tuple[int, ...]:
    """`length`, and what its rows may be cut to, the longest first: each is another shape to
    compile.
    """
    step = _TILE if length > 2 * _TILE else -(-length // _PARTS)
    return (length, *range((length - 1) // step * step, 0, -step))


@dataclasses.dataclass(frozen=True)
class Examples:
    """Rows made of examples as they are asked for, each stack of them cut to what its longest
    needs.
    """

    examples: Sequence[Any]
    make: Callable[[Any], Row]  # of `lengths[0]` tokens
    filled: np.ndarray  # (examples,) tokens of each that are no padding
    lengths: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.examples)

    def phase(self, numbers: Sequence[int]) -> int:
        """Which of `lengths` these fit in."""
        longest = max(self.filled[number] for number in numbers)
        return max(phase for phase, length in enumerate(self.lengths) if length >= longest)

    def stack(self, numbers: Sequence[int], phase: int) -> Row:
        """Arrays (len(numbers), ...)."""
        rows, whole, length = (
            [self.make(self.examples[number]) for number in numbers],
            self.lengths[0],
            self.lengths[phase],
        )
        cut = lambda array: (
            array[..., :length] if array.shape[1:] and array.shape[-1] == whole else array
        )
        return {name: cut(np.stack([row[name] for row in rows])) for name in rows[0]}

    def batches(self, size: int, window: int) -> Iterator[tuple[np.ndarray, Row]]:
        """(numbers, rows) of all: of `window` batches in turn the examples sorted by length. Rows
        of zeros fill up the last.
        """
        for start in range(0, len(self), size * window):
            order = start + np.argsort(self.filled[start : start + size * window], kind="stable")
            for first in range(0, len(order), size):
                numbers = order[first : first + size]
                rows = self.stack(numbers, self.phase(numbers))
                yield (
                    numbers,
                    {
                        name: np.pad(
                            array, [(0, size - len(numbers)), *[(0, 0)] * (array.ndim - 1)]
                        )
                        for name, array in rows.items()
                    },
                )


@dataclasses.dataclass(frozen=True, eq=False)
class Batches:
    """The training batches: `drawn` says which examples; of `group` updates in turn they are sorted
    by length, and the batches shuffled.
    """

    drawn: TrainRows  # its one component is as long as `examples`
    examples: Examples
    group: int

    def size(self, step: int) -> int:
        return self.drawn.size(step)

    def until(self, step: int) -> float:
        return self.drawn.until(step)

    def phase(self, step: int) -> tuple[int, int]:
        """(number of the length of its rows, `step`)."""
        return self.examples.phase(self._numbers(step)), step

    def batch(self, step: int, places: Sequence[int]) -> Row:
        numbers = self._numbers(step)
        return self.examples.stack(
            [numbers[place] for place in places], self.examples.phase(numbers)
        )

    def _numbers(self, step: int) -> np.ndarray:
        return self._window(step // self.group)[step % self.group]

    @functools.cached_property
    def _window(self) -> Callable[[int], list[np.ndarray]]:
        """The examples of each update of a window; of the last windows they are kept."""
        return functools.lru_cache(maxsize=4)(self._drawn)

    def _drawn(self, window: int) -> list[np.ndarray]:
        steps = range(window * self.group, (window + 1) * self.group)
        drawn = [
            np.array([number for _, number, _ in self.drawn.numbers(step, range(self.size(step)))])
            for step in steps
        ]
        if self.group == 1:
            return drawn
        numbers = np.concatenate(drawn)
        numbers = numbers[np.argsort(self.examples.filled[numbers], kind="stable")]
        order = np.random.default_rng((self.drawn.seed, window)).permutation(self.group)
        parts = np.split(numbers, np.cumsum([len(drawn[place]) for place in order])[:-1])
        return [part for _, part in sorted(zip(order, parts), key=lambda pair: pair[0])]
