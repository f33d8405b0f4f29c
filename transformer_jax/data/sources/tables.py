"""Labeled examples: tables, tagged sentences, inference pairs and questions about paragraphs."""

import csv
import dataclasses
import itertools
import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from transformer_jax.config import UserError
from transformer_jax.data.sources import text_files, tfds
from transformer_jax.data.sources.text_files import from_json, matching_files, sha256, text_lines
from transformer_jax.pictures.progress import say
from transformer_jax.storage import buckets

# --------------------------------------------------------------------------------------------------
# Labeled examples in tables: text files with columns, JSON objects, and TFDS sets. Each example has
# its location, because a mistake in a table is only found in the file.


@dataclasses.dataclass(frozen=True)
class Record:
    """An example: the values of the requested columns, and its location for error messages."""

    where: str  # file and line
    values: tuple


@dataclasses.dataclass(frozen=True)
class Table:
    """The rows of tables in files.

    *.csv files have comma-separated values, *.jsonl files one JSON object per line, and *.json
    files either the same or one list of objects. *.parquet and *.arrow files are tables with typed
    columns. Any other file is tab-separated without quotes. Each of the first three may be
    compressed, as *.csv.gz or *.jsonl.zst.
    `columns` are names in the header (or keys of the JSON objects), or numbers that start at 1 for
    tables without a header. Blank lines at the end of a file are ignored. Iterating raises
    UserError for a row that is not as expected.
    """

    paths: tuple[str, ...]
    columns: tuple[str, ...]
    skip: bool = False  # skip rows with too few or too many columns instead of raising
    # The column that names classes. In JSON it must hold strings or integers, because the text of
    # any other value, such as "True" or "nan", would be a class that nobody has named. "": none.
    classes: str = ""

    def fingerprint(self) -> dict:
        fingerprint = {
            "files": sha256(self.paths),
            "columns": list(self.columns),
        }
        return fingerprint | {"skip": True} if self.skip else fingerprint

    def __iter__(self) -> Iterator[Record]:
        types = {}  # of the names of classes in JSON, where 1 and "1" would be one class
        for path in self.paths:
            if text_files.uncompressed_name(path).endswith((".jsonl", ".json", *_TYPED)):
                yield from self._json_records(path, types)
            else:
                yield from self._line_records(path)

    def _line_records(self, path: str) -> Iterator[Record]:
        num_skipped = 0
        header = blank = None
        # Columns that are numbers mean that the table has no header. Otherwise `indices` is empty
        # until the first row, which is the header.
        indices = [int(column) - 1 for column in self.columns if column.isdecimal()]
        for number, row in _table_rows(path):
            where = f"{path}:{number}"
            # Many editors leave a blank line at the end. Anywhere else, it may be a lost example,
            # or an empty text in a table of one column, so the next row makes it an error.
            if len(row) == 1 and not row[0].strip() and not self.skip:
                blank = blank or where
                continue
            if blank:
                raise UserError(
                    f"{blank}: an empty line; only at the end of a table are they left out"
                )
            if not indices:
                header = row
                indices = self._indices(header, where)
                continue
            # A row of another width often has a tab or an unquoted comma in its text, so that all
            # columns behind it are shifted.
            if max(indices) >= len(row) or (header and len(row) != len(header)):
                if not self.skip:
                    raise _wrong_width(where, row, header, max(indices))
                num_skipped += 1
                continue
            yield Record(where, tuple(row[index] for index in indices))
        if num_skipped:
            say(f"{path}: left out {num_skipped:,} rows with another number of columns")

    def _indices(self, header: list[str], where: str) -> list[int]:
        """Returns the indices of the requested columns in a header."""
        missing = [column for column in self.columns if column not in header]
        if missing:
            raise UserError(
                f"{where}: no column {missing[0]!r} in the header: {', '.join(header[:12])} "
                "(keys such as config.task.text and config.task.label name the columns; those of "
                "tables without a header are numbered from 1)"
            )
        for column in self.columns:
            # `index` would silently take the first of them.
            if header.count(column) > 1:
                raise UserError(
                    f"{where}: the header has {header.count(column)} columns {column!r}; rename "
                    "all but the one that is meant"
                )
        return [header.index(column) for column in self.columns]

    def _json_records(self, path: str, types: dict[str, type]) -> Iterator[Record]:
        is_typed = path.endswith(_TYPED)
        values = _typed_values(path, self.columns) if is_typed else _json_values(path)
        for where, value in values:
            item = value if isinstance(value, dict) else {}
            for column in self.columns:
                if column not in item:
                    raise UserError(f"{where}: no key {column!r}")
            for column in self.columns:
                if column == self.classes:
                    _check_class(item[column], where, types)
                elif not _is_text_or_number(item[column]):
                    raise UserError(
                        f"{where}: {column!r} is {json.dumps(item[column])[:40]}, "
                        "neither text nor a number"
                    )
            yield Record(where, tuple(str(item[column]) for column in self.columns))


