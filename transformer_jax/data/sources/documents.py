"""Where running text comes from: text files, JSON lines, TFDS directories, the Python that runs.
Each split is a re-iterable of documents.
"""

import ast
import dataclasses
import functools
import hashlib
import itertools
import pathlib
import re
import sysconfig
import warnings
from collections.abc import Iterator
from typing import Literal

from transformer_jax.config import UserError
from transformer_jax.data import sentences
from transformer_jax.data.sources import pairs as sources
from transformer_jax.data.sources import recipes
from transformer_jax.storage import buckets

_MOST_SHARES = 100_000  # of a mixture: its rows are distributed by a table as long


@dataclasses.dataclass(frozen=True)
class TextFiles:
    """UTF-8 files of documents; those named *.jsonl hold one JSON object a line, with the text
    under `field`.
    """

    files: tuple[str, ...]
    split_on: Literal["blank_line", "line", "file"]
    field: str

    def fingerprint(self) -> dict:
        return {
            "files": [sources.sha256(file) for file in self.files],
            "split_on": self.split_on,
            "field": self.field,
        }

    def __iter__(self) -> Iterator[str]:
        for file in self.files:
            yield from (
                self._json_lines(file) if file.endswith(".jsonl") else self._documents(file)
            )

    def _documents(self, file: str) -> Iterator[str]:
        lines = sources.text_lines(file, keep_ends=self.split_on == "file")
        if self.split_on == "file":
            yield "".join(lines)
        elif self.split_on == "line":
            yield from filter(str.strip, lines)
        else:
            for filled, group in itertools.groupby(lines, key=lambda line: bool(line.strip())):
                if filled:
                    yield "\n".join(group)

    def _json_lines(self, file: str) -> Iterator[str]:
        for number, line in enumerate(sources.text_lines(file), 1):
            try:
                text = (
                    sources.from_json(line, f"{file}:{number}")[self.field] if line.strip() else ""
                )
            except (KeyError, TypeError):
                text = None
            if not isinstance(text, str):
                raise UserError(
                    f"{file}:{number}: not a JSON object with a text under {self.field!r} (config.data.text_field)"
                )
            if text:
                yield text


@dataclasses.dataclass(frozen=True)
class TfdsText:
    """A split of a text set that TFDS has prepared as array_record; TensorFlow is not needed."""

    folder: str
    split: str
    field: str

    def fingerprint(self) -> dict:
        return {
            "tfds": sources.sha256(f"{self.folder}/dataset_info.json"),
            "split": self.split,
            "field": self.field,
        }

    def __iter__(self) -> Iterator[str]:
        for example in sources.tfds_examples(self.folder, self.split):
            if self.field not in example:
                raise UserError(
                    f"{self.folder}: no feature {self.field!r}, only {', '.join(example)}; set config.data.text_field"
                )
            yield sources.decoded(example[self.field], self.folder)


@dataclasses.dataclass(frozen=True)
class PythonSources:
    """The sources of the standard library of the Python that runs, a file a document. One file in
    twenty is held out for each of valid and test.
    """

    split: str

    def fingerprint(self) -> dict:
        digest = hashlib.sha256()
        for text in self:
            digest.update(text.encode())
        return {"python": digest.hexdigest(), "split": self.split}

    def __iter__(self) -> Iterator[str]:
        return (
            text
            for name, text in _standard_library(self.split)
            if text and not name.startswith("pydoc_data/")
        )


class PythonDocstrings(PythonSources):
    """What those sources say in words, a sentence a line: docstrings and comments, a file a
    document, and what `help()` knows, a topic a document.
    """

    def __iter__(self) -> Iterator[str]:
        return iter(_documentation(self.split))


def _standard_library(split: str) -> Iterator[tuple[str, str]]:
    """Each file's name and content."""
    root = pathlib.Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        # tests and tables of characters would be half of it, and of another kind
        if {"site-packages", "dist-packages", "test", "tests", "idle_test", "encodings"} & set(
            name.split("/")
        ):
            continue
        number = int(hashlib.sha256(name.encode()).hexdigest(), 16) % 20
        if {0: "valid", 1: "test"}.get(number, "train") == split:
            try:
                yield name, path.read_text("utf-8")
            except (UnicodeDecodeError, OSError):
                continue


@functools.cache  # parsing takes seconds
def _documentation(split: str) -> list[str]:
    found = []
    for name, source in _standard_library(split):
        try:
            with warnings.catch_warnings(action="ignore"):  # of invalid escapes
                tree = ast.parse(source)
        except (SyntaxError, ValueError):
            continue
        if name == "pydoc_data/topics.py":
            texts = [[node.value] for node in ast.walk(tree) if isinstance(node, ast.Constant)]
        else:
            texts = [[text for _, text in sorted([*_docstrings(tree), *_comments(source)])]]
        parts = [[sentence for text in document for sentence in _prose(text)] for document in texts]
        found += ["\n".join(part) for part in parts if len(part) > 1]
    return found


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Each with its line."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and (
            text := ast.get_docstring(node)
        ):
            yield node.body[0].lineno, text


