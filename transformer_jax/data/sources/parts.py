"""Cutting a text into parts by its bytes alone, so that many workers cut it alike.

A text has the method `parts()`. It returns a list of picklable texts which follow each other.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from transformer_jax.config import UserError
from transformer_jax.data.sources.text_files import Span
from transformer_jax.storage import buckets

PART_BYTES = 2**24
# A larger text has larger parts.
_MAX_PARTS = 1024
_BLOCK_BYTES = 2**23  # of a file that is read whole
_LOOK_BYTES = 2**16  # read together in the search for the end of a document


def part_bytes(total: int) -> int:
    """Returns the bytes of a part of a text of `total` bytes."""
    return max(PART_BYTES, -(-total // _MAX_PARTS))


def ranges(count: int, num_bytes: int) -> list[tuple[int, int]]:
    """Returns the ranges [start, stop) of the parts of `count` records of `num_bytes` in all."""
    num_parts = max(1, min(count, -(-num_bytes // part_bytes(num_bytes))))
    bounds = [count * part // num_parts for part in range(num_parts + 1)]
    return [*itertools.pairwise(bounds)]


Lines = Iterator[tuple[int, bytes]]  # of a file, each with its place


def of_documents(
    files: Sequence[str], boundary: Callable[[str], Callable[[Lines, int], int] | None]
) -> list[tuple[Span, ...]]:
    """Returns the spans of each part of files of documents. Small files share a part.

    `boundary(file)(lines, size)` returns the place of the first line with which a document may
    begin, or the size of the file. A file is not cut where `boundary(file)` is None.
    """
    sizes = [buckets.size(file) for file in files]
    limit = part_bytes(sum(sizes))
    groups, size_of_last = [()], 0
    for file, size in zip(files, sizes):
        for span in _spans(file, size, limit, boundary(file)):
            if size_of_last and size_of_last + span.stop - span.start > limit:
                groups.append(())
                size_of_last = 0
            groups[-1] += (span,)
            size_of_last += span.stop - span.start
    return groups


def _spans(file: str, size: int, limit: int, boundary: Callable | None) -> list[Span]:
    """Returns the spans of a file, about equally long and at most a document above `limit`."""
    num_parts = -(-size // limit) if boundary else 1
    places = {0, size}
    for part in range(1, num_parts):
        start = size * part // num_parts
        places.add(boundary(_lines(file, start), size))
    return [Span(file, start, stop) for start, stop in itertools.pairwise(sorted(places))]


def _lines(file: str, start: int) -> Lines:
    """Yields (place, line) of the lines that begin at or after byte `start` > 0."""
    with buckets.open_at(file, start - 1, _LOOK_BYTES) as content:
        # The rest of the line before: its end alone where a line begins at `start`.
        place = start - 1 + len(content.readline())
        for line in content:
            yield place, line
            place += len(line)


def next_line(lines: Lines, size: int) -> int:
    """Returns the place of the first line; `size`, the end of the file, where there is none."""
    return next(lines, (size, b""))[0]


def next_blank_line(lines: Lines, size: int) -> int:
    """Returns the place of the first line without text, which ends a document."""
    blank = (place for place, line in lines if not line.decode(errors="replace").strip())
    return next(blank, size)


def of_aligned(source: str, target: str) -> list[tuple[Span, Span]]:
    """Returns the spans of each part of two files whose lines belong to each other.

    Both files are read once for their line ends. Raises UserError where their numbers of lines
    differ.
    """
    return _aligned(source, target, buckets.version(source), buckets.version(target))


@functools.lru_cache
def _aligned(source: str, target: str, *_versions) -> list[tuple[Span, Span]]:
    size, target_size = buckets.size(source), buckets.size(target)
    total = size + target_size
    num_parts = -(-total // part_bytes(total))
    if num_parts < 2:
        return [(Span(source), Span(target))]
    starts, num_lines = _line_starts(source, size, num_parts)
    target_starts, num_target_lines = _places_of_lines(target, [number for number, _ in starts])
    if num_lines != num_target_lines:
        raise unequal_lengths(source, num_lines, target, num_target_lines)
    bounds = zip([*starts, (num_lines, size)], [*target_starts, target_size])
    return [
        (Span(source, start, stop, number + 1), Span(target, target_start, target_stop, number + 1))
        for ((number, start), target_start), ((_, stop), target_stop) in itertools.pairwise(bounds)
    ]


def unequal_lengths(first: str, count: int, second: str, count_of_second: int) -> UserError:
    """Returns the error of two files whose lines should belong to each other."""
    (shorter, lines), (longer, _) = sorted(
        [(first, count), (second, count_of_second)], key=lambda pair: pair[1]
    )
    return UserError(
        f"{shorter} has {lines} lines, {longer} has more: "
        "line n of one must belong to line n of the other"
    )


def _line_starts(file: str, size: int, num_parts: int) -> tuple[list[tuple[int, int]], int]:
    """Returns the number (from 0) and the place of the first line of each part, and the lines.

    A part begins with the first line at or after its share of the file's bytes.
    """
    wanted = [size * part // num_parts for part in range(1, num_parts)]
    starts = {0: 0}
    num_lines, place, block = 0, 0, b"\n"
    for block in _blocks(file):
        while wanted and (end := block.find(b"\n", max(wanted[0] - 1 - place, 0))) >= 0:
            starts[num_lines + block.count(b"\n", 0, end + 1)] = place + end + 1
            del wanted[0]
        num_lines += block.count(b"\n")
        place += len(block)
    num_lines += not block.endswith(b"\n")
    starts.pop(num_lines, None)  # the end of the file
    return [*starts.items()], num_lines


def _places_of_lines(file: str, numbers: list[int]) -> tuple[list[int], int]:
    """Returns the places of these lines, as far as the file has them, and its number of lines."""
    wanted, places = numbers[1:], [0]
    num_lines, place, block = 0, 0, b"\n"
    for block in _blocks(file):
        count = block.count(b"\n")
        if wanted and wanted[0] <= num_lines + count:
            ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
            while wanted and wanted[0] <= num_lines + count:
                places.append(place + int(ends[wanted[0] - num_lines - 1]) + 1)
                del wanted[0]
        num_lines += count
        place += len(block)
    num_lines += not block.endswith(b"\n")
    return places, num_lines


def _blocks(file: str) -> Iterator[bytes]:
    with buckets.open_at(file, 0) as content:
        while block := content.read(_BLOCK_BYTES):
            yield block
