"""Submissions to the server of GLUE (Wang et al. 2019): a ZIP file of one TSV file per task."""

import pathlib
import zipfile
from collections.abc import Mapping
from typing import Any, NamedTuple

from transformer_jax.config import UserError, choice
from transformer_jax.data.sources.tables import Table
from transformer_jax.data.sources.text_files import matching_files, text_lines
from transformer_jax.pictures.progress import say
from transformer_jax.storage import buckets


class TestSet(NamedTuple):
    """A test set of GLUE, and the form of its predictions."""

    columns: tuple[str, ...]  # the columns of its file that hold the text or the two texts
    # each label of the server with its name in TFDS; empty: the prediction is a number from 0 to 5
    labels: Mapping[str, str]
    num_rows: int


_PAIR = ("sentence1", "sentence2")
_INFERENCE = {name: name for name in ("entailment", "neutral", "contradiction")}
_TWO_WAY = {name: name for name in ("entailment", "not_entailment")}

# By the names of the files that the server reads.
TESTS = {
    "CoLA": TestSet(("sentence",), {"0": "unacceptable", "1": "acceptable"}, 1_063),
    "SST-2": TestSet(("sentence",), {"0": "negative", "1": "positive"}, 1_821),
    "MRPC": TestSet(("#1 String", "#2 String"), {"0": "not_equivalent", "1": "equivalent"}, 1_725),
    "STS-B": TestSet(_PAIR, {}, 1_379),
    "QQP": TestSet(("question1", "question2"), {"0": "not_duplicate", "1": "duplicate"}, 390_965),
    "MNLI-m": TestSet(_PAIR, _INFERENCE, 9_796),
    "MNLI-mm": TestSet(_PAIR, _INFERENCE, 9_847),
    "QNLI": TestSet(("question", "sentence"), _TWO_WAY, 5_463),
    "RTE": TestSet(_PAIR, _TWO_WAY, 3_000),
    "WNLI": TestSet(_PAIR, {"0": "not_entailment", "1": "entailment"}, 146),
    "AX": TestSet(_PAIR, _INFERENCE, 1_104),
}
_INDEX = ("index", "id")  # names of the column with the index of a row
_LARGEST = 5.0  # similarity in STS-B
# Some questions of QQP are empty, but the server expects a prediction for each row.
_EMPTY = "."


def add(task: Any, params, name: str, path: str, archive: str) -> None:
    """Predicts a test set of GLUE, and adds the predictions to a ZIP file as NAME.tsv.

    `name` is one of TESTS, `path` is the file of the test set as GLUE ships it, and `archive` the
    ZIP file, whose files of other tasks remain. A text longer than `config.task.length` is cut.
    Raises UserError, before anything is computed, for a run that does not suit the test set.
    """
    try:
        test = choice(name, TESTS)
    except UserError as error:
        raise UserError(f"--glue: {error}") from None
    labels = _labels(task, name, test)
    files = _files(archive)
    indices, lines = _read(path, test)
    if len(lines) != test.num_rows:
        say(
            f"warning: {path} has {len(lines):,} rows, and the test set of {name} has "
            f"{test.num_rows:,}; the server refuses another number"
        )
    predictions = task.predict(params, lines, long="truncate")
    rows = [
        f"{index}\t{_written(prediction.details, labels)}"
        for index, prediction in zip(indices, predictions, strict=True)
    ]
    files[f"{name}.tsv"] = "\n".join(["index\tprediction", *rows, ""]).encode()
    _write(archive, files)
    if missing := [name for name in TESTS if f"{name}.tsv" not in files]:
        say(f"{archive} holds {len(files)} of {len(TESTS)} files; missing: {', '.join(missing)}")


def _labels(task: Any, name: str, test: TestSet) -> dict[str, str]:
    """Returns the server's label of each label of a run; {} for numbers.

    Raises UserError for a run of another task.
    """
    kind = task.config.task.name
    if kind != "classification":
        raise UserError(f"--glue={name}: needs a classification run, not a {kind} run")
    if task.two_texts != (len(test.columns) == 2):
        texts = "two texts" if len(test.columns) == 2 else "one text"
        raise UserError(f"--glue={name}: has {texts} in a row, and this run was trained otherwise")
    if task.regression == bool(test.labels):
        predicted = "labels" if test.labels else "numbers"
        raise UserError(f"--glue={name}: needs a run that predicts {predicted}")
    for names in ({label: label for label in test.labels}, {v: k for k, v in test.labels.items()}):
        if {*task.names} == {*names}:
            return names
    raise UserError(
        f"--glue={name}: the labels of this run are {', '.join(task.names)}, and those of the test "
        f"set {', '.join(test.labels)}"
    )


def _read(path: str, test: TestSet) -> tuple[list[str], list[str]]:
    """Returns the index of each row of a test set, and its texts, separated by tabs."""
    paths = tuple(matching_files("--test_file", path))
    header = next(text_lines(paths[0]), "").split("\t")
    index = [column for column in _INDEX if column in header][:1]
    indices, lines, num_empty = [], [], 0
    # MRPC's file has no indices, which are then the numbers of the rows.
    for number, record in enumerate(Table(paths, (*index, *test.columns))):
        texts = record.values[len(index) :]
        num_empty += not all(text.strip() for text in texts)
        indices.append(record.values[0] if index else str(number))
        lines.append("\t".join(text if text.strip() else _EMPTY for text in texts))
    if num_empty:
        say(f"{path}: {num_empty:,} rows with an empty text, which is read as {_EMPTY!r}")
    return indices, lines


def _written(details: dict, labels: Mapping[str, str]) -> str:
    """Returns a prediction as the server reads it."""
    if labels:
        return labels[details["label"]]
    return f"{min(max(details['value'], 0.0), _LARGEST):.3f}"


def _files(archive: str) -> dict[str, bytes]:
    """Returns the files of the archive, {} if it does not exist yet."""
    if not pathlib.Path(archive).exists():
        return {}
    try:
        with zipfile.ZipFile(archive) as file:
            return {name: file.read(name) for name in file.namelist()}
    except (OSError, zipfile.BadZipFile) as error:
        raise UserError(f"--submission={archive}: no ZIP file to add to ({error})") from None


def _write(archive: str, files: Mapping[str, bytes]) -> None:
    path = pathlib.Path(archive)
    with buckets.writing(path), buckets.appearing(path) as temporary:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as file:
            for name in sorted(files):
                # Without the time of writing, so that equal predictions give equal files.
                file.writestr(zipfile.ZipInfo(name), files[name], zipfile.ZIP_DEFLATED)
