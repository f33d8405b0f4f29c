"""Labelled examples in files and TFDS sets: tables, CoNLL columns, SQuAD's JSON. Each says where it
stands, for messages.
"""

import csv
import dataclasses
import itertools
import json
from collections.abc import Iterator, Sequence

from transformer_jax.config import UserError
from transformer_jax.data.sources import documents
from transformer_jax.data.sources import pairs as sources
from transformer_jax.pictures.progress import say
from transformer_jax.storage import buckets


@dataclasses.dataclass(frozen=True)
class Record:
    where: str  # file and line
    values: tuple  # of the columns asked for


@dataclasses.dataclass(frozen=True)
class Table:
    """The rows of files *.tsv (or any other text: tab-separated, no quotes), *.csv, *.jsonl and
    *.json (an object a line, or one list of them).

    `columns` are names in the header (keys of the JSON objects), or numbers from 1 of tables
    without a header.
    """

    paths: tuple[str, ...]
    columns: tuple[str, ...]
    skip: bool = False  # rows of too few columns or too many, rather than refuse them

    def fingerprint(self) -> dict:
        return {
            "files": [sources.sha256(path) for path in self.paths],
            "columns": list(self.columns),
        } | ({"skip": True} if self.skip else {})

    def __iter__(self) -> Iterator[Record]:
        for path in self.paths:
            if path.endswith((".jsonl", ".json")):
                yield from self._objects(path)
            else:
                yield from self._lines(path)

    def _lines(self, path: str) -> Iterator[Record]:
        skipped, header, places = (
            0,
            None,
            [int(column) - 1 for column in self.columns if column.isdecimal()],
        )
        for number, row in _split(path):
            if row == [""] and not self.skip:
                raise UserError(f"{path}:{number}: an empty line")
            if not places:
                header = row
                if missing := [column for column in self.columns if column not in header]:
                    raise UserError(
                        f"{path}:{number}: no column {missing[0]!r} in the header: {', '.join(header[:12])} (tables without one: numbers from 1)"
                    )
                places = [header.index(column) for column in self.columns]
                continue
            if max(places) >= len(row) or (header and len(row) != len(header)):
                if self.skip:
                    skipped += 1
                    continue
                asked = (
                    f"the header has {len(header)}"
                    if header
                    else f"column {max(places) + 1} is asked for"
                )
                raise UserError(
                    f"{path}:{number}: {len(row)} column{'s' * (len(row) > 1)}, {asked}"
                )
            yield Record(f"{path}:{number}", tuple(row[place] for place in places))
        if skipped:
            say(f"{path}: {skipped:,} rows of another number of columns are left out")

    def _objects(self, path: str) -> Iterator[Record]:
        for where, found in _values(path):
            if not isinstance(found, dict) or any(column not in found for column in self.columns):
                missing = [
                    column
                    for column in self.columns
                    if not isinstance(found, dict) or column not in found
                ]
                raise UserError(f"{where}: no key {missing[0]!r}")
            for column in self.columns:
                if not isinstance(found[column], (str, int, float)):
                    raise UserError(
                        f"{where}: {column!r} is {json.dumps(found[column])[:40]}, neither text nor a number"
                    )
            yield Record(where, tuple(str(found[column]) for column in self.columns))


def _values(path: str) -> Iterator[tuple[str, object]]:
    """What a file of JSON holds, and where: a value a line, or the items of one list."""
    lines = (
        (number, line) for number, line in enumerate(sources.text_lines(path), 1) if line.strip()
    )
    first = next(lines, (1, ""))
    if path.endswith(".json") and first[1].lstrip().startswith("["):
        whole = sources.from_json("".join([first[1], *(line for _, line in lines)]), path)
        yield from ((f"{path}: item {number}", value) for number, value in enumerate(whole, 1))
    elif first[1]:
        yield from (
            (f"{path}:{number}", sources.from_json(line, f"{path}:{number}"))
            for number, line in itertools.chain([first], lines)
        )


