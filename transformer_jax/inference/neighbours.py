"""Contextual nearest neighbors of a word: its occurrences in texts with similar hidden states."""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Float

from transformer_jax.config import UserError
from transformer_jax.data.sources.text_files import text_lines
from transformer_jax.inference.static_vectors import StaticVectors, normalized
from transformer_jax.storage import buckets

_NUM_STATIC = 8  # neighbors by embedding
_ROUNDING = 1e-5  # cosines that differ by less count as equal, because float32 rounds them
# Words in a text carry punctuation, which the word that the user names does not.
_PUNCTUATION = "\"'.,;:!?()"


@dataclasses.dataclass(frozen=True)
class Neighbours:
    """The N occurrences of a word in texts, and how similar their hidden states are.

    Attributes:
      texts: the text of each occurrence.
      senses: the sense of the word in each text; "" if it is not known.
      cosines: cosine similarities of the hidden states (layers + 1, N, N) float32; layer 0 is the
        embeddings. Pairs of occurrences in the same text have -inf.
      static: the words with the nearest embeddings, with their cosines.
    """

    texts: list[str]
    senses: list[str]
    cosines: Float[np.ndarray, "layers N N"]
    static: list[tuple[str, float]]

    @property
    def nearest(self) -> np.ndarray:
        """The index of the nearest neighbor of each occurrence in each layer, (layers + 1, N)."""
        return self.cosines.argmax(axis=-1)

    @property
    def same_sense(self) -> Float[np.ndarray, "layers N"]:
        """Whether the nearest neighbor of each occurrence has the same sense, (layers + 1, N).

        It is 0 or 1 or, if several neighbors are equally near, their share with the same sense.
        """
        # Ties are common: without position embeddings, the embeddings of all occurrences are equal.
        is_nearest = self.cosines >= self.cosines.max(axis=-1, keepdims=True) - _ROUNDING
        same = np.equal.outer(self.senses, self.senses)
        return (is_nearest & same).sum(axis=-1) / is_nearest.sum(axis=-1)

    @property
    def chance(self) -> Float[np.ndarray, " N"]:
        """The share of all neighbors of each occurrence that have the same sense (chance level)."""
        # -inf stands for occurrences in one text, and it does so in all layers.
        is_neighbor = np.isfinite(self.cosines[0])
        same = np.equal.outer(self.senses, self.senses) & is_neighbor
        return same.sum(axis=1) / is_neighbor.sum(axis=1)

    def pairs(self, layer: int) -> list[tuple[str, str, float]]:
        """Returns (text, text of the nearest neighbor, cosine) for each occurrence in a layer."""
        nearest, cosines = self.nearest[layer], self.cosines[layer].max(axis=-1)
        return [
            (text, self.texts[other], float(cosine))
            for text, other, cosine in zip(self.texts, nearest, cosines)
        ]


def read(path: str, word: str) -> dict[str, list[tuple[str, str]]]:
    """Returns {word: [(sense, text), ...]} for the lines of a file.

    A line is TEXT, or WORD, SENSE and TEXT separated by tabs. Lines for other words than `word` are
    left out, unless it is "". Raises UserError for a line of another form.
    """
    with buckets.reading(path):
        lines = list(text_lines(path))
    texts = {}
    for number, line in enumerate(lines, 1):
        fields = line.split("\t")
        if len(fields) not in (1, 3) or (len(fields) == 1 and not word):
            raise UserError(
                f"{path}:{number}: must be a word, a sense and a text, separated by tabs"
            )
        line_word, sense, text = fields if len(fields) == 3 else (word, "", line)
        if line_word == (word or line_word):
            texts.setdefault(line_word, []).append((sense, text))
    if not texts:
        raise UserError(f"{path}: no line of --word={word}")
    return texts


@dataclasses.dataclass(frozen=True)
class Occurrences:
    """The N occurrences of a word in texts, with their hidden states.

    Attributes:
      numbers: the number of the text of each occurrence, from 0.
      texts: the text of each occurrence.
      senses: the sense of the word in each text; "" if it is not known.
      states: (layers + 1, N, M) float32, minus the mean of the hidden states of all tokens, because
        the states of a Transformer share a large mean; layer 0 is the embeddings.
    """

    numbers: list[int]
    texts: list[str]
    senses: list[str]
    states: Float[np.ndarray, "layers N M"]


