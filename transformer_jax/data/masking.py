"""The masked tokens and the shortened pairs of BERT's rows (Devlin et al. 2018, section 3.1 and
appendix A). Pure NumPy.
"""

import dataclasses
import functools

import numpy as np

from transformer_jax.data.rows import padded


@dataclasses.dataclass(frozen=True)
class Masking:
    """Selects a share of a row's tokens for prediction: by default, 15 % as published.

    Of these, 80 % become [MASK], 10 % become another token, and 10 % stay.
    """

    mask_id: int
    special: np.ndarray  # (V,) bool: tokens that are neither predicted nor inserted
    continues: np.ndarray  # (V,) bool: pieces that continue the previous piece's word
    max_predictions: int  # of a row, P
    whole_words: bool = False  # predict all pieces of a word or none
    # weights of spans of 1, 2, 3, ... tokens, or of words with `whole_words`
    ngrams: tuple[float, ...] = (1.0,)
    selected: float = 0.15  # of all tokens of a row, special ones included
    # of the selected tokens: the share that becomes [MASK], and the share that becomes another one
    shares: tuple[float, float] = (0.8, 0.1)
    # (V,): a token is selected with a probability in proportion to its weight, a word or a span
    # with that of its first token; None: all alike
    weights: np.ndarray | None = None

    @functools.cached_property
    def ordinary(self) -> np.ndarray:
        """The ids of the tokens that may be inserted."""
        return np.flatnonzero(~self.special)

    def __call__(self, tokens: np.ndarray, random: np.random.Generator) -> dict[str, np.ndarray]:
        """Returns the masked tokens (N,), and the positions, labels and weights to predict (P,).

        `tokens` (N,) includes the special tokens. Keys: tokens, masked_positions, masked_labels,
        masked_weights.
        """
        candidates = np.flatnonzero(~self.special[tokens])
        count = min(
            max(round(self.selected * len(tokens)), 1), self.max_predictions, len(candidates)
        )
        if count and (self.whole_words or len(self.ngrams) > 1):
            positions = self._spans(tokens, self._units(tokens, candidates), count, random)
        else:
            positions = candidates[self._order(tokens[candidates], random)[:count]]
        positions.sort()
        draws = random.random(len(positions))
        inserted = self.ordinary[random.integers(len(self.ordinary), size=len(positions))]
        labels = tokens[positions]
        masked = tokens.copy()
        hidden, changed = self.shares
        masked[positions] = np.where(
            draws < hidden, self.mask_id, np.where(draws < hidden + changed, inserted, labels)
        )
        return {
            "tokens": masked,
            "masked_positions": padded(positions, self.max_predictions),
            "masked_labels": padded(labels, self.max_predictions),
            "masked_weights": padded(np.ones(len(positions)), self.max_predictions),
        }

    def _order(self, tokens: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Returns the places of the tokens (N,) in random order, large weights early.

        The first of them are a sample without replacement (Efraimidis and Spirakis 2006).
        """
        if self.weights is None:
            return random.permutation(len(tokens))
        return np.argsort(random.exponential(size=len(tokens)) / self.weights[tokens])

    def _units(self, tokens: np.ndarray, candidates: np.ndarray) -> list[np.ndarray]:
        """Returns the positions of each word, or of each token."""
        if not self.whole_words:
            return np.split(candidates, np.arange(1, len(candidates)))
        begins_word = ~self.continues[tokens[candidates]]
        is_after_gap = np.diff(candidates, prepend=-2) > 1
        return np.split(candidates, np.flatnonzero(begins_word | is_after_gap)[1:])

    def _spans(
        self,
        tokens: np.ndarray,
        units: list[np.ndarray],
        count: int,
        random: np.random.Generator,
    ) -> np.ndarray:
        """Returns the positions of random spans of units (Lan et al. 2019, section 4.1).

        A span is shorter than its drawn length where it meets a special token, another span or
        `count`.
        """
        order = self._order(tokens[[unit[0] for unit in units]], random)
        lengths = [1] * len(units)
        if len(self.ngrams) > 1:
            weights = np.array(self.ngrams) / sum(self.ngrams)
            lengths = 1 + random.choice(len(weights), len(units), p=weights)
        is_selected = np.zeros(len(units), bool)
        positions = []
        for first in order.tolist():
            before = units[first][0] - 1
            for number in range(first, min(first + lengths[first], len(units))):
                unit = units[number]
                fits = len(positions) + len(unit) <= count
                if is_selected[number] or unit[0] != before + 1 or not fits:
                    break
                is_selected[number] = True
                positions.extend(unit)
                before = unit[-1]
        return np.array(positions, np.int64)


def truncated_pair(
    first_length: int, second_length: int, max_tokens: int, random: np.random.Generator
) -> tuple[slice, slice]:
    """Returns the parts of two texts that together have at most `max_tokens` tokens.

    The longer text loses tokens until both are equally long, then both lose. Each lost token is at
    the beginning or the end of its text, with equal probability.
    """
    excess = max(first_length + second_length - max_tokens, 0)
    from_longer = min(excess, abs(first_length - second_length))
    from_both = excess - from_longer
    first_loss = from_both // 2
    second_loss = from_both - from_both // 2
    if first_length > second_length:
        first_loss += from_longer
    else:
        second_loss += from_longer
    first_part = _part(first_length, first_loss, random)
    return first_part, _part(second_length, second_loss, random)


def _part(length: int, loss: int, random: np.random.Generator) -> slice:
    """Returns the part of a text that loses `loss` tokens at its two ends."""
    at_front = random.binomial(loss, 0.5) if loss else 0
    return slice(at_front, length - loss + at_front)
