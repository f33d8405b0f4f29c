"""Reading text files, dividing them into parts, and caching their digests."""

import contextlib
import dataclasses
import functools
import hashlib
import io
import itertools
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from transformer_jax.config import UserError
from transformer_jax.data.store import Folder
from transformer_jax.distributed import hosts
from transformer_jax.storage import buckets

# --------------------------------------------------------------------------------------------------
# Reading UTF-8 text and JSON from a disk, a bucket or stdin. Lines are split by `text_lines` alone,
# so that every error counts them in the same way.

_BLOCK_BYTES = 2**23  # read in one call, so that counting needs little memory


@dataclasses.dataclass(frozen=True)
class Span:
    """Whole lines of a file: the bytes from `start` up to `stop`."""

    file: str
    start: int = 0
    stop: int | None = None  # None: the end of the file
    # the number of the first line, from 1; None: unknown, and counted only if an error needs it
    first_line: int | None = None


@dataclasses.dataclass(frozen=True)
class Location:
    """The location of line `index` (from 0) of a span, as FILE:NUMBER in error messages."""

    span: Span
    index: int

    def __str__(self):
        # Counting is left until an error needs it, because it reads all of the file before the
        # span.
        first_line = self.span.first_line or 1 + _newlines(self.span.file, self.span.start)
        name = "stdin" if self.span.file == "-" else self.span.file
        return f"{name}:{first_line + self.index}"


def _newlines(file: str, stop: int) -> int:
    """Returns the number of line ends in the first `stop` bytes of a file."""
    count = 0
    if stop:
        with buckets.open_at(file, 0) as content:
            while stop > 0 and (block := content.read(min(stop, _BLOCK_BYTES))):
                count += block.count(b"\n")
                stop -= len(block)
    return count


_COMPRESSED = {".gz": "gzip", ".zst": "zstd"}


def uncompressed_name(file: str) -> str:
    """Returns the name of a file without the ending of a compressed one, which tells its kind."""
    return next((file.removesuffix(end) for end in _COMPRESSED if file.endswith(end)), file)


def is_compressed(file: str) -> bool:
    """Returns whether a file is compressed, and therefore read from its beginning only."""
    return uncompressed_name(file) != file


def opened(span: Span) -> contextlib.AbstractContextManager:
    """Opens a file at the start of a span. A compressed file is decompressed as it is read."""
    if span.file == "-":
        return contextlib.nullcontext(sys.stdin.buffer)
    file = buckets.open_at(span.file, span.start)
    if not is_compressed(span.file):
        return file
    import pyarrow

    kind = next(kind for end, kind in _COMPRESSED.items() if span.file.endswith(end))
    return io.BufferedReader(pyarrow.CompressedInputStream(file, kind), _READ_BYTES)


def text_lines(text: str | Span, keep_ends: bool = False) -> Iterator[str]:
    """Yields the lines of a UTF-8 file, or of a span of it. The path "-" means stdin.

    A file that ends in .gz or .zst is decompressed; a span of it must be the whole file.

    Only "\\n" and "\\r\\n" end a line, because other separators occur inside texts. They are
    removed unless `keep_ends` is true. A byte-order mark is removed. Raises UserError with the line
    number if a line is not UTF-8.
    """
    span = Span(text) if isinstance(text, str) else text
    stop = None if is_compressed(span.file) else span.stop
    with opened(span) as file:
        offset = span.start
        for index, raw in enumerate(_readable(file, span.file)):
            # A span ends at a line end, so it is enough to compare before each line.
            if stop is not None and offset >= stop:
                return
            offset += len(raw)
            try:
                # Bytes are decoded line by line, and not by the file object, because offsets count
                # bytes, and because Python would also end lines at a single carriage return.
                line = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                fault = f"{error.reason} at byte {error.start} of the line"
                raise UserError(f"{Location(span, index)}: not UTF-8 ({fault})") from None
            if offset == len(raw):  # only the first line of a file may begin with a byte-order mark
                line = line.removeprefix("\ufeff")
            yield line if keep_ends else line.rstrip("\n").removesuffix("\r")


