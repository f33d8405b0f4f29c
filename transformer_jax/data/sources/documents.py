"""Documents of running text from text files, JSON lines, TFDS sets and built-in corpora.

Each split is an object that can be iterated over repeatedly and has a fingerprint. Its `parts()`
are such objects, too.
"""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Literal

from transformer_jax.config import UserError
from transformer_jax.data.sources import pairs, text_files, tfds
from transformer_jax.data.sources.pairs import SentencePairs
from transformer_jax.data.sources.python_library import PythonDocstrings, PythonSources
from transformer_jax.data.sources.tables import EntailedPairs
from transformer_jax.data.sources.text_files import (
    Place,
    Span,
    from_json,
    matching_files,
    sha256,
    text_lines,
)


@dataclasses.dataclass(frozen=True)
class Marked:
    """Pairs as documents "SOURCE MARKER TARGET" for a causal language model.

    The model learns to continue the source with the target, as in "I am a student <to-fr> je suis
    étudiant" or "ARTICLE <summarize> SUMMARY". The prompt of the trained model is "SOURCE MARKER",
    and the document ends after the target. Liu et al. 2018, section 4.2.3, use such a sequence with
    a delimiter for summarization.
    """

    pairs: SentencePairs
    marker: str

    def fingerprint(self) -> dict:
        return {"pairs": self.pairs.fingerprint(), "marker": self.marker}

    def parts(self) -> list["Marked"]:
        return [Marked(part, self.marker) for part in self.pairs.parts()]

    def __iter__(self) -> Iterator[str]:
        return (f"{source} {self.marker} {target}" for source, target in self.pairs)


# The weights are limited because `Phase.slots` is a table with one entry per unit of weight.
_MAX_TOTAL_WEIGHT = 100_000
_CORPORA = {"python": PythonSources, "pydoc": PythonDocstrings, "inference": EntailedPairs}


@dataclasses.dataclass(frozen=True)
class TextFiles:
    """UTF-8 files of documents, which `split_on` separates.

    Files named *.jsonl have one JSON object per line, with the text of a document under `field`.
    """

    files: tuple[str, ...]
    split_on: Literal["blank_line", "line", "file"]
    field: str

    def fingerprint(self) -> dict:
        return {
            "files": sha256(self.files),
            "split_on": self.split_on,
            "field": self.field,
        }

    def parts(self) -> list["TextSpans"]:
        spans = []
        # Parts end between documents, so that no document is tokenized in pieces.
        for file_spans in text_files.document_parts(self.files, self._boundary):
            spans.append(TextSpans(file_spans, self.split_on, self.field))
        return spans

    def _boundary(self, file: str):
        """Returns the function that finds a document boundary, or None for a single document."""
        if file.endswith(".jsonl") or self.split_on == "line":
            return text_files.next_line
        return text_files.next_blank_line if self.split_on == "blank_line" else None

    def __iter__(self) -> Iterator[str]:
        return iter(TextSpans(tuple(map(Span, self.files)), self.split_on, self.field))


@dataclasses.dataclass(frozen=True)
class TextSpans:
    """The documents in spans of files. Raises UserError for a line that is not as expected."""

    spans: tuple[Span, ...]
    split_on: Literal["blank_line", "line", "file"]
    field: str

    def __iter__(self) -> Iterator[str]:
        for span in self.spans:
            read = self._json_lines if span.file.endswith(".jsonl") else self._documents
            yield from read(span)

    def _documents(self, span: Span) -> Iterator[str]:
        lines = text_lines(span, keep_ends=self.split_on == "file")
        if self.split_on == "file":
            yield "".join(lines)
        elif self.split_on == "line":
            yield from filter(str.strip, lines)
        else:
            # Several blank lines in a row separate documents like a single one.
            for has_text, group in itertools.groupby(lines, key=_has_text):
                if has_text:
                    yield "\n".join(group)

    def _json_lines(self, span: Span) -> Iterator[str]:
        for index, line in enumerate(text_lines(span)):
            if not _has_text(line):
                continue
            place = Place(span, index)
            value = from_json(line, place)
            text = value.get(self.field) if isinstance(value, dict) else None
            if not isinstance(text, str):
                raise UserError(
                    f"{place}: not a JSON object with a text under {self.field!r} "
                    "(config.data.text_field)"
                )
            if text:
                yield text


def _has_text(line: str) -> bool:
    return bool(line.strip())


@dataclasses.dataclass(frozen=True)
class TfdsText:
    """A split of a text set that TFDS has prepared as array_record."""

    folder: str
    split: str
    field: str

    def fingerprint(self) -> dict:
        return {"tfds": tfds.digest(self.folder), "split": self.split, "field": self.field}

    def parts(self) -> list["TfdsText"]:
        splits = tfds.parts(self.folder, self.split)
        return [dataclasses.replace(self, split=split) for split in splits]

    def __iter__(self) -> Iterator[str]:
        remedy = "; set config.data.text_field"
        for example in tfds.examples(self.folder, self.split):
            tfds.check_features(self.folder, example, (self.field,), remedy)
            yield tfds.decoded(example[self.field], self.folder)


