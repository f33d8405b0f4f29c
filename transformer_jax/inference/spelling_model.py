"""A language model of spelling: n-grams of characters, for the beam search of transcripts."""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64

from transformer_jax.config import UserError
from transformer_jax.scores.ngrams import NGrams

_HELD_OUT = 10  # one of so many texts fits the weights
_MOST_CONTEXTS = 2**16  # whose probabilities are remembered


@dataclasses.dataclass(frozen=True)
class SpellingModel:
    """Interpolated n-grams of characters (scores/ngrams.py). It is a `ctc.LanguageModel`."""

    ngrams: NGrams
    weights: Float64[np.ndarray, "orders bins"]
    _known: dict[tuple, np.ndarray] = dataclasses.field(default_factory=dict)

    @classmethod
    def of_texts(
        cls, texts: Sequence[Sequence[int]], order: int, vocab_size: int, boundary: int
    ) -> "SpellingModel":
        """Counts the n-grams of up to `order` tokens in texts, the numbers of their characters.

        `boundary` stands between words, and here between texts, too. Raises UserError where there
        are fewer than two texts.
        """
        if len(texts) < 2:
            raise UserError("config.task.lm_files: has fewer than two lines of text")
        held_out = texts[::_HELD_OUT]
        others = [text for number, text in enumerate(texts) if number % _HELD_OUT]
        counted = NGrams.count(_joined(others, boundary), order, vocab_size)
        weights = counted.occurrences(_joined(held_out, boundary)).fitted_weights()
        return cls(NGrams.count(_joined(texts, boundary), order, vocab_size), weights)

    def __call__(self, tokens: tuple[int, ...]) -> Float64[np.ndarray, " V"]:
        """Returns the log-probabilities of the token after `tokens`."""
        context = tokens[max(len(tokens) - len(self.ngrams.tables) + 1, 0) :]
        if context not in self._known:
            if len(self._known) >= _MOST_CONTEXTS:
                self._known.clear()
            self._known[context] = np.log(self.ngrams.following(context, self.weights))
        return self._known[context]


def _joined(texts: Sequence[Sequence[int]], boundary: int) -> np.ndarray:
    marked = itertools.chain.from_iterable((*text, boundary) for text in texts)
    return np.array([boundary, *marked], np.int64)