def _split(path: str) -> Iterator[tuple[int, list[str]]]:
    """Each row with the number of its last line."""
    if not path.endswith(".csv"):
        yield from enumerate((line.split("\t") for line in sources.text_lines(path)), 1)
        return
    csv.field_size_limit(2**31 - 1)  # a text may be long
    reader = csv.reader(sources.text_lines(path, keep_ends=True), strict=True)
    try:
        for row in reader:
            yield reader.line_num, row or [""]
    except csv.Error as error:
        raise UserError(f"{path}:{reader.line_num}: not CSV ({error})") from None


@dataclasses.dataclass(frozen=True)
class TfdsTable:
    """A split of a set that TFDS has prepared; class labels come as their names."""

    folder: str
    split: str
    columns: tuple[str, ...]

    def fingerprint(self) -> dict:
        return {
            "tfds": sources.sha256(f"{self.folder}/dataset_info.json"),
            "split": self.split,
            "columns": list(self.columns),
        }

    def __iter__(self) -> Iterator[Record]:
        names = {column: sources.tfds_class_names(self.folder, column) for column in self.columns}
        for number, example in enumerate(sources.tfds_examples(self.folder, self.split)):
            where = f"{self.folder} {self.split} example {number}"
            for column in self.columns:
                if column not in example:
                    raise UserError(
                        f"{self.folder}: no feature {column!r}, only {', '.join(example)}"
                    )
            yield Record(
                where,
                tuple(_shown(example[column], names[column], where) for column in self.columns),
            )


def _shown(value, names: Sequence[str] | None, where: str) -> str:
    if names is not None and 0 <= int(value) < len(names):
        return names[int(value)]
    return sources.decoded(value, where) if isinstance(value, (bytes, str)) else str(value)


def table(data, split: str, columns: Sequence[str], skip: bool = False) -> Table | TfdsTable | None:
    """The examples of a split that `config.data` names; None if it names none. `skip`: see Table.
    Raises UserError where files are not there.
    """
    if data.tfds_name and not data[f"{split}_files"]:
        folder = sources.tfds_folder(data, split)
        return folder and TfdsTable(*folder, tuple(columns))
    paths = files(data, split)
    if paths is None:
        return None
    if "0" in columns:
        raise UserError("column '0': columns are numbered from 1")
    if mixed := [column for column in columns if column.isdecimal() != columns[0].isdecimal()]:
        raise UserError(
            f"columns {columns[0]!r} and {mixed[0]!r}: either all are names in a header, or all are numbers from 1"
        )
    return Table(paths, tuple(columns), skip)


def files(data, split: str) -> tuple[str, ...] | None:
    """The files of a split; None if none are named. Raises UserError where they are not there, or
    there is nothing to train on.
    """
    key = f"{split}_files"
    if data[key]:
        return tuple(documents.paths(f"config.data.{key}", data[key]))
    if split == "train":
        raise UserError("config.data names no training examples: give config.data.train_files")
    return None


@dataclasses.dataclass(frozen=True)
class Conll:
    """Sentences as lines of a word and, in the last column, its tag; a blank line ends a sentence.
    `prefix` is taken off each word.
    """

    paths: tuple[str, ...]
    prefix: str = ""

    def fingerprint(self) -> dict:
        return {"files": [sources.sha256(path) for path in self.paths], "prefix": self.prefix}

    def __iter__(self) -> Iterator[Record]:
        """`values` are (words, tags)."""
        for path in self.paths:
            words, tags, first, width = [], [], 1, 0
            for number, line in enumerate(sources.text_lines(path), 1):
                line = line.strip("\ufeff")  # also inside some published files
                if not line.strip() or line.startswith("-DOCSTART-"):
                    if words:
                        yield Record(f"{path}:{first}", (tuple(words), tuple(tags)))
                    words, tags, first = [], [], number + 1
                    continue
                columns = line.split("\t") if "\t" in line else line.split(" ")
                if len(columns) < 2 or not columns[0].strip() or not columns[-1].strip():
                    raise UserError(
                        f"{path}:{number}: a word and its tag are asked for, in columns"
                    )
                width = width or len(columns)
                if len(columns) != width:
                    raise UserError(f"{path}:{number}: {len(columns)} columns, {width} before")
                words.append(columns[0].removeprefix(self.prefix))
                tags.append(columns[-1].strip())
            if words:
                yield Record(f"{path}:{first}", (tuple(words), tuple(tags)))


