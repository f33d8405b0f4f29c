"""Labelled examples in tables: text files with columns, JSON objects, and TFDS sets."""

import csv
import dataclasses
import itertools
import json
from collections.abc import Iterator, Sequence

from transformer_jax.config import UserError
from transformer_jax.data.sources import tfds
from transformer_jax.data.sources.file_digests import sha256
from transformer_jax.data.sources.text_files import from_json, matching_files, text_lines
from transformer_jax.pictures.progress import say


@dataclasses.dataclass(frozen=True)
class Record:
    """One example and its place, for error messages."""

    where: str  # file and line
    values: tuple  # of the requested columns


@dataclasses.dataclass(frozen=True)
class Table:
    """The rows of tables in files.

    *.csv holds comma-separated values, *.jsonl one JSON object a line, *.json the same or one list
    of objects. Any other file is tab-separated without quotes. `columns` are names in the header
    (keys of the JSON objects), or numbers from 1 for tables without a header.
    """

    paths: tuple[str, ...]
    columns: tuple[str, ...]
    skip: bool = False  # leave out rows with too few or too many columns instead of raising

    def fingerprint(self) -> dict:
        fingerprint = {
            "files": sha256(self.paths),
            "columns": list(self.columns),
        }
        return fingerprint | {"skip": True} if self.skip else fingerprint

    def __iter__(self) -> Iterator[Record]:
        for path in self.paths:
            if path.endswith((".jsonl", ".json")):
                yield from self._json_records(path)
            else:
                yield from self._line_records(path)

    def _line_records(self, path: str) -> Iterator[Record]:
        num_skipped = 0
        header = None
        indices = [int(column) - 1 for column in self.columns if column.isdecimal()]
        for number, row in _table_rows(path):
            where = f"{path}:{number}"
            if row == [""] and not self.skip:
                raise UserError(f"{where}: an empty line")
            if not indices:
                header = row
                indices = self._indices(header, where)
                continue
            if max(indices) >= len(row) or (header and len(row) != len(header)):
                if not self.skip:
                    raise _wrong_width(where, row, header, max(indices))
                num_skipped += 1
                continue
            yield Record(where, tuple(row[index] for index in indices))
        if num_skipped:
            say(f"{path}: left out {num_skipped:,} rows with another number of columns")

    def _indices(self, header: list[str], where: str) -> list[int]:
        """Returns the indices of the columns that a header names."""
        missing = [column for column in self.columns if column not in header]
        if missing:
            raise UserError(
                f"{where}: no column {missing[0]!r} in the header: {', '.join(header[:12])} "
                "(columns of tables without a header are numbered from 1)"
            )
        return [header.index(column) for column in self.columns]

    def _json_records(self, path: str) -> Iterator[Record]:
        for where, value in _json_values(path):
            item = value if isinstance(value, dict) else {}
            for column in self.columns:
                if column not in item:
                    raise UserError(f"{where}: no key {column!r}")
            for column in self.columns:
                if not isinstance(item[column], (str, int, float)):
                    raise UserError(
                        f"{where}: {column!r} is {json.dumps(item[column])[:40]}, "
                        "neither text nor a number"
                    )
            yield Record(where, tuple(str(item[column]) for column in self.columns))


def _wrong_width(where: str, row: list[str], header: list[str] | None, last: int) -> UserError:
    """The error of a row whose number of columns is not that of the header, or too small."""
    expected = f"the header has {len(header)}" if header else f"column {last + 1} is needed"
    noun = "columns" if len(row) > 1 else "column"
    return UserError(f"{where}: {len(row)} {noun}, {expected}")


def _json_values(path: str) -> Iterator[tuple[str, object]]:
    """Yields the place and the value of each line, or of each item where a file is one list."""
    numbered = enumerate(text_lines(path), 1)
    lines = ((number, line) for number, line in numbered if line.strip())
    first_number, first_line = next(lines, (1, ""))
    if path.endswith(".json") and first_line.lstrip().startswith("["):
        items = from_json("".join([first_line, *(line for _, line in lines)]), path)
        for number, value in enumerate(items, 1):
            yield f"{path}: item {number}", value
    elif first_line:
        for number, line in itertools.chain([(first_number, first_line)], lines):
            yield f"{path}:{number}", from_json(line, f"{path}:{number}")


def _table_rows(path: str) -> Iterator[tuple[int, list[str]]]:
    """Yields the number of each row's last line, and its columns."""
    if not path.endswith(".csv"):
        for number, line in enumerate(text_lines(path), 1):
            yield number, line.split("\t")
        return
    csv.field_size_limit(2**31 - 1)  # The default limit is too small for long texts.
    reader = csv.reader(text_lines(path, keep_ends=True), strict=True)
    try:
        for row in reader:
            yield reader.line_num, row or [""]
    except csv.Error as error:
        raise UserError(f"{path}:{reader.line_num}: not CSV ({error})") from None


@dataclasses.dataclass(frozen=True)
class TfdsTable:
    """A split of a set that TFDS has prepared. The values of class labels are their names."""

    folder: str
    split: str
    columns: tuple[str, ...]

    def fingerprint(self) -> dict:
        return {
            "tfds": tfds.digest(self.folder),
            "split": self.split,
            "columns": list(self.columns),
        }

    def __iter__(self) -> Iterator[Record]:
        names = {column: tfds.class_names(self.folder, column) for column in self.columns}
        for number, example in enumerate(tfds.examples(self.folder, self.split)):
            where = f"{self.folder} {self.split} example {number}"
            tfds.check_features(self.folder, example, self.columns)
            values = (_as_text(example[name], names[name], where) for name in self.columns)
            yield Record(where, tuple(values))


def _as_text(value, class_names: Sequence[str] | None, where: str) -> str:
    """Returns a feature's value as text; class labels outside the names stay numbers."""
    if class_names is not None and 0 <= int(value) < len(class_names):
        return class_names[int(value)]
    return tfds.decoded(value, where) if isinstance(value, (bytes, str)) else str(value)


def of_split(
    data, split: str, columns: Sequence[str], skip: bool = False
) -> Table | TfdsTable | None:
    """Returns the examples of a split that `config.data` names; None where it names none.

    `skip` is that of `Table`. Raises UserError where files do not exist.
    """
    if data.tfds_name and not data[f"{split}_files"]:
        prepared = tfds.prepared_split(data, split)
        return prepared and TfdsTable(*prepared, tuple(columns))
    paths = split_files(data, split)
    if paths is None:
        return None
    if "0" in columns:
        raise UserError("column '0': columns are numbered from 1")
    mixed = [column for column in columns if column.isdecimal() != columns[0].isdecimal()]
    if mixed:
        raise UserError(
            f"columns {columns[0]!r} and {mixed[0]!r}: "
            "either all are names in a header, or all are numbers from 1"
        )
    return Table(paths, tuple(columns), skip)


def split_files(data, split: str) -> tuple[str, ...] | None:
    """Returns the files of a split; None where none are named.

    Raises UserError where a file does not exist, or where no training files are named.
    """
    key = f"{split}_files"
    if data[key]:
        return tuple(matching_files(f"config.data.{key}", data[key]))
    if split == "train":
        raise UserError("config.data names no training examples: give config.data.train_files")
    return None