def _readable(lines: Iterable[bytes], file: str) -> Iterator[bytes]:
    """Yields the lines. Raises UserError for a compressed file that is damaged."""
    try:
        yield from lines
    except OSError as error:
        if not is_compressed(file):
            raise
        raise UserError(f"{file}: can't be decompressed ({error})") from None


def from_json(text: str, where: str | Location, unique_keys: bool = False):
    """Returns the value of a JSON text; `where` is its location for error messages.

    Raises UserError if the text is not JSON, or if it contains a lone surrogate such as \\ud83d,
    which no tokenizer accepts. With `unique_keys`, it also raises UserError for an object that has
    a key twice, of which Python takes the last.
    """
    try:
        value = json.loads(text, object_pairs_hook=_unique if unique_keys else None)
        # Only encoding reveals a lone surrogate, which `json.loads` accepts.
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise UserError(
            f"{where}: half a character (a lone surrogate \\ud800 to \\udfff)"
        ) from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not JSON ({error})") from None
    return value


def _unique(pairs: list[tuple[str, object]]) -> dict:
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} twice")
    return value


def check_not_empty(key: str, file: str) -> None:
    """Raises UserError if `file` does not exist or is empty; `key` is the key that names it."""
    path = buckets.path(file)
    if path.is_dir():
        raise UserError(f"{key}={file}: a folder; name what is in it, as {file.rstrip('/')}/*.txt")
    if not path.is_file():
        raise UserError(f"{key}={file}: no such file")
    if buckets.is_empty(file):
        raise UserError(f"{key}={file}: the file is empty")


def matching_files(key: str, names: str) -> list[str]:
    """Returns the files that `names` lists.

    `names` are paths, URLs and shell patterns that are separated by commas, and `key` is their
    config key. A folder that `save_to_disk` of Hugging Face's datasets has written stands for its
    files, and so does any other folder of *.parquet or *.arrow files. Raises UserError if a file is
    missing or empty.
    """
    files = []
    for name in names.split(","):
        matches = _dataset_files(name.strip()) or buckets.matches(name.strip())
        if not matches:
            raise UserError(f"{key}={name}: no such file")
        files += matches
    for file in files:
        check_not_empty(key, file)
    return files


def _dataset_files(folder: str) -> list[str]:
    """Returns the files of a folder of tables; empty if it is none."""
    state = buckets.path(folder) / "state.json"
    if not state.exists():
        if not buckets.path(folder).is_dir():
            return []
        inside = (buckets.matches(f"{folder.rstrip('/')}/*{end}") for end in (".parquet", ".arrow"))
        return next(filter(None, inside), [])
    content = from_json(state.read_text("utf-8"), str(state))
    return [f"{folder.rstrip('/')}/{each['filename']}" for each in content["_data_files"]]


# --------------------------------------------------------------------------------------------------
# Dividing a text into parts by its bytes alone, so that all workers divide it in the same way.
#
# A text has the method `parts()`, which returns a list of consecutive, picklable texts. Parts are
# independent, so that they can be tokenized by several processes, and an interrupted build repeats
# only those that are missing.

PART_BYTES = 2**24
# A text that would have more parts has larger parts instead, because each part is a folder with
# files of its own, and store.json lists them all.
_MAX_PARTS = 1024
_READ_BYTES = 2**23  # read in one call from a file that is read in full, to save requests
_LOOK_BYTES = 2**16  # read in one call while searching: the next boundary is usually near


