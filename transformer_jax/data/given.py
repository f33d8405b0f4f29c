"""Rows that a Python program gives, instead of files: lists, tables, or any sequence of records.

They are written as files into `config.data.cache`, under a name that is the digest of their
content. From then on, a run reads them as any other file, so that it resumes, and is refused if the
rows have changed.
"""

import hashlib
import json
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from transformer_jax.config import UserError
from transformer_jax.storage import buckets

SPLITS = ("train", "valid", "test")
_FOLDER = "given"  # in `config.data.cache`


def keys(data: Mapping[str, Any], config) -> dict[str, str]:
    """Returns the keys of `config.data` that name the files of rows, which are written here.

    `data` holds the rows of the splits "train", "valid" and "test". Rows are a sequence, which has
    a length and an item for each number, or a DataFrame. A row is a text, a mapping of columns, or
    a pair (source, target) of texts, as translation reads them. Raises UserError for other rows.
    """
    if wrong := [name for name in data if name not in SPLITS]:
        raise UserError(f"data: no split {wrong[0]!r}; there are {', '.join(SPLITS)}")
    folder = buckets.path(config.data.cache) / _FOLDER
    named = {}
    for split, rows in data.items():
        records = _Records(f"data[{split!r}]", rows)
        if records.are_pairs:
            for index, side in enumerate(("source", "target")):
                lines = (_one_line(records.name, row[index]) for row in records)
                named[f"data.{split}_{side}"] = str(_written(folder, lines, ".txt"))
        else:
            lines = (_as_json(records.name, row, config.data.text_field) for row in records)
            named[f"data.{split}_files"] = str(_written(folder, lines, ".jsonl"))
    return named


def write(path: str | os.PathLike, rows: Iterable, text_field: str = "text") -> int:
    """Writes rows from an iterator to a file of JSON lines, and returns their number.

    Such a file is what `train` reads by `config.data.train_files`. Rows are texts or mappings. The
    file appears as a whole or not at all. Raises UserError for other rows, or if there is none.

    Examples:
      >>> from transformer_jax import data
      >>> data.write("rows.jsonl", (f"text {number}" for number in range(3)))
      3
    """
    path, count = pathlib.Path(path), 0
    with buckets.writing(path), buckets.appearing(path) as temporary:
        with temporary.open("w", encoding="utf-8") as file:
            for row in rows:
                file.write(_as_json(f"row {count + 1}", row, text_field) + "\n")
                count += 1
        if not count:
            raise UserError(f"{path}: there are no rows to write")
    return count


class _Records:
    """The rows of a split, which can be read repeatedly."""

    def __init__(self, name: str, rows: Any):
        if hasattr(rows, "to_dict") and hasattr(rows, "columns"):  # a DataFrame
            rows = rows.to_dict("records")
        if isinstance(rows, str | bytes | Mapping) or not (
            hasattr(rows, "__len__") and hasattr(rows, "__getitem__")
        ):
            raise UserError(
                f"{name}: {type(rows).__name__} has no numbered rows, and a row must be found by "
                "its number; transformer_jax.data.write(path, rows) writes an iterator to a "
                "file for config.data.train_files"
            )
        if not len(rows):
            raise UserError(f"{name}: there are no rows")
        self.name, self._rows = name, rows
        first = rows[0]
        self.are_pairs = isinstance(first, tuple) and len(first) == 2

    def __iter__(self) -> Iterator:
        return (self._rows[number] for number in range(len(self._rows)))


def _as_json(name: str, row: Any, text_field: str) -> str:
    row = {text_field: row} if isinstance(row, str) else row
    if not isinstance(row, Mapping):
        raise UserError(f"{name}: a row is {type(row).__name__}, neither a text nor a mapping")
    try:
        return json.dumps(dict(row), ensure_ascii=False, default=_plain)
    except (TypeError, ValueError) as error:
        raise UserError(f"{name}: a row is no JSON ({error})") from None


def _plain(value: Any) -> Any:
    """Returns a number or an array of NumPy as Python's."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is neither text nor a number")


def _one_line(name: str, text: Any) -> str:
    if not isinstance(text, str) or "\n" in text:
        raise UserError(f"{name}: {str(text)[:40]!r} must be a text without a line end")
    return text


def _written(folder: pathlib.Path | buckets.Path, lines: Iterable[str], suffix: str):
    """Returns the file of these lines, which is written unless it exists."""
    content = "".join(f"{line}\n" for line in lines).encode()
    path = folder / f"{hashlib.sha256(content).hexdigest()[:32]}{suffix}"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        buckets.write_whole(path, content.decode())
    return path