def _is_text_or_number(value) -> bool:
    if isinstance(value, float):
        # Python's JSON reads NaN and Infinity, which would become the texts "nan" and "inf".
        return math.isfinite(value)
    # True is an instance of int.
    return isinstance(value, str | int) and not isinstance(value, bool)


def _check_class(value, where: str, types: dict[str, type]) -> None:
    """Raises UserError for a JSON value that is not the name of a class.

    `types` holds the type of each name so far, and gets the value's type: 1 and "1" are two values
    of JSON, but one name.
    """
    shown = json.dumps(value)[:40]
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise UserError(
            f"{where}: the label {shown} is neither a string nor an integer; write the name of its "
            'class, such as "yes"'
        )
    if types.setdefault(str(value), type(value)) is not type(value):
        raise UserError(
            f"{where}: the label {shown}: other lines have the same label as "
            f"{'an integer' if isinstance(value, str) else 'a string'}; write all of them alike"
        )


def _wrong_width(where: str, row: list[str], header: list[str] | None, last: int) -> UserError:
    """Returns the error for a row with a wrong number of columns."""
    expected = f"the header has {len(header)}" if header else f"column {last + 1} is needed"
    noun = "columns" if len(row) > 1 else "column"
    return UserError(f"{where}: {len(row)} {noun}, {expected}")


_TYPED = (".parquet", ".arrow")  # whose columns have types
_ROWS = 1000  # of them that are read at once


def objects(path: str) -> Iterator[tuple[str, object]]:
    """Yields (location, value) for each row of a table with names, by the ending of its file.

    A value is {column: value} for *.csv, *.parquet and *.arrow files, without columns that are null
    in this row, and any JSON value for JSON lines and *.json files. Raises UserError for a row that
    is not as expected.
    """
    name = text_files.uncompressed_name(path)
    if name.endswith(_TYPED):
        for where, row in _typed_values(path):
            yield where, {column: value for column, value in row.items() if value is not None}
    elif name.endswith(".csv"):
        rows = ((f"{path}:{number}", row) for number, row in _table_rows(path))
        where, header = next(rows, ("", []))
        if twice := [column for column in header if header.count(column) > 1]:
            raise UserError(f"{where}: the header has several columns {twice[0]!r}")
        for where, row in rows:
            if row == [""]:
                continue
            if len(row) != len(header):
                raise _wrong_width(where, row, header, len(header) - 1)
            yield where, dict(zip(header, row))
    else:
        yield from _json_values(path)


def is_table(path: str) -> bool:
    """Returns whether a file has columns with names, and is read as a whole."""
    return text_files.uncompressed_name(path).endswith((".csv", *_TYPED))


