"""The neighbours of a word in its contexts: occurrences in texts with similar hidden states."""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Float

from transformer_jax.config import UserError
from transformer_jax.data.sources.text_files import text_lines
from transformer_jax.inference.static_vectors import StaticVectors, normalised
from transformer_jax.storage import buckets

_NUM_STATIC = 8  # neighbours by embedding
_ROUNDING = 1e-5  # by which equal cosines may differ
_PUNCTUATION = "\"'.,;:!?()"


@dataclasses.dataclass(frozen=True)
class Neighbours:
    """The occurrences of a word in texts.

    Attributes:
      texts: that of each of the N occurrences.
      senses: those of the texts; "" where it is not known.
      cosines: (layers + 1, N, N) float32, of the hidden states; layer 0 is the embeddings. Those of
        occurrences in the same text are -inf.
      static: words whose embeddings are nearest to that of the word, with their cosines.
    """

    texts: list[str]
    senses: list[str]
    cosines: Float[np.ndarray, "layers N N"]
    static: list[tuple[str, float]]

    @property
    def nearest(self) -> np.ndarray:
        """The number of each occurrence's nearest other one in each layer (layers + 1, N)."""
        return self.cosines.argmax(axis=-1)

    @property
    def same_sense(self) -> Float[np.ndarray, "layers N"]:
        """Whether each occurrence's nearest other one has its sense (layers + 1, N): 0 or 1.

        Of several that are as near, it is the share that has the sense. The embeddings of a model
        without position embeddings are equal for all occurrences.
        """
        is_nearest = self.cosines >= self.cosines.max(axis=-1, keepdims=True) - _ROUNDING
        same = np.equal.outer(self.senses, self.senses)
        return (is_nearest & same).sum(axis=-1) / is_nearest.sum(axis=-1)

    @property
    def chance(self) -> Float[np.ndarray, " N"]:
        """The share of each occurrence's neighbours that have its sense."""
        is_neighbour = np.isfinite(self.cosines[0])
        same = np.equal.outer(self.senses, self.senses) & is_neighbour
        return same.sum(axis=1) / is_neighbour.sum(axis=1)

    def pairs(self, layer: int) -> list[tuple[str, str, float]]:
        """Returns (text, nearest text, cosine) of each occurrence in a layer."""
        nearest, cosines = self.nearest[layer], self.cosines[layer].max(axis=-1)
        return [
            (text, self.texts[other], float(cosine))
            for text, other, cosine in zip(self.texts, nearest, cosines)
        ]


def read(path: str, word: str) -> dict[str, list[tuple[str, str]]]:
    """Returns (sense, text) for each line of a file, by word.

    A line is TEXT, or WORD, SENSE and TEXT with tabs between. Lines of other words are left out.
    `word` is "" for all words. Raises UserError for a line of another form.
    """
    with buckets.reading(path):
        lines = list(text_lines(path))
    texts = {}
    for number, line in enumerate(lines, 1):
        fields = line.split("\t")
        if len(fields) not in (1, 3) or (len(fields) == 1 and not word):
            raise UserError(f"{path}:{number}: must be a word, a sense and a text, tabs between")
        of_line, sense, text = fields if len(fields) == 3 else (word, "", line)
        if of_line == (word or of_line):
            texts.setdefault(of_line, []).append((sense, text))
    if not texts:
        raise UserError(f"{path}: no line of --word={word}")
    return texts


def word_neighbours(task: Any, params, word: str, texts: list[tuple[str, str]]) -> Neighbours:
    """Returns the neighbours of a word in (sense, text), by an Encoder's hidden states.

    The state of a word is the mean over its tokens. The mean of all tokens' states is subtracted
    first: without it, all cosines of a Transformer's states are large. Raises UserError where fewer
    than two texts have the word.
    """
    layers = tuple(range(task.model.num_states))
    states, numbers, total, count = [], [], 0.0, 0
    lines = [text for _, text in texts]
    for number, (pieces, of_text) in enumerate(task.features(params, lines, layers)):
        total = total + of_text.sum(axis=1)
        count += len(pieces)
        for places in _places(task.tokenizer, pieces, lines[number], word):
            states.append(of_text[:, places].mean(axis=1))
            numbers.append(number)
    if len(set(numbers)) < 2:
        raise UserError(f"--word={word}: fewer than two of the texts have this word")
    centred = np.stack(states, axis=1) - (total / count)[:, None]  # (layers + 1, N, M)
    cosines = _cosines(centred, centred)
    is_same = np.equal.outer(numbers, numbers)
    return Neighbours(
        [lines[number] for number in numbers],
        [texts[number][0] for number in numbers],
        np.where(is_same, np.float32(-np.inf), cosines),
        static(task, params, word),
    )


def accuracies(words: list[Neighbours]) -> tuple[Float[np.ndarray, " layers"], float] | None:
    """Returns the share of nearest occurrences that have the same sense, by layer, and by chance.

    Returns None where the sense of an occurrence is not known.
    """
    if not all(sense for word in words for sense in word.senses):
        return None
    same = np.concatenate([word.same_sense for word in words], axis=1)
    return same.mean(axis=1), float(np.concatenate([word.chance for word in words]).mean())


def _places(tokenizer, pieces: list[str], text: str, word: str) -> list[list[int]]:
    """Returns the places of the tokens of each occurrence of a word among the pieces of a text."""
    ids = tokenizer.encode(text)
    if not ids:
        return []
    begin = int(pieces[0] != tokenizer.pieces(ids[:1])[0])  # behind the special token
    words, indices = tokenizer.words(ids)
    # A text that is too long was cut.
    indices = np.array(indices)[: len(pieces) - begin]
    numbers = [n for n, name in enumerate(words) if _plain(name) == _plain(word)]
    places = [(np.flatnonzero(indices == number) + begin).tolist() for number in numbers]
    return [of_word for of_word in places if of_word]


def _plain(word: str) -> str:
    return word.strip(_PUNCTUATION).casefold()


def static(task: Any, params, word: str) -> list[tuple[str, float]]:
    """Returns the tokens whose vectors are nearest to that of a word, or to the mean of its own.

    The mean of the embeddings of other models than word vectors is subtracted first. Returns none
    for a word that the vocabulary lacks.
    """
    vectors = StaticVectors.from_run(task, params)
    if vectors.known(word) is None:
        return []
    vectors = vectors if "static" in task.model.can else vectors.centred
    return vectors.nearest(word, _NUM_STATIC)


def _cosines(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Returns the cosines of vectors (..., N, M) and (..., K, M), (..., N, K)."""
    return normalised(x) @ normalised(y).swapaxes(-1, -2)
