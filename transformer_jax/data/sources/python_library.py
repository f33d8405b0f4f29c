"""The built-in corpora "python" and "pydoc": the standard library of the running Python."""

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

from transformer_jax.data import sentences

# Tests and tables of characters would be half of the text, and they differ from the rest.
_SKIPPED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "idle_test", "encodings"}
_HELD_OUT = {0: "valid", 1: "test"}  # by the file name's hash modulo 20


@dataclasses.dataclass(frozen=True)
class PythonSources:
    """The source files of the standard library, one document each.

    One file in twenty is held out for validation, and one in twenty for the test split.
    """

    split: str

    def fingerprint(self) -> dict:
        digest = hashlib.sha256()
        for text in self:
            digest.update(text.encode())
        return {"python": digest.hexdigest(), "split": self.split}

    def parts(self) -> list["PythonSources"]:
        return [self]

    def __iter__(self) -> Iterator[str]:
        for name, text in _standard_library(self.split):
            if text and not name.startswith("pydoc_data/"):
                yield text


class PythonDocstrings(PythonSources):
    """The documentation in the standard library, one sentence a line.

    A document holds the docstrings and comments of one file, or one topic of `help()`.
    """

    def __iter__(self) -> Iterator[str]:
        return iter(_documentation(self.split))


def _standard_library(split: str) -> Iterator[tuple[str, str]]:
    """Yields the name and the content of each file of a split."""
    root = pathlib.Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if _SKIPPED_FOLDERS & set(name.split("/")) or split_of(name) != split:
            continue
        try:
            yield name, path.read_text("utf-8")
        except (UnicodeDecodeError, OSError):
            continue


def split_of(name: str) -> str:
    number = int(hashlib.sha256(name.encode()).hexdigest(), 16) % 20
    return _HELD_OUT.get(number, "train")


@functools.cache  # Parsing takes seconds.
def _documentation(split: str) -> list[str]:
    documents = []
    for name, source in _standard_library(split):
        for texts in _texts_of_file(name, source):
            lines = list(itertools.chain.from_iterable(map(_prose, texts)))
            if len(lines) > 1:
                documents.append("\n".join(lines))
    return documents


def _texts_of_file(name: str, source: str) -> list[list[str]]:
    """Returns the documents of a file, each as a list of docstrings, comments or topics."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of invalid escapes
            tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    if name == "pydoc_data/topics.py":
        return [[node.value] for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return [[text for _, text in sorted([*_docstrings(tree), *_comments(source)])]]


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields the line number and the text of each docstring."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text:
                yield node.body[0].lineno, text


def _comments(source: str) -> Iterator[tuple[int, str]]:
    """Yields the line number and the text of each comment that does not follow code.

    Comments on neighbouring lines form one text.
    """
    for match in re.finditer(r"(?m)(?:^[ \t]*#(?!!).*\n)+", source):
        line = source.count("\n", 0, match.start()) + 1
        yield line, re.sub(r"(?m)^[ \t]*#+:? ?", "", match[0])


def _prose(text: str) -> Iterator[str]:
    """Yields the sentences of the paragraphs and list items of a text.

    Drops whatever does not end as a sentence does (titles, tables, signatures), doctests, and the
    code after "::".
    """
    text = re.sub(r"(?m)^[ \t]*[-=~^*#+]{3,}[ \t]*$", "", text)  # the underlines of titles
    # The indentation of the paragraph that introduced code; deeper paragraphs are that code.
    code_indent = None
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*+]|\d+[.)])\s)", text):
        indent = len(paragraph) - len(paragraph.lstrip())
        if code_indent is not None and indent > code_indent:
            continue
        code_indent = indent if paragraph.endswith("::") else None
        words = re.sub(r"^\s*[-*+]\s", "", paragraph.partition(">>>")[0])
        for sentence in sentences.split(words, "punctuation"):
            if re.search(r"\w.*[.!?][\"'”’)\]]*$", sentence):
                yield sentence