def _typed_values(path: str, columns: tuple[str, ...] | None = None) -> Iterator[tuple[str, dict]]:
    """Yields (location, {column: value}) for each row of a Parquet or Arrow file.

    `columns` are those to read; None: all.
    """
    import pyarrow
    from pyarrow import ipc, parquet

    try:
        with buckets.open_at(path, 0) as file:
            if path.endswith(".parquet"):
                table = parquet.ParquetFile(file)
                columns = columns or tuple(table.schema_arrow.names)
                _check_columns(path, columns, table.schema_arrow.names)
                batches = table.iter_batches(_ROWS, columns=[*columns])
            else:
                # The files of Hugging Face's datasets are streams, and those of others may be.
                try:
                    opened = ipc.open_file(file)
                    batches = map(opened.get_batch, range(opened.num_record_batches))
                except pyarrow.ArrowInvalid:
                    file.seek(0)
                    batches = opened = ipc.open_stream(file)
                columns = columns or tuple(opened.schema.names)
                _check_columns(path, columns, opened.schema.names)
            number = 0
            for batch in batches:
                for values in batch.select([*columns]).to_pylist():
                    number += 1
                    yield f"{path}: row {number}", values
    except pyarrow.ArrowException as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path}: can't be read as a table ({reason})") from None


def _check_columns(path: str, columns: tuple[str, ...], names: list[str]) -> None:
    missing = [column for column in columns if column not in names]
    if missing:
        raise UserError(f"{path}: no column {missing[0]!r}; there are {', '.join(names[:12])}")


def _json_values(path: str) -> Iterator[tuple[str, object]]:
    """Yields (location, value) for each line, or for each item of a file that is one list."""
    numbered = enumerate(text_lines(path), 1)
    lines = ((number, line) for number, line in numbered if line.strip())
    # A *.json file is one list if its first text starts with a bracket, and JSON lines otherwise,
    # because both are in use under this name.
    first_number, first_line = next(lines, (1, ""))
    if text_files.uncompressed_name(path).endswith(".json") and first_line.lstrip().startswith("["):
        text = "".join([first_line, *(line for _, line in lines)])
        items = from_json(text, path, unique_keys=True)
        for number, value in enumerate(items, 1):
            yield f"{path}: item {number}", value
    elif first_line:
        for number, line in itertools.chain([(first_number, first_line)], lines):
            where = f"{path}:{number}"
            yield where, from_json(line, where, unique_keys=True)


def _table_rows(path: str) -> Iterator[tuple[int, list[str]]]:
    """Yields (number of its last line, columns) for each row."""
    if not text_files.uncompressed_name(path).endswith(".csv"):
        for number, line in enumerate(text_lines(path), 1):
            # No quotes in these files, because a quotation mark in a text is usually meant as one.
            yield number, line.split("\t")
        return
    csv.field_size_limit(2**31 - 1)  # the default limit, 128 KiB, is too small for long texts
    # With the line ends, because a quoted text may contain some. Without `strict`, a missing quote
    # would swallow the rest of the file as one text.
    reader = csv.reader(text_lines(path, keep_ends=True), strict=True)
    try:
        for row in reader:
            # The reader returns [] for a blank line, where text files have [""].
            yield reader.line_num, row or [""]
    except csv.Error as error:
        raise UserError(f"{path}:{reader.line_num}: not CSV ({error})") from None


@dataclasses.dataclass(frozen=True)
class TfdsTable:
    """A split of a set that TFDS has prepared. Class labels are replaced by their names.

    Examples with the class label -1, by which TFDS says that the label is not known, are left out
    and counted. Iterating raises UserError if no example has a label, as in GLUE's test splits.
    """

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
        classes = [column for column in self.columns if names[column] is not None]
        num_labelled = num_unlabelled = 0
        for number, example in enumerate(tfds.examples(self.folder, self.split)):
            where = f"{self.folder} {self.split} example {number}"
            tfds.check_features(self.folder, example, self.columns)
            if any(int(example[column]) == tfds.NO_LABEL for column in classes):
                num_unlabelled += 1
                continue
            num_labelled += 1
            values = (_as_text(example[name], names[name], where) for name in self.columns)
            yield Record(where, tuple(values))
        if num_unlabelled and not num_labelled:
            raise UserError(
                f"{self.folder}: the examples of {self.split} have no labels (-1 in "
                f"{' and '.join(classes)}); name another split"
            )
        if num_unlabelled:
            say(f"{self.folder} {self.split}: left out {num_unlabelled:,} without a label")


