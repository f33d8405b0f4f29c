"""Text files: reading them, cutting them into parts, and their remembered digests."""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from transformer_jax.config import UserError
from transformer_jax.data.store import Folder
from transformer_jax.distributed import hosts
from transformer_jax.storage import buckets

# --------------------------------------------------------------------------------------------------
# Reading UTF-8 text and JSON from a disk, a bucket or stdin.

_BLOCK_BYTES = 2**23  # read together


@dataclasses.dataclass(frozen=True)
class Span:
    """Whole lines of a file: the bytes from `start` to `stop`."""

    file: str
    start: int = 0
    stop: int | None = None  # None: the end of the file
    first_line: int | None = None  # its number, from 1; None: counted where an error names a line


@dataclasses.dataclass(frozen=True)
class Place:
    """Line `index` of a span, from 0, as FILE:NUMBER in error messages."""

    span: Span
    index: int

    def __str__(self):
        first_line = self.span.first_line or 1 + _newlines(self.span.file, self.span.start)
        name = "stdin" if self.span.file == "-" else self.span.file
        return f"{name}:{first_line + self.index}"


def _newlines(file: str, stop: int) -> int:
    """Returns the number of line ends before byte `stop` of a file."""
    count = 0
    if stop:
        with buckets.open_at(file, 0) as content:
            while stop > 0 and (block := content.read(min(stop, _BLOCK_BYTES))):
                count += block.count(b"\n")
                stop -= len(block)
    return count


def text_lines(text: str | Span, keep_ends: bool = False) -> Iterator[str]:
    """Yields the lines of a UTF-8 file, or of a span of it. The path "-" means stdin.

    Only "\\n" and "\\r\\n" end a line. They are removed unless `keep_ends`. A byte-order mark is
    removed. Raises UserError with the number of a line that is not UTF-8.
    """
    span = Span(text) if isinstance(text, str) else text
    with (
        contextlib.nullcontext(sys.stdin.buffer)
        if span.file == "-"
        else buckets.open_at(span.file, span.start) as file
    ):
        place = span.start
        for index, raw in enumerate(file):
            if span.stop is not None and place >= span.stop:
                return
            place += len(raw)
            try:
                line = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                fault = f"{error.reason} at byte {error.start} of the line"
                raise UserError(f"{Place(span, index)}: not UTF-8 ({fault})") from None
            if place == len(raw):
                line = line.removeprefix("\ufeff")
            yield line if keep_ends else line.rstrip("\n").removesuffix("\r")


def from_json(text: str, where: str | Place):
    """Returns the value of a JSON text; `where` is its place in error messages.

    Raises UserError for text that is not JSON. It also raises for a lone surrogate such as
    \\ud83d, because no tokenizer accepts one.
    """
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise UserError(
            f"{where}: half a character (a lone surrogate \\ud800 to \\udfff)"
        ) from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not JSON ({error})") from None
    return value


def check_not_empty(key: str, file: str) -> None:
    """Raises UserError where `file` does not exist or is empty; `key` is the key that names it."""
    if not buckets.path(file).is_file():
        raise UserError(f"{key}={file}: no such file")
    if buckets.is_empty(file):
        raise UserError(f"{key}={file}: the file is empty")


def matching_files(key: str, names: str) -> list[str]:
    """Returns the files that `names` lists: paths, URLs and shell patterns, separated by commas.

    `key` is the key that holds the names. Raises UserError for a file that is missing or empty.
    """
    files = []
    for name in names.split(","):
        matches = buckets.matches(name.strip())
        if not matches:
            raise UserError(f"{key}={name}: no such file")
        files += matches
    for file in files:
        check_not_empty(key, file)
    return files


# --------------------------------------------------------------------------------------------------
# Cutting a text into parts by its bytes alone, so that many workers cut it alike.
#
# A text has the method `parts()`. It returns a list of picklable texts which follow each other.

PART_BYTES = 2**24
# A larger text has larger parts.
_MAX_PARTS = 1024
_READ_BYTES = 2**23  # of a file that is read whole
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