@dataclasses.dataclass(frozen=True)
class Concatenation:
    """The concatenation of several texts."""

    texts: tuple

    def fingerprint(self) -> list:
        return [text.fingerprint() for text in self.texts]

    def parts(self) -> list:
        return [part for text in self.texts for part in text.parts()]

    def __iter__(self) -> Iterator[str]:
        return itertools.chain.from_iterable(self.texts)


Documents = TextFiles | TfdsText | PythonSources | Marked


def open_documents(data, split: str) -> Documents | None:
    """Returns the documents of a split ("train", "valid", "test") that `config.data` names.

    Returns None if it names none. With `config.data.marker`, documents are made from sentence
    pairs. Raises UserError if files or features do not exist, or if two sources are named.
    """
    _check_no_pairs(data, split)
    files_key = f"{split}_files"
    # Files for evaluation come first, so that any run can be evaluated on the user's own text.
    if split != "train" and data[files_key]:
        return open_text_files(data, f"config.data.{files_key}", data[files_key])
    if data.marker:
        return _marked_pairs(data, split)
    _check_one_source(data, split)
    if data.corpus:
        if data.corpus not in _CORPORA:
            raise UserError(
                f"config.data.corpus={data.corpus}: has no running text; "
                f"must be one of {', '.join(_CORPORA)}"
            )
        return _CORPORA[data.corpus](split)
    if data.tfds_name:
        prepared = tfds.prepared_split(data, split)
        return prepared and TfdsText(*prepared, data.text_field)
    return open_text_files(data, f"config.data.{files_key}", data[files_key])


def _check_no_pairs(data, split: str) -> None:
    """Raises UserError if the config names sentence pairs, which would be ignored."""
    keys = ("train_source", "train_target", f"{split}_source", f"{split}_target")
    named = [key for key in keys if data[key]]
    if named and not data.marker and (data.train_files or data.mixture or split != "train"):
        raise UserError(
            f"config.data.{named[0]} names sentence pairs, which become text by "
            f"config.data.marker; running text is named by config.data.{split}_files"
        )


def _marked_pairs(data, split: str) -> Marked | None:
    """Returns the sentence pairs of a split as documents with a marker, or None."""
    if data.train_files or data.mixture:
        raise UserError(
            f"config.data.marker={data.marker!r}: needs sentence pairs, config.data.train_source "
            "and train_target, not train_files or mixture"
        )
    sentence_pairs = pairs.open_pairs(data, split)
    return sentence_pairs and Marked(sentence_pairs, data.marker)


def _check_one_source(data, split: str) -> None:
    """Raises UserError if the config names two sources, or none for the training text."""
    named = [key for key in ("corpus", "tfds_name", "train_files", "mixture") if data[key]]
    if len(named) == 1 or (not named and split != "train"):
        return
    hint = " (sentence pairs become text by config.data.marker)" if data.train_source else ""
    raise UserError(
        "name one source of text: config.data.train_files, config.data.mixture, "
        "config.data.tfds_name and tfds_dir, or config.data.corpus; "
        f"now: {', '.join(named) or 'none'}{hint}"
    )


def open_text_files(data, key: str, names: str | None) -> TextFiles | None:
    """Returns the text files that `names` lists, or None without names.

    `key` is the config key of `names`, for error messages.
    """
    if not names:
        return None
    return TextFiles(tuple(matching_files(key, names)), data.split_on, data.text_field)


def mixture(data) -> list[tuple[Documents, int]]:
    """Returns the training texts with their integer weights.

    Without `config.data.mixture`, there is a single text with weight 1. Raises UserError if no
    training text is named or the mixture is invalid.
    """
    if not data.mixture:
        text = open_documents(data, "train")
        if text is None:
            raise UserError("config.data names no training text")
        return [(text, 1)]
    open_documents(data, "valid")  # raises if another source is named besides the mixture
    parts = [_weighted_files(data, part) for part in data.mixture]
    total = sum(weight for _, weight in parts)
    if total > _MAX_TOTAL_WEIGHT:
        raise UserError(
            "config.data.mixture: weights are shares, such as 3 and 1; "
            f"their sum is {total:,}, must be at most {_MAX_TOTAL_WEIGHT:,}"
        )
    return parts


def _weighted_files(data, part) -> tuple[TextFiles, int]:
    """Parses an entry of the mixture into (documents, weight). Raises UserError."""
    match part:
        case (str(names), int(weight)) if isinstance(part, tuple) and names and weight >= 1:
            return open_text_files(data, "config.data.mixture", names), weight
    raise UserError(f"config.data.mixture: {part!r} is not (files, whole weight of at least 1)")