@dataclasses.dataclass(frozen=True)
class Squad:
    """Questions on paragraphs in the JSON form of SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018)."""

    paths: tuple[str, ...]

    def fingerprint(self) -> dict:
        return {"files": [sources.sha256(path) for path in self.paths]}

    def __iter__(self) -> Iterator[Record]:
        """`values` are (id, question, context, ((text, first character), ...)); no answers: there
        is none in the context.
        """
        for path in self.paths:
            try:
                articles = sources.from_json(buckets.path(path).read_text("utf-8-sig"), path)[
                    "data"
                ]
                found = [
                    (paragraph["context"], qa)
                    for article in articles
                    for paragraph in article["paragraphs"]
                    for qa in paragraph["qas"]
                ]
                found = [
                    (
                        qa["id"],
                        qa["question"],
                        context,
                        ()
                        if qa.get("is_impossible")
                        else tuple((a["text"], a["answer_start"]) for a in qa["answers"]),
                    )
                    for context, qa in found
                ]
            except (ValueError, KeyError, TypeError) as error:
                raise UserError(
                    f"{path}: not in SQuAD's form ({type(error).__name__}: {error})"
                ) from None
            for values in found:
                yield _question(f"{path}: question {values[0]}", *values)


@dataclasses.dataclass(frozen=True)
class TfdsSquad:
    """The same in a split of a set that TFDS has prepared."""

    folder: str
    split: str

    def fingerprint(self) -> dict:
        return {"tfds": sources.sha256(f"{self.folder}/dataset_info.json"), "split": self.split}

    def __iter__(self) -> Iterator[Record]:
        for example in sources.tfds_examples(self.folder, self.split):
            where = f"{self.folder} {self.split} example {example.get('id')}"
            if missing := [
                feature
                for feature in ("id", "question", "context", "answers")
                if feature not in example
            ]:
                raise UserError(
                    f"{self.folder}: no feature {missing[0]!r}, only {', '.join(example)}"
                )
            number, question, context = (
                sources.decoded(example[feature], where)
                for feature in ("id", "question", "context")
            )
            starts = [] if example.get("is_impossible") else example["answers"]["answer_start"]
            answers = tuple(
                (sources.decoded(text, where), int(start))
                for text, start in zip(example["answers"]["text"], starts)
            )
            yield _question(where, number, question, context, answers)


def squad(data, split: str) -> Squad | TfdsSquad | None:
    """The questions of a split that `config.data` names; None if it names none."""
    if data.tfds_name and not data[f"{split}_files"]:
        folder = sources.tfds_folder(data, split)
        return folder and TfdsSquad(*folder)
    paths = files(data, split)
    return paths and Squad(paths)


def _question(where: str, number: str, question: str, context: str, answers: tuple) -> Record:
    if not all(
        isinstance(text, str) for text in (question, context, *(text for text, _ in answers))
    ) or not all(isinstance(start, int) for _, start in answers):
        raise UserError(
            f"{where}: question, context and answers are texts, answer_start is a whole number"
        )
    for text, start in answers:
        if not text or context[start : start + len(text)] != text:
            raise UserError(
                f"{where}: the answer {text[:40]!r} is not at character {start} of its context"
            )
    return Record(where, (number, question, context, answers))
