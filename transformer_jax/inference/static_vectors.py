"""The vectors of the words of a vocabulary: neighbours, and analogies (Mikolov et al. 2013)."""

import dataclasses
import functools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from transformer_jax.config import UserError
from transformer_jax.data.sources.text_files import text_lines
from transformer_jax.storage import buckets

_TOGETHER = 256  # analogies whose words are compared at once


@dataclasses.dataclass(frozen=True)
class StaticVectors:
    """A tokenizer, and the vectors of its tokens (V, M)."""

    tokenizer: Any
    table: Float[np.ndarray, "V M"]

    @classmethod
    def from_run(cls, task: Any, params) -> "StaticVectors":
        """Returns the vectors of a run, or the embeddings that its model reads.

        Raises UserError for a run without a vocabulary, or without a table of it.
        """
        if task.tokenizer is None:
            raise UserError(f"a {task.config.task.name} run has no vocabulary")
        if "static" in task.model.can:
            table = task.model.apply({"params": params}, method="vectors")
        elif task.model.word_table is None:
            raise UserError(f"{task.config.model.name} has no vectors of words without a context")
        else:
            path = task.model.word_table.split("/")
            table = functools.reduce(lambda tree, name: tree[name], path, params)
        tokenizer = task.tokenizer.target
        return cls(tokenizer, np.asarray(table, np.float32)[: tokenizer.vocab_size])

    @property
    def centred(self) -> "StaticVectors":
        """The vectors without their mean, which makes all cosines of a Transformer's large."""
        return dataclasses.replace(self, table=self.table - self.table.mean(axis=0))

    @functools.cached_property
    def unit(self) -> Float[np.ndarray, "V M"]:
        """The vectors at length 1."""
        return normalised(self.table)

    def words(self) -> tuple[list[str], Float[np.ndarray, "N M"]]:
        """Returns the tokens that stand for text, and their vectors."""
        ids = np.flatnonzero(~self.tokenizer.special)
        return self.tokenizer.pieces(ids.tolist()), self.table[ids]

    def id_of(self, word: str) -> int:
        """Returns the token of a word. Raises UserError where it is none, or not one."""
        ids = self.known(word)
        if ids is None or len(ids) != 1:
            raise UserError(f"{word!r}: not a word of the run's vocabulary")
        return ids[0]

    def known(self, word: str) -> list[int] | None:
        """Returns the tokens of a word; None where one of them is unknown."""
        ids = self.tokenizer.encode(word)
        return None if not ids or self.tokenizer.special[ids].any() else ids

    def nearest(self, word: str, count: int) -> list[tuple[str, float]]:
        """Returns the tokens nearest to a known word with their cosines, or to several tokens."""
        ids = self.known(word)
        return self._nearest(self.table[ids].mean(axis=0), ids, count)

    def analogy(self, words: tuple[str, str, str], count: int) -> list[tuple[str, float]]:
        """Returns the words nearest to b - a + c with their cosines; none is a, b or c."""
        ids = [self.id_of(word) for word in words]
        a, b, c = self.unit[ids]
        return self._nearest(b - a + c, ids, count)

    def _nearest(self, vector, without: list[int], count: int) -> list[tuple[str, float]]:
        cosines = self.unit @ normalised(vector)
        cosines[without] = -np.inf
        order = np.argsort(-cosines)[:count].tolist()
        return list(zip(self.tokenizer.pieces(order), cosines[order].tolist()))

    def answers(self, questions: Int[np.ndarray, "N 3"]) -> Int[np.ndarray, " N"]:
        """Returns the nearest word to b - a + c for each (a, b, c), which it is not."""
        parts = [questions[i : i + _TOGETHER] for i in range(0, len(questions), _TOGETHER)]
        return np.concatenate([self._answers(part) for part in parts])

    def _answers(self, questions: Int[np.ndarray, "N 3"]) -> Int[np.ndarray, " N"]:
        a, b, c = self.unit[questions.T]
        cosines = (b - a + c) @ self.unit.T
        np.put_along_axis(cosines, questions, -np.inf, axis=1)
        return cosines.argmax(axis=1)


@dataclasses.dataclass(frozen=True)
class Section:
    """The analogies of a section of a file: so many are right of those whose words are known."""

    name: str
    right: int
    known: int
    unknown: int

    @property
    def accuracy(self) -> float:
        return self.right / max(self.known, 1)


def accuracies(vectors: StaticVectors, path: str) -> list[Section]:
    """Returns the sections of a file of analogies, and the sum of all at the end.

    A line is ": SECTION", or four words of which the last is asked for. Questions with a word that
    the vocabulary lacks are counted apart. Raises UserError for a line of another form.
    """
    sections = [_section(vectors, name, rows) for name, rows in _read(path)]
    if not sections:
        raise UserError(f"{path}: no analogy in it")
    sums = (sum(getattr(each, key) for each in sections) for key in ("right", "known", "unknown"))
    return [*sections, Section("all", *sums)]


def _section(vectors: StaticVectors, name: str, rows: Iterable[list[str]]) -> Section:
    encoded = [[vectors.known(word) for word in row] for row in rows]
    is_known = [all(ids is not None and len(ids) == 1 for ids in row) for row in encoded]
    ids = [[ids[0] for ids in row] for row, known in zip(encoded, is_known) if known]
    unknown = len(encoded) - len(ids)
    if not ids:
        return Section(name, 0, 0, unknown)
    questions = np.array(ids)
    right = vectors.answers(questions[:, :3]) == questions[:, 3]
    return Section(name, int(right.sum()), len(ids), unknown)


def _read(path: str) -> Iterator[tuple[str, list[list[str]]]]:
    """Yields the sections of a file of analogies with their rows of four words."""
    with buckets.reading(path):
        lines = list(text_lines(path))
    name, rows = "", []
    for number, line in enumerate(lines, 1):
        if line.startswith(":"):
            if rows:
                yield name, rows
            name, rows = line[1:].strip(), []
        elif line.strip():
            words = line.split()
            if len(words) != 4:
                raise UserError(f'{path}:{number}: must be four words, or ": SECTION"')
            rows.append(words)
    if rows:
        yield name, rows


def normalised(vectors: Float[np.ndarray, "*B M"]) -> Float[np.ndarray, "*B M"]:
    """Returns the vectors at length 1; those of zeros stay."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
