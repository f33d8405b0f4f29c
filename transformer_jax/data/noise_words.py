"""Noise words of negative sampling, and subsampling of frequent words (Mikolov et al. 2013)."""

import dataclasses

import numpy as np
from jaxtyping import Float, Int

_POWER = 0.75  # of the counts, in the distribution of noise words


@dataclasses.dataclass(frozen=True)
class NoiseWords:
    """Words drawn in proportion to their counts to the power of 3/4 (section 2.2)."""

    cumulative: Float[np.ndarray, " V"]  # the sums of the weights

    @classmethod
    def of(cls, counts: Int[np.ndarray, " V"]) -> "NoiseWords":
        return cls(np.cumsum(counts.astype(np.float64) ** _POWER))

    def draw(self, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Returns the ids of words that are drawn with replacement, int32 of this shape."""
        places = random.random(shape) * self.cumulative[-1]
        return np.searchsorted(self.cumulative, places, side="right").astype(np.int32)


def keep_probabilities(counts: Int[np.ndarray, " V"], sample: float) -> Float[np.ndarray, " V"]:
    """Returns the probability that an occurrence of each word stays in the text.

    It is (sqrt(f / s) + 1) s / f of a word with the share f of the text, as in the published code.
    The paper's equation 5 has sqrt(s / f). s is `sample`; 0: all words stay.
    """
    if not sample:
        return (counts > 0).astype(np.float64)
    share = counts / (sample * max(counts.sum(), 1))
    probability = (np.sqrt(share) + 1) / np.maximum(share, 1e-12)
    return np.where(counts > 0, np.minimum(probability, 1), 0.0)


def word_counts(counts: Int[np.ndarray, " V"], special: np.ndarray) -> Int[np.ndarray, " V"]:
    """Returns the counts of the tokens of a vocabulary, 0 for those that are special."""
    counts = counts.copy()
    counts[: len(special)][special] = 0
    return counts
