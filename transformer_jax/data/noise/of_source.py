"""The noises of BART (Lewis et al. 2019, section 2.2): they change the source alone."""

import dataclasses

import numpy as np

from transformer_jax.data.noise.text import Noise, Text


@dataclasses.dataclass(frozen=True)
class Masking(Noise):
    """Token masking: random tokens become masks."""

    share: float = 0.15
    masks = True

    def __call__(self, text, pieces, random):
        masked = text.tokens.copy()
        masked[_chosen(len(masked), self.share, random)] = pieces.mask_id
        return text._replace(tokens=masked)


@dataclasses.dataclass(frozen=True)
class Deletion(Noise):
    """Token deletion: the model must find the places of the tokens that are missing."""

    share: float = 0.15

    def __call__(self, text, pieces, random):
        deleted = _chosen(len(text.tokens), self.share, random)
        return text._replace(
            tokens=np.delete(text.tokens, deleted), sentences=np.delete(text.sentences, deleted)
        )


@dataclasses.dataclass(frozen=True)
class Infilling(Noise):
    """Text infilling: each span of words becomes one mask. A span of no word inserts a mask.

    The numbers of words are from a Poisson distribution. As in fairseq, they are drawn until their
    sum reaches the share of the words, and the last one is cut to that sum. The last one is longer
    instead where there are as many spans as words to mask, so that no text grows. Spans do not
    overlap.
    """

    share: float = 0.3
    mean: float = 3.0
    masks = True

    def __call__(self, text, pieces, random):
        begins = np.ones(len(text.tokens) + 1, bool)
        begins[1:-1] = pieces.begins_word[text.tokens[1:]]
        # The first token of each word, then the number of tokens.
        bounds = np.flatnonzero(begins)
        words = self._lengths(_count(len(bounds) - 1, self.share, random), random)
        num_others = len(bounds) - 1 - words.sum()
        # The other words and the spans are in random order.
        slots = random.permutation(num_others + len(words))[: len(words)]
        slots.sort()
        first_words = slots - np.arange(len(words)) + np.cumsum(words) - words
        starts, ends = bounds[first_words], bounds[first_words + words]
        return _replaced(text, starts, ends - starts, pieces.mask_id)

    def _lengths(self, num_words: int, random: np.random.Generator) -> np.ndarray:
        """Returns the number of words of each span, `num_words` in all."""
        if not num_words:
            return np.zeros(0, np.int64)
        lengths = random.poisson(self.mean, num_words)
        sums = np.cumsum(lengths)
        last = min(int(np.searchsorted(sums, num_words)), num_words - 1)
        lengths[last] += num_words - sums[last]
        return lengths[: last + 1]


@dataclasses.dataclass(frozen=True)
class Permutation(Noise):
    """Sentence permutation: the sentences are in random order."""

    whole_sentences = True

    def __call__(self, text, pieces, random):
        begins = text.sentences[1:] != text.sentences[:-1]
        parts = np.cumsum(np.concatenate([[0], begins]))[: len(text.sentences)]
        places = random.permutation(begins.sum() + 1)[parts]
        order = np.argsort(places, kind="stable")
        return text._replace(tokens=text.tokens[order], sentences=text.sentences[order])


@dataclasses.dataclass(frozen=True)
class Rotation(Noise):
    """Document rotation: the text begins with a random token, and its beginning follows the end."""

    def __call__(self, text, pieces, random):
        shift = -random.integers(max(len(text.tokens), 1))
        return text._replace(
            tokens=np.roll(text.tokens, shift), sentences=np.roll(text.sentences, shift)
        )


def _count(number: int, share: float, random: np.random.Generator) -> int:
    """Returns the share of a number, rounded at random so that its mean is exact."""
    return int(number * share + random.random())


def _chosen(number: int, share: float, random: np.random.Generator) -> np.ndarray:
    """Returns random numbers below `number`, each at most once."""
    return random.permutation(number)[: _count(number, share, random)]


def _replaced(text: Text, starts: np.ndarray, lengths: np.ndarray, mask_id: int) -> Text:
    """Returns the text with a mask in place of each span of tokens."""
    num_tokens = len(text.tokens)
    opened = np.bincount(starts, minlength=num_tokens + 1)
    closed = np.bincount(starts + lengths, minlength=num_tokens + 1)
    outside = np.flatnonzero(np.cumsum(opened - closed)[:-1] == 0)
    masks = starts - np.cumsum(lengths) + lengths + np.arange(len(starts))
    is_mask = np.zeros(len(outside) + len(starts), bool)
    is_mask[masks] = True
    # The token that each one comes from; an insertion belongs to the sentence that it precedes.
    origins = np.empty(len(is_mask), np.int64)
    origins[~is_mask] = outside
    origins[is_mask] = np.minimum(starts, num_tokens - 1)
    tokens = text.tokens[origins]
    tokens[is_mask] = mask_id
    return text._replace(tokens=tokens, sentences=text.sentences[origins])