def _comments(source: str) -> Iterator[tuple[int, str]]:
    """Those that have lines of their own; neighbouring lines are one."""
    for hit in re.finditer(r"(?m)(?:^[ \t]*#(?!!).*\n)+", source):
        yield source.count("\n", 0, hit.start()) + 1, re.sub(r"(?m)^[ \t]*#+:? ?", "", hit[0])


def _prose(text: str) -> Iterator[str]:
    """The sentences of its paragraphs and items of lists, what does not end as one left out:
    titles, tables, signatures. No doctests and code behind "::".
    """
    text = re.sub(r"(?m)^[ \t]*[-=~^*#+]{3,}[ \t]*$", "", text)  # what underlines a title
    code = None  # the indent of the text whose code this would be
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*+]|\d+[.)])\s)", text):
        indent = len(paragraph) - len(paragraph.lstrip())
        if code is None or indent <= code:
            code = indent if paragraph.endswith("::") else None
            words = re.sub(r"^\s*[-*+]\s", "", paragraph.partition(">>>")[0])
            yield from (
                sentence
                for sentence in sentences.split(words, "punctuation")
                if re.search(r"\w.*[.!?][\"'”’)\]]*$", sentence)
            )


@dataclasses.dataclass(frozen=True)
class Together:
    """Several texts, one after the other."""

    parts: tuple

    def fingerprint(self) -> list:
        return [part.fingerprint() for part in self.parts]

    def __iter__(self) -> Iterator[str]:
        return itertools.chain.from_iterable(self.parts)


def documents(data, split: str):
    """The documents of a split ("train", "valid", "test") that `config.data` names; None if it
    names none. With a marker, those of its sentence pairs.

    Raises UserError where files or features are not there, or where two sources are named.
    """
    sides = [
        key
        for key in ("train_source", "train_target", f"{split}_source", f"{split}_target")
        if data[key]
    ]
    if sides and not data.marker and (data.train_files or data.mixture or split != "train"):
        raise UserError(
            f"config.data.{sides[0]} names sentence pairs, which become text by config.data.marker; running text is named by config.data.{split}_files"
        )
    if split != "train" and data[f"{split}_files"]:
        return files(data, f"config.data.{split}_files", data[f"{split}_files"])
    if data.marker:
        if data.train_files or data.mixture:
            raise UserError(
                "config.data.marker is for sentence pairs: config.data.train_source and train_target, not train_files or mixture"
            )
        pairs = sources.pairs(data, split)
        return pairs and recipes.Marked(pairs, data.marker)
    named = [key for key in ("corpus", "tfds_name", "train_files", "mixture") if data[key]]
    if len(named) > 1 or (not named and split == "train"):
        raise UserError(
            "name one source of text: config.data.train_files, config.data.mixture, config.data.tfds_name and tfds_dir, "
            f"or config.data.corpus; now: {', '.join(named) or 'none'}"
            + (" (sentence pairs become text by config.data.marker)" if data.train_source else "")
        )
    if data.corpus:
        corpora = {"python": PythonSources, "pydoc": PythonDocstrings}
        if data.corpus not in corpora:
            raise UserError(
                f"config.data.corpus={data.corpus}: no running text; there is: {', '.join(corpora)}"
            )
        return corpora[data.corpus](split)
    if data.tfds_name:
        folder = sources.tfds_folder(data, split)
        return folder and TfdsText(*folder, data.text_field)
    return files(data, f"config.data.{split}_files", data[f"{split}_files"])


def files(data, key: str, names: str | None) -> TextFiles | None:
    """The text files that `names` lists. `key` is who names them, for messages."""
    return TextFiles(tuple(paths(key, names)), data.split_on, data.text_field) if names else None


def paths(key: str, names: str) -> list[str]:
    """The files that `names` lists: paths, URLs and shell patterns, separated by commas. Raises
    UserError where one is missing or empty.
    """
    found = []
    for name in names.split(","):
        if not (matches := buckets.matches(name.strip())):
            raise UserError(f"{key}={name}: no such file")
        found += matches
    for file in found:
        sources.filled(key, file)
    return found


def mixture(data) -> list[tuple[TextFiles, int]]:
    """The training text in parts, with the integer weights of `config.data.mixture`; one part of
    weight 1 where there is no mixture.
    """
    if not data.mixture:
        text = documents(data, "train")
        if text is None:
            raise UserError("config.data names no training text")
        return [(text, 1)]
    documents(data, "valid")  # refuses a second source beside the mixture
    parts = []
    for part in data.mixture:
        if (
            not isinstance(part, tuple)
            or len(part) != 2
            or not isinstance(part[0], str)
            or not isinstance(part[1], int)
            or part[1] < 1
            or not part[0]
        ):
            raise UserError(
                f"config.data.mixture: {part!r} is not (files, whole weight of at least 1)"
            )
        parts.append((files(data, "config.data.mixture", part[0]), part[1]))
    if (total := sum(weight for _, weight in parts)) > _MOST_SHARES:
        raise UserError(
            f"config.data.mixture: weights are shares, such as 3 and 1; together these are {total:,}, at most {_MOST_SHARES:,} are distributed"
        )
    return parts