def _as_text(value, class_names: Sequence[str] | None, where: str) -> str:
    """Returns a feature's value as text. Class labels without a name stay numbers."""
    if class_names is not None and 0 <= int(value) < len(class_names):
        return class_names[int(value)]
    return tfds.decoded(value, where) if isinstance(value, (bytes, str)) else str(value)


def open_table(
    data,
    split: str,
    columns: Sequence[str],
    skip: bool = False,
    classes: str = "",
    *,
    stored: bool = False,
) -> Table | TfdsTable | None:
    """Returns the examples of a split that `config.data` names, or None if it names none.

    `skip` and `classes` are the same as in `Table`, `stored` as in `tfds.prepared_split`. Raises
    UserError if files do not exist, or if `columns` mixes names and numbers.
    """
    # Files come first, so that a run on a TFDS set can be evaluated on the user's own examples.
    if data.tfds_name and not data[f"{split}_files"]:
        prepared = tfds.prepared_split(data, split, stored)
        if stored and split == "train":
            tfds.keep_held_out(data)
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
    return Table(paths, tuple(columns), skip, classes)


_COLUMN = re.compile(r"{([^{}]+)}")


def named_columns(texts: Sequence[str]) -> list[str]:
    """Returns the columns of texts, each of which is a column or a template for `Joined`."""
    columns = (name for text in texts for name in _COLUMN.findall(text) or [text])
    return list(dict.fromkeys(columns))


@dataclasses.dataclass(frozen=True)
class Joined:
    """The records of a table, whose texts may be made of several columns.

    `texts` are columns, or templates such as "Question: {question} Answer: {answer}". The table has
    the columns `named_columns(texts)`, followed by others, which are kept.
    """

    table: Any  # with records and a fingerprint
    texts: tuple[str, ...]

    def fingerprint(self) -> dict:
        return self.table.fingerprint() | {"texts": list(self.texts)}

    def __iter__(self) -> Iterator[Record]:
        names = named_columns(self.texts)
        for record in self.table:
            values = dict(zip(names, record.values))
            texts = (_filled(text, values) for text in self.texts)
            yield Record(record.where, (*texts, *record.values[len(names) :]))


def _filled(text: str, values: dict[str, str]) -> str:
    """Returns the value of a column, or a template with the values of its columns."""
    return values[text] if text in values else _COLUMN.sub(lambda match: values[match[1]], text)


def split_files(data, split: str) -> tuple[str, ...] | None:
    """Returns the files of a split, or None if none are named.

    Raises UserError if a file does not exist, or if no training files are named.
    """
    key = f"{split}_files"
    if data[key]:
        return tuple(matching_files(f"config.data.{key}", data[key]))
    if split == "train":
        raise UserError("config.data names no training examples: give config.data.train_files")
    return None


# --------------------------------------------------------------------------------------------------
# Tagged sentences in the CoNLL format, which has no header and whose number of columns differs from
# set to set: only the first and the last column are read.


@dataclasses.dataclass(frozen=True)
class Conll:
    """Sentences with one word per line, of which the last column is the tag.

    A blank line ends a sentence. `prefix` is removed from each word. Iterating raises UserError for
    a line that is not as expected.
    """

    paths: tuple[str, ...]
    prefix: str = ""

    def fingerprint(self) -> dict:
        return {"files": sha256(self.paths), "prefix": self.prefix}

    def __iter__(self) -> Iterator[Record]:
        """Yields a record for each sentence; its values are (words, tags)."""
        for path in self.paths:
            yield from self._sentences(path)

    def _sentences(self, path: str) -> Iterator[Record]:
        words, tags = [], []
        first_line = 1
        width = 0
        for number, line in enumerate(text_lines(path), 1):
            line = line.strip("\ufeff")  # some published files have byte-order marks inside
            if not line.strip() or line.startswith("-DOCSTART-"):
                if words:
                    yield Record(f"{path}:{first_line}", (tuple(words), tuple(tags)))
                words, tags = [], []
                first_line = number + 1
                continue
            # Not at any white space: a word may contain a space if tabs divide the columns, and
            # some words are characters that count as white space.
            columns = line.split("\t") if "\t" in line else line.split(" ")
            if len(columns) < 2 or not columns[0].strip() or not columns[-1].strip():
                raise UserError(f"{path}:{number}: expected columns, a word first and its tag last")
            # A line of another width has usually lost its tag.
            width = width or len(columns)
            if len(columns) != width:
                raise UserError(f"{path}:{number}: {len(columns)} columns, {width} before")
            words.append(columns[0].removeprefix(self.prefix))
            tags.append(columns[-1].strip())
        if words:
            yield Record(f"{path}:{first_line}", (tuple(words), tuple(tags)))


