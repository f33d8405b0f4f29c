"""What BERT is asked: which token stood here, and does the second text follow the first (Devlin et
al. 2018, section 3.1 and appendix A). Pure NumPy.
"""

import dataclasses

import numpy as np

from transformer_jax.data.rows import padded


@dataclasses.dataclass(frozen=True)
class Masking:
    """Hides 15 % of a row's tokens and asks for them: 80 % become [MASK], 10 % another token, 10 %
    stay.
    """

    mask_id: int
    special: np.ndarray  # (V,) bool: never asked for, never put in
    continues: np.ndarray  # (V,) bool: pieces that go on with the word before
    most: int  # predictions of a row, P
    whole_words: bool = False  # all pieces of a word are asked for, or none

    def __call__(self, tokens: np.ndarray, random: np.random.Generator) -> dict[str, np.ndarray]:
        """tokens (N,), special ones among them -> tokens (N,) as the model sees them;
        masked_positions, masked_labels and masked_weights (P,).
        """
        candidates = np.flatnonzero(~self.special[tokens])
        # of all tokens, as published
        count = min(max(round(0.15 * len(tokens)), 1), self.most, len(candidates))
        chosen = (
            self._words(tokens, candidates, count, random)
            if self.whole_words
            else random.permutation(candidates)[:count]
        )
        chosen.sort()
        draws, others = (
            random.random(len(chosen)),
            self.ordinary[random.integers(len(self.ordinary), size=len(chosen))],
        )
        seen = tokens.copy()
        seen[chosen] = np.where(
            draws < 0.8, self.mask_id, np.where(draws < 0.9, others, tokens[chosen])
        )
        return {
            "tokens": seen,
            "masked_positions": padded(chosen, self.most),
            "masked_labels": padded(tokens[chosen], self.most),
            "masked_weights": padded(np.ones(len(chosen)), self.most),
        }

    def __post_init__(self):
        object.__setattr__(self, "ordinary", np.flatnonzero(~self.special))

    def _words(self, tokens, candidates, count, random):
        """Whole words in random order, as long as all their pieces are within `count`."""
        begins = ~self.continues[tokens[candidates]] | (np.diff(candidates, prepend=-2) > 1)
        words = np.split(candidates, np.flatnonzero(begins)[1:])
        chosen = []
        for word in random.permutation(len(words)):
            if len(chosen) + len(words[word]) <= count:
                chosen.extend(words[word])
        return np.array(chosen, np.int64)


def cut(first: int, second: int, most: int, random: np.random.Generator) -> tuple[slice, slice]:
    """What is kept of two texts of these lengths so that together they have `most` tokens: the
    longer one loses, at both ends by chance.
    """
    excess = max(first + second - most, 0)
    from_longer = min(excess, abs(first - second))
    both = excess - from_longer
    losses = (
        both // 2 + from_longer * (first > second),
        both - both // 2 + from_longer * (first <= second),
    )
    fronts = (random.binomial(loss, 0.5) if loss else 0 for loss in losses)
    return tuple(
        slice(front, length - loss + front)
        for front, length, loss in zip(fronts, (first, second), losses)
    )