def part_bytes(total: int) -> int:
    """Returns the size in bytes of a part of a text of `total` bytes."""
    return max(PART_BYTES, -(-total // _MAX_PARTS))


def ranges(count: int, num_bytes: int) -> list[tuple[int, int]]:
    """Divides `count` records with `num_bytes` bytes in total into ranges [start, stop)."""
    # No part without a record, but one part even without any.
    num_parts = max(1, min(count, -(-num_bytes // part_bytes(num_bytes))))
    bounds = [count * part // num_parts for part in range(num_parts + 1)]
    return [*itertools.pairwise(bounds)]


Lines = Iterator[tuple[int, bytes]]  # lines of a file, each with its offset


def document_parts(
    files: Sequence[str], boundary: Callable[[str], Callable[[Lines, int], int] | None]
) -> list[tuple[Span, ...]]:
    """Returns the spans in each part of files of documents. Small files share a part.

    `boundary(file)(lines, size)` returns the offset of the first line at which a document may
    start, or the size of the file. If `boundary(file)` is None, the file is not divided.
    """
    sizes = [buckets.size(file) for file in files]
    limit = part_bytes(sum(sizes))
    groups, size_of_last = [()], 0
    for file, size in zip(files, sizes):
        for span in _spans(file, size, limit, boundary(file)):
            # In order and not by best fit, so that the parts follow each other as the files do.
            if size_of_last and size_of_last + span.stop - span.start > limit:
                groups.append(())
                size_of_last = 0
            groups[-1] += (span,)
            size_of_last += span.stop - span.start
    return groups


def _spans(file: str, size: int, limit: int, boundary: Callable | None) -> list[Span]:
    """Returns spans of about equal size that exceed `limit` by at most one document."""
    num_parts = -(-size // limit) if boundary else 1
    # A set, because a long document may be the boundary of several parts.
    offsets = {0, size}
    for part in range(1, num_parts):
        start = size * part // num_parts
        offsets.add(boundary(_lines(file, start), size))
    return [Span(file, start, stop) for start, stop in itertools.pairwise(sorted(offsets))]


def _lines(file: str, start: int) -> Lines:
    """Yields (offset, line) for the lines that start at or after byte `start` > 0."""
    with buckets.open_at(file, start - 1, _LOOK_BYTES) as content:
        # Reading starts one byte early, so that this skips the rest of the previous line, which is
        # only its end if a line starts exactly at `start`.
        offset = start - 1 + len(content.readline())
        for line in content:
            yield offset, line
            offset += len(line)


def next_line(lines: Lines, size: int) -> int:
    """Returns the offset of the first line, or `size`, the end of the file, if there is none."""
    return next(lines, (size, b""))[0]


def next_blank_line(lines: Lines, size: int) -> int:
    """Returns the offset of the first blank line, which ends a document, or `size`."""
    # Decoded, because a line of other white space, such as a no-break space, is blank as well.
    blank = (offset for offset, line in lines if not line.decode(errors="replace").strip())
    return next(blank, size)


def aligned_parts(source: str, target: str) -> list[tuple[Span, Span]]:
    """Returns the two spans of each part of parallel files, whose lines correspond to each other.

    Both files are read once to count their lines. Raises UserError if the counts differ.
    """
    # The versions of the files are arguments only because they are part of the cache's key.
    return _aligned(source, target, buckets.version(source), buckets.version(target))


@functools.lru_cache
def _aligned(source: str, target: str, *_versions) -> list[tuple[Span, Span]]:
    size, target_size = buckets.size(source), buckets.size(target)
    total = size + target_size
    num_parts = -(-total // part_bytes(total))
    if num_parts < 2:
        return [(Span(source), Span(target))]
    starts, num_lines = _line_starts(source, size, num_parts)
    target_starts, num_target_lines = _line_offsets(target, [number for number, _ in starts])
    if num_lines != num_target_lines:
        raise unequal_lengths(source, num_lines, target, num_target_lines)
    bounds = zip([*starts, (num_lines, size)], [*target_starts, target_size])
    return [
        (Span(source, start, stop, number + 1), Span(target, target_start, target_stop, number + 1))
        for ((number, start), target_start), ((_, stop), target_stop) in itertools.pairwise(bounds)
    ]


def unequal_lengths(first: str, count: int, second: str, count_of_second: int) -> UserError:
    """Returns the error for two files that should be parallel but differ in length."""
    (shorter, lines), (longer, _) = sorted(
        [(first, count), (second, count_of_second)], key=lambda pair: pair[1]
    )
    return UserError(
        f"{shorter} has {lines} lines, {longer} has more: "
        "line n of one must belong to line n of the other"
    )


def _line_starts(file: str, size: int, num_parts: int) -> tuple[list[tuple[int, int]], int]:
    """Returns (number from 0, offset) of the first line of each part, and the number of lines.

    A part starts with the first line at or after its share of the file's bytes.
    """
    wanted = [size * part // num_parts for part in range(1, num_parts)]
    starts = {0: 0}
    num_lines, offset, block = 0, 0, b"\n"
    for block in _blocks(file):
        # The search starts one byte before the wanted position, because a line may begin exactly
        # there.
        while wanted and (end := block.find(b"\n", max(wanted[0] - 1 - offset, 0))) >= 0:
            starts[num_lines + block.count(b"\n", 0, end + 1)] = offset + end + 1
            del wanted[0]
        num_lines += block.count(b"\n")
        offset += len(block)
    # The last line may lack its line end.
    num_lines += not block.endswith(b"\n")
    starts.pop(num_lines, None)  # the end of the file is not the start of a line
    return [*starts.items()], num_lines


def _line_offsets(file: str, numbers: list[int]) -> tuple[list[int], int]:
    """Returns the offsets of these lines, if the file has them, and its number of lines."""
    wanted, offsets = numbers[1:], [0]
    num_lines, offset, block = 0, 0, b"\n"
    for block in _blocks(file):
        count = block.count(b"\n")
        if wanted and wanted[0] <= num_lines + count:
            # In NumPy, and only in blocks with a wanted line: a loop over all lines in Python would
            # be slow.
            ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
            while wanted and wanted[0] <= num_lines + count:
                offsets.append(offset + int(ends[wanted[0] - num_lines - 1]) + 1)
                del wanted[0]
        num_lines += count
        offset += len(block)
    num_lines += not block.endswith(b"\n")
    return offsets, num_lines


def _blocks(file: str) -> Iterator[bytes]:
    with buckets.open_at(file, 0) as content:
        while block := content.read(_READ_BYTES):
            yield block


# --------------------------------------------------------------------------------------------------
# A cache of the digests of raw files, so that a program reads no file again that an earlier program
# has read.
#
# A digest is valid for a path and a version of the file, which is its size and its times of
# modification and of change, or its generation in a bucket. The time of change is part of it
# because programs that copy files may leave size and modification time as they were. It also moves
# when a file is renamed, or when its permissions change: then a file is read once more than needed.
# The digests are in the folder `digests` of `config.data.cache`.

_FILE = "digests.json"
_MOST = 100_000  # digests; the oldest are dropped, because each program reads the whole file
_SMALL = 2**20  # bytes; reading a smaller file takes no longer than writing its digest
_SAVE_SECONDS = 30  # between two writes, so that a kill loses little of a long start
# Seconds. Two changes within one tick of the file system's clock may leave size and modification
# time the same, so the digest of a file that has only just changed is not cached.
_FRESH = 2
# Seconds, longer than a tick of the clock of Linux's file systems (1 to 10 ms). A change within the
# tick in which a file was last changed would not move its time of change.
_TICK = 0.02

Key = tuple[str, tuple]  # a path or URL, and the version of the file


@dataclasses.dataclass
class _Digests:
    """The digests that are known in this process."""

    digests: dict[Key, str] = dataclasses.field(default_factory=dict)
    folder: str = ""  # the folder with the digests of earlier programs; "" for none
    is_read: bool = True  # whether `digests` contains these


_known = _Digests()


def remember_in(data) -> None:
    """Makes `sha256` read digests from the cache of `data` (config.data) and add them to it.

    With config.data.rebuild, digests of earlier programs are ignored.
    """
    folder = f"{str(data.cache).rstrip('/')}/digests"
    if data.rebuild:
        _known.digests.clear()
    if data.rebuild or folder != _known.folder:
        _known.folder, _known.is_read = folder, data.rebuild


def sha256(paths: Sequence[str]) -> list[str]:
    """Returns the SHA-256 digest of each file. Only files of an unknown version are read."""
    if not _known.is_read:
        _known.is_read = True
        # Those of this process win, because it has read the files itself.
        _known.digests = _read(_known.folder) | _known.digests
    digests = []
    new: dict[Key, str] = {}
    saved_at = time.monotonic()
    for path in paths:
        # Taken before the version, so that a change during the read counts as too fresh.
        started = time.time()
        key = location, version = _key(path)
        digest = _known.digests.get(key)
        if digest is None:
            _wait_for_next_tick(version)
            with buckets.path(location).open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            # The version is read again, because the file may have changed while it was read.
            if _is_settled(version, started) and _key(path) == key:
                new[key] = _known.digests[key] = digest
        digests.append(digest)
        if time.monotonic() - saved_at > _SAVE_SECONDS:
            _save(new)
            saved_at = time.monotonic()
    _save(new)
    return digests


def share() -> None:
    """Sends the digests that process 0 knows to all processes. Every process must call it.

    A process then reads only files of another version, such as copies on its own disk.
    """
    _known.digests |= _from_rows(hosts.share(_rows(_known.digests)))


def _key(path: str) -> Key:
    # Links are resolved, because a link may later point to another file.
    location = buckets.path(path)
    location = os.path.realpath(location) if isinstance(location, pathlib.Path) else str(location)
    return location, buckets.version(location)


def _wait_for_next_tick(version: tuple) -> None:
    """Sleeps until a change of the file would give it another time of change than in `version`."""
    match version:
        case (_, _, changed):
            remaining = changed / 1e9 + _TICK - time.time()
            if 0 < remaining <= _TICK:  # more than that is a clock of another machine
                time.sleep(remaining)


def _is_settled(version: tuple, now: float) -> bool:
    match version:
        case (_, modified, _):
            return now - modified / 1e9 > _FRESH
    return True


def _save(new: dict[Key, str]) -> None:
    """Adds the digests of large files to those in the folder, if it can be written."""
    large = {key: digest for key, digest in new.items() if _is_large(key[1])}
    if not large or not _known.folder:
        return
    # Without permission to write, the cache is merely not updated.
    with contextlib.suppress(UserError):
        folder = Folder(_known.folder)
        with folder.exclusive():
            # Read again under the lock, because another program may have added digests since.
            digests = _read(_known.folder) | large
            # A dict keeps the order in which its keys were added.
            latest = dict(list(digests.items())[-_MOST:])
            folder.write(_FILE, json.dumps(_rows(latest)).encode(), sealed=True)


def _is_large(version: tuple) -> bool:
    match version:
        case (size, _, _):
            return size >= _SMALL
    return True  # in a bucket, because each request takes time


def _read(folder: str) -> dict[Key, str]:
    """Returns the digests that were saved in the folder, or {} if they can't be read."""
    # A damaged file is ignored, too: DamagedStore is a UserError.
    with contextlib.suppress(UserError, ValueError, TypeError):
        return _from_rows(json.loads(Folder(folder).read(_FILE, sealed=True) or b"[]"))
    return {}


def _rows(digests: dict[Key, str]) -> list:
    return [[path, version, digest] for (path, version), digest in digests.items()]


def _from_rows(rows: list) -> dict[Key, str]:
    return {(path, tuple(version)): digest for path, version, digest in rows}