# --------------------------------------------------------------------------------------------------
# Built-in inference pairs, as labeled examples, and as running text on which a small BERT learns
# the same words before it is fine-tuned on the examples.

CORPUS = "inference"
COLUMNS = ("premise", "hypothesis", "label")
_HELD_OUT = 1000  # pairs in each of the validation and test splits
_DOCUMENTS = 30_000  # pairs for the running training text; only the entailed third becomes text


@dataclasses.dataclass(frozen=True)
class InferencePairs:
    """Premises and hypotheses from the built-in grammar, whose labels are known by construction.

    `columns` are the requested ones of COLUMNS. See corpora/grammar/inference.py.
    """

    split: str
    size: int
    columns: tuple[str, ...]

    def fingerprint(self) -> dict:
        # Imported here because reading the lexicon takes time.
        from transformer_jax.corpora.grammar import inference

        return {
            CORPUS: inference.VERSION,
            "split": self.split,
            "size": self.size,
            "columns": list(self.columns),
        }

    def __iter__(self) -> Iterator[Record]:
        from transformer_jax.corpora.grammar import inference

        indices = [COLUMNS.index(column) for column in self.columns]
        for number in range(self.size):
            pair = inference.pair(0, self.split, number)
            where = f"config.data.corpus={CORPUS} {self.split} pair {number}"
            yield Record(where, tuple(pair[index] for index in indices))


@dataclasses.dataclass(frozen=True)
class EntailedPairs:
    """Documents of two lines: a premise, and a hypothesis that it entails."""

    split: str

    def fingerprint(self) -> dict:
        return self._pairs.fingerprint() | {"entailed": True}

    def parts(self) -> list["EntailedPairs"]:
        return [self]

    @property
    def _pairs(self) -> InferencePairs:
        size = _DOCUMENTS if self.split == "train" else _HELD_OUT
        return InferencePairs(self.split, size, COLUMNS)

    def __iter__(self) -> Iterator[str]:
        for premise, hypothesis, label in (record.values for record in self._pairs):
            if label == "entailment":
                yield f"{premise}\n{hypothesis}"


def open_inference(
    data, split: str, columns: Sequence[str], skip: bool = False, classes: str = ""
) -> InferencePairs | Table | TfdsTable | None:
    """Returns the examples of a split that `config.data` names, or None if it names none.

    `skip` and `classes` are the same as in `Table`. Raises UserError if files or columns do not
    exist, or if two sources are named.
    """
    if data.corpus and (data.train_files or data.tfds_name):
        other = "train_files" if data.train_files else "tfds_name"
        raise UserError(
            f"config.data.corpus={data.corpus} and config.data.{other}: name one source of examples"
        )
    # Users may evaluate on their own files, whatever the run was trained on.
    if not data.corpus or (split != "train" and data[f"{split}_files"]):
        return open_table(data, split, columns, skip, classes)
    if data.corpus != CORPUS:
        raise UserError(
            f"config.data.corpus={data.corpus}: has no labeled examples; only {CORPUS} does"
        )
    if missing := [column for column in columns if column not in COLUMNS]:
        raise UserError(
            f"config.data.corpus={CORPUS}: no column {missing[0]!r}; it has {', '.join(COLUMNS)}"
        )
    size = data.corpus_size if split == "train" else _HELD_OUT
    return InferencePairs(split, size, tuple(columns))


