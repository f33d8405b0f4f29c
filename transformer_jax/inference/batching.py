"""Batches of texts: padding to few shapes, and results in the order of the inputs."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")


def rounded_up(length: int, multiple: int) -> int:
    """Returns the smallest multiple of `multiple` that is at least `length`.

    Lengths are padded to it, so that few shapes are compiled.
    """
    return -(-int(length) // multiple) * multiple


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yields the items in lists of `size`; the last list may be shorter."""
    items = iter(items)
    while chunk := list(itertools.islice(items, size)):
        yield chunk


def longest_first(lengths: Sequence[int]) -> list[int]:
    """Returns the numbers of the items, sorted from the longest to the shortest."""
    return sorted(range(len(lengths)), key=lambda number: -lengths[number])


def padded(rows: Sequence[Sequence], length: int, num_rows: int | None = None) -> np.ndarray:
    """Returns the rows as an int32 array (num_rows, length, ...), padded with zeros.

    The items of a row are numbers, or arrays of one shape. By default the array has as many rows as
    `rows`.
    """
    shape = next((np.shape(values[0]) for values in rows if len(values)), ())
    array = np.zeros((num_rows or len(rows), length, *shape), np.int32)
    for row, values in enumerate(rows):
        array[row, : len(values)] = values
    return array


def in_order(results: Iterable[tuple[int, T]]) -> Iterator[T]:
    """Yields the results sorted by their numbers 0, 1, 2, ..., each as soon as it can."""
    waiting, next_number = {}, 0
    for number, result in results:
        waiting[number] = result
        while next_number in waiting:
            yield waiting.pop(next_number)
            next_number += 1