def document_parts(
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


def aligned_parts(source: str, target: str) -> list[tuple[Span, Span]]:
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
        while block := content.read(_READ_BYTES):
            yield block


# --------------------------------------------------------------------------------------------------
# The digests of raw files, remembered: a start reads no file that an earlier start has read.
#
# A digest holds for a path and a version of the file: size and time of change, or in a bucket the
# generation. The digests lie in `config.data.cache`, in the folder `digests`.

_FILE = "digests.json"
_MOST = 100_000  # the oldest digests beyond that many are forgotten
_SMALL = 2**20  # bytes; to read a smaller file takes no longer than to write its digest
_SAVE_SECONDS = 30  # between two writes of the file
# Seconds. Two changes within a tick of the file system's clock may leave size and time equal, so
# the digest of a file that has just changed is not remembered.
_FRESH = 2

Key = tuple[str, tuple]  # a path or URL, and the version of the file


@dataclasses.dataclass
class _Memory:
    """The digests that this process knows."""

    digests: dict[Key, str] = dataclasses.field(default_factory=dict)
    folder: str = ""  # where those of earlier starts lie; "" for nowhere
    is_read: bool = True  # whether `digests` has them


_memory = _Memory()


def remember_in(data) -> None:
    """From now on, digests are read from the cache of `data`, config.data, and added to it.

    With config.data.rebuild, those of earlier starts do not count.
    """
    folder = f"{str(data.cache).rstrip('/')}/digests"
    if data.rebuild:
        _memory.digests.clear()
    if data.rebuild or folder != _memory.folder:
        _memory.folder, _memory.is_read = folder, data.rebuild


def sha256(paths: Sequence[str]) -> list[str]:
    """Returns the SHA-256 digest of each file. Reads those whose version is not known."""
    if not _memory.is_read:
        _memory.is_read = True
        _memory.digests = _read(_memory.folder) | _memory.digests
    digests = []
    new: dict[Key, str] = {}
    saved_at = time.monotonic()
    for path in paths:
        started = time.time()
        key = place, version = _key(path)
        digest = _memory.digests.get(key)
        if digest is None:
            with buckets.path(place).open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if _is_settled(version, started) and _key(path) == key:
                new[key] = _memory.digests[key] = digest
        digests.append(digest)
        if time.monotonic() - saved_at > _SAVE_SECONDS:
            _save(new)
            saved_at = time.monotonic()
    _save(new)
    return digests


def share() -> None:
    """Gives all processes the digests that process 0 knows.

    Each then reads only files of another version, such as copies on its own disk. Every process
    must call it.
    """
    _memory.digests |= _of_rows(hosts.share(_rows(_memory.digests)))


def _key(path: str) -> Key:
    # Behind all links, because a link may come to name another file.
    place = buckets.path(path)
    place = os.path.realpath(place) if isinstance(place, pathlib.Path) else str(place)
    return place, buckets.version(place)


def _is_settled(version: tuple, now: float) -> bool:
    match version:
        case (_, nanoseconds):
            return now - nanoseconds / 1e9 > _FRESH
    return True


def _save(new: dict[Key, str]) -> None:
    """Adds the digests of large files to those of the folder, where it can be written."""
    large = {key: digest for key, digest in new.items() if _is_large(key[1])}
    if not large or not _memory.folder:
        return
    with contextlib.suppress(UserError):
        folder = Folder(_memory.folder)
        with folder.exclusive():
            digests = _read(_memory.folder) | large
            latest = dict(list(digests.items())[-_MOST:])
            folder.write(_FILE, json.dumps(_rows(latest)).encode(), sealed=True)


def _is_large(version: tuple) -> bool:
    match version:
        case (size, _):
            return size >= _SMALL
    return True  # each request to a bucket takes time


def _read(folder: str) -> dict[Key, str]:
    """Returns the digests that were saved in the folder; none where they can't be read."""
    # DamagedStore is a UserError.
    with contextlib.suppress(UserError, ValueError, TypeError):
        return _of_rows(json.loads(Folder(folder).read(_FILE, sealed=True) or b"[]"))
    return {}


def _rows(digests: dict[Key, str]) -> list:
    return [[place, version, digest] for (place, version), digest in digests.items()]


def _of_rows(rows: list) -> dict[Key, str]:
    return {(place, tuple(version)): digest for place, version, digest in rows}