# --------------------------------------------------------------------------------------------------
# Questions about paragraphs in the format of SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018), which
# many other sets have taken over.

_TFDS_FEATURES = ("id", "question", "context", "answers")
_Answers = tuple[tuple[str, int], ...]  # (text, index of its first character in the context)


@dataclasses.dataclass(frozen=True)
class Squad:
    """The questions in SQuAD's JSON files."""

    paths: tuple[str, ...]

    def fingerprint(self) -> dict:
        return {"files": sha256(self.paths)}

    def __iter__(self) -> Iterator[Record]:
        """Yields a record for each question.

        Its values are (id, question, context, ((text, index of first character), ...)). A question
        that the context does not answer has no answers. Raises UserError for a malformed file.
        """
        for path in self.paths:
            try:
                # Some editors put a byte-order mark first, which "utf-8-sig" drops.
                content = from_json(buckets.path(path).read_text("utf-8-sig"), path)
                questions = [
                    (entry["id"], entry["question"], paragraph["context"], _answers(entry))
                    for article in content["data"]
                    for paragraph in article["paragraphs"]
                    for entry in paragraph["qas"]
                ]
            except (ValueError, KeyError, TypeError) as error:
                fault = f"{type(error).__name__}: {error}"
                raise UserError(f"{path}: not in SQuAD's form ({fault})") from None
            for question in questions:
                yield _checked_record(f"{path}: question {question[0]}", *question)


def _answers(entry: dict) -> _Answers:
    # SQuAD 2.0 lists plausible answers of such questions, which are wrong.
    if entry.get("is_impossible"):
        return ()
    return tuple((answer["text"], answer["answer_start"]) for answer in entry["answers"])


@dataclasses.dataclass(frozen=True)
class TfdsSquad:
    """The questions of a split that TFDS has prepared. The records are the same as in `Squad`."""

    folder: str
    split: str

    def fingerprint(self) -> dict:
        return {"tfds": tfds.digest(self.folder), "split": self.split}

    def __iter__(self) -> Iterator[Record]:
        for example in tfds.examples(self.folder, self.split):
            where = f"{self.folder} {self.split} example {example.get('id')}"
            tfds.check_features(self.folder, example, _TFDS_FEATURES)
            texts = (tfds.decoded(example[name], where) for name in ("id", "question", "context"))
            yield _checked_record(where, *texts, self._tfds_answers(example, where))

    def _tfds_answers(self, example: dict, where: str) -> _Answers:
        if example.get("is_impossible"):
            return ()
        texts = example["answers"]["text"]
        starts = example["answers"]["answer_start"]
        return tuple((tfds.decoded(text, where), int(start)) for text, start in zip(texts, starts))


def open_squad(data, split: str) -> Squad | TfdsSquad | None:
    """Returns the questions of a split that `config.data` names, or None if it names none."""
    if data.tfds_name and not data[f"{split}_files"]:
        prepared = tfds.prepared_split(data, split)
        return prepared and TfdsSquad(*prepared)
    paths = split_files(data, split)
    return paths and Squad(paths)


def _checked_record(
    where: str, question_id: str, question: str, context: str, answers: _Answers
) -> Record:
    """Returns the record. Raises UserError if an answer is not at its position in the context."""
    texts = (question, context, *(text for text, _ in answers))
    starts = (start for _, start in answers)
    if not all(isinstance(text, str) for text in texts) or not all(
        isinstance(start, int) for start in starts
    ):
        raise UserError(
            f"{where}: question, context and answers must be texts, "
            "and answer_start must be a whole number"
        )
    # A wrong offset, for example in bytes instead of characters, would train on other tokens.
    for text, start in answers:
        if not text or context[start : start + len(text)] != text:
            raise UserError(
                f"{where}: the answer {text[:40]!r} is not at character {start} of its context"
            )
    return Record(where, (question_id, question, context, answers))