def occurrences(task: Any, params, word: str, texts: list[tuple[str, str]]) -> Occurrences:
    """Returns the occurrences of a word in pairs (sense, text), by an Encoder's hidden states.

    The state of a word is the mean over its tokens. Raises UserError if fewer than two texts have
    the word.
    """
    layers = tuple(range(task.model.num_states))
    states, numbers, total, count = [], [], 0.0, 0
    lines = [text for _, text in texts]
    for number, (pieces, text_states) in enumerate(task.features(params, lines, layers)):
        # Summed text by text, because the states of all tokens together may not fit in memory.
        total = total + text_states.sum(axis=1)
        count += len(pieces)
        for indices in _token_indices(task.text_tokenizer, pieces, lines[number], word):
            states.append(text_states[:, indices].mean(axis=1))
            numbers.append(number)
    if len(set(numbers)) < 2:
        raise UserError(f"--word={word}: fewer than two of the texts have this word")
    return Occurrences(
        numbers,
        [lines[number] for number in numbers],
        [texts[number][0] for number in numbers],
        np.stack(states, axis=1) - (total / count)[:, None],
    )


def word_neighbours(task: Any, params, word: str, texts: list[tuple[str, str]]) -> Neighbours:
    """Returns the neighbors of a word in pairs (sense, text). The errors are `occurrences`'."""
    found = occurrences(task, params, word, texts)
    cosines = _cosines(found.states, found.states)
    is_same = np.equal.outer(found.numbers, found.numbers)
    return Neighbours(
        found.texts,
        found.senses,
        # Occurrences in one text share their context, so that they would be nearest to each other
        # whatever their sense.
        np.where(is_same, np.float32(-np.inf), cosines),
        static(task, params, word),
    )


def accuracies(words: list[Neighbours]) -> tuple[Float[np.ndarray, " layers"], float] | None:
    """Returns the share of nearest neighbors with the same sense, by layer, and the chance level.

    Returns None if the sense of an occurrence is not known.
    """
    if not all(sense for word in words for sense in word.senses):
        return None
    same = np.concatenate([word.same_sense for word in words], axis=1)
    return same.mean(axis=1), float(np.concatenate([word.chance for word in words]).mean())


def _token_indices(tokenizer, pieces: list[str], text: str, word: str) -> list[list[int]]:
    """Returns, for each occurrence of a word, the indices of its tokens among `pieces`."""
    ids = tokenizer.encode(text)
    if not ids:
        return []
    # The model may have read a special token in front, which the ids of the text lack.
    start = int(pieces[0] != tokenizer.pieces(ids[:1])[0])
    words, word_of_token = tokenizer.words(ids)
    # Cut like the states, because the end of a text that is too long was not read.
    word_of_token = np.array(word_of_token)[: len(pieces) - start]
    numbers = [n for n, name in enumerate(words) if _plain(name) == _plain(word)]
    indices = [(np.flatnonzero(word_of_token == number) + start).tolist() for number in numbers]
    return [occurrence for occurrence in indices if occurrence]


def around(text: str, word: str) -> str:
    """Returns the first occurrence of a word in a text, with the two words on each side of it."""
    words = text.split()
    index = next((i for i, each in enumerate(words) if _plain(each) == _plain(word)), 0)
    return " ".join(words[max(index - 2, 0) : index + 3])


def _plain(word: str) -> str:
    return word.strip(_PUNCTUATION).casefold()


def static(task: Any, params, word: str) -> list[tuple[str, float]]:
    """Returns the tokens whose vectors are nearest to a word's: the mean over the word's tokens.

    Unless the model is one of word vectors, the mean of all embeddings is subtracted first. Returns
    an empty list for a word with tokens that the vocabulary lacks.
    """
    vectors = StaticVectors.from_run(task, params)
    if vectors.known(word) is None:
        return []
    vectors = vectors if "static" in task.model.can else vectors.centred
    return vectors.nearest(word, _NUM_STATIC)


def _cosines(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Returns the cosine similarities (..., N, K) of vectors (..., N, M) and (..., K, M)."""
    return normalized(x) @ normalized(y).swapaxes(-1, -2)
