"""Reading UTF-8 text and JSON from a disk, a bucket or stdin."""

import contextlib
import dataclasses
import json
import sys
from collections.abc import Iterator

from transformer_jax.config import UserError
from transformer_jax.storage import buckets

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
