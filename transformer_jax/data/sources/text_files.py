"""Reading UTF-8 text and JSON from a disk, a bucket or stdin."""

import contextlib
import json
import sys
from collections.abc import Iterator

from transformer_jax.config import UserError
from transformer_jax.storage import buckets


def text_lines(path: str, keep_ends: bool = False) -> Iterator[str]:
    """Yields the lines of a UTF-8 file. The path "-" means stdin.

    Only "\\n" and "\\r\\n" end a line. They are removed unless `keep_ends`. A byte-order mark is
    removed. Raises UserError with the number of a line that is not UTF-8.
    """
    with (
        contextlib.nullcontext(sys.stdin.buffer)
        if path == "-"
        else buckets.path(path).open("rb") as file
    ):
        for number, raw in enumerate(file, 1):
            try:
                line = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                name = "stdin" if path == "-" else path
                fault = f"{error.reason} at byte {error.start} of the line"
                raise UserError(f"{name}:{number}: not UTF-8 ({fault})") from None
            if number == 1:
                line = line.removeprefix("\ufeff")
            yield line if keep_ends else line.rstrip("\n").removesuffix("\r")


def from_json(text: str, where: str):
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
