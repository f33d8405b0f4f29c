"""Static word vectors: nearest neighbors, and analogies (Mikolov et al. 2013)."""

import dataclasses
import functools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from transformer_jax.config import UserError
from transformer_jax.data.sources.text_files import text_lines
from transformer_jax.storage import buckets

_BATCH = 256  # analogies that are answered at a time, which bounds the table of cosines


@dataclasses.dataclass(frozen=True)
class StaticVectors:
    """A tokenizer, and the vectors of its tokens (V, M)."""

    tokenizer: Any
    table: Float[np.ndarray, "V M"]

    @classmethod
    def from_run(cls, task: Any, params) -> "StaticVectors":
        """Returns the word vectors of a run, or the input embeddings of its model.

        Raises UserError for a run without a vocabulary, or without embeddings of words.
        """
        if task.tokenizer is None:
            raise UserError(f"a {task.config.task.name} run has no vocabulary")
        if "static" in task.model.can:
            table = task.model.apply({"params": params}, method="vectors")
        elif task.model.word_table is None:
            raise UserError(f"{task.config.model.name} has no context-independent word vectors")
        else:
            path = task.model.word_table.split("/")
            table = functools.reduce(lambda tree, name: tree[name], path, params)
        tokenizer = task.tokenizer.target
        # Further rows only pad the table, to a multiple of config.model.vocab_multiple.
        return cls(tokenizer, np.asarray(table, np.float32)[: tokenizer.vocab_size])

    @property
    def centred(self) -> "StaticVectors":
        """The vectors with their mean subtracted.

        The embeddings of a Transformer share a mean that makes all their cosines large.
        """
        return dataclasses.replace(self, table=self.table - self.table.mean(axis=0))

    @functools.cached_property
    def unit(self) -> Float[np.ndarray, "V M"]:
        """The vectors, scaled to length 1."""
        return normalized(self.table)

    def words(self) -> tuple[list[str], Float[np.ndarray, "N M"]]:
        """Returns the tokens that are not special tokens, and their vectors."""
        ids = np.flatnonzero(~self.tokenizer.special)
        return self.tokenizer.pieces(ids.tolist()), self.table[ids]

    def id_of(self, word: str) -> int:
        """Returns the id of a word. Raises UserError unless it is a single token."""
        ids = self.known(word)
        if ids is None or len(ids) != 1:
            raise UserError(f"{word!r}: not a word of the run's vocabulary")
        return ids[0]

    def known(self, word: str) -> list[int] | None:
        """Returns the ids of a word's tokens, or None if one of them is unknown."""
        ids = self.tokenizer.encode(word)
        return None if not ids or self.tokenizer.special[ids].any() else ids

    def nearest(self, word: str, count: int) -> list[tuple[str, float]]:
        """Returns the tokens nearest to a known word, with their cosines.

        A word of several tokens has the mean of their vectors. Special tokens are left out.
        """
        ids = self.known(word)
        return self._nearest(self.table[ids].mean(axis=0), ids, count)

    def analogy(self, words: tuple[str, str, str], count: int) -> list[tuple[str, float]]:
        """Returns the words nearest to b - a + c, without a, b and c, and with their cosines."""
        ids = [self.id_of(word) for word in words]
        # Unit vectors, so that no word counts for more because its vector is long.
        a, b, c = self.unit[ids]
        return self._nearest(b - a + c, ids, count)

    def _nearest(self, vector, excluded: list[int], count: int) -> list[tuple[str, float]]:
        cosines = self.unit @ normalized(vector)
        # Special tokens are left out, because they are no words and many are never trained.
        cosines[self.tokenizer.special] = -np.inf
        # Otherwise the words of the question would be the nearest ones.
        cosines[excluded] = -np.inf
        # A small vocabulary may have fewer words than `count`, and excluded ones must not fill up.
        order = [i for i in np.argsort(-cosines)[:count].tolist() if cosines[i] > -np.inf]
        return list(zip(self.tokenizer.pieces(order), cosines[order].tolist()))

    def answers(self, questions: Int[np.ndarray, "N 3"]) -> Int[np.ndarray, " N"]:
        """Returns the word nearest to b - a + c for each (a, b, c), other than these three.

        Special tokens are left out.
        """
        parts = [questions[i : i + _BATCH] for i in range(0, len(questions), _BATCH)]
        return np.concatenate([self._answers(part) for part in parts])

    def _answers(self, questions: Int[np.ndarray, "N 3"]) -> Int[np.ndarray, " N"]:
        a, b, c = self.unit[questions.T]
        cosines = (b - a + c) @ self.unit.T
        cosines[:, self.tokenizer.special] = -np.inf
        np.put_along_axis(cosines, questions, -np.inf, axis=1)
        return cosines.argmax(axis=1)


@dataclasses.dataclass(frozen=True)
class Section:
    """The results on one section of a file of analogies."""

    name: str
    right: int  # questions with the right answer
    known: int  # questions whose words are all in the vocabulary
    unknown: int  # the other questions

    @property
    def accuracy(self) -> float:
        return self.right / max(self.known, 1)


def accuracies(vectors: StaticVectors, path: str) -> list[Section]:
    """Returns the results on each section of a file of analogies, and on all of them at the end.

    A line is ": SECTION", or four words of which the last is to be predicted. Questions with a word
    that the vocabulary lacks are counted as unknown. Raises UserError for a line of another form.
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
    """Yields (name, rows of four words) for the sections of a file of analogies."""
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


def normalized(vectors: Float[np.ndarray, "*B M"]) -> Float[np.ndarray, "*B M"]:
    """Returns the vectors, scaled to length 1; zero vectors stay zero."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
