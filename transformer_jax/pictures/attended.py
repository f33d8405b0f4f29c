"""Attention weights with their words or tokens."""

from typing import NamedTuple

import numpy as np


class Attended(NamedTuple):
    """Attention weights. Those of a query sum to 1 over the keys."""

    weights: np.ndarray  # (layers, H, Q, K) float32
    queries: list[str]
    keys: list[str]


class Side(NamedTuple):
    """The labels of the queries or the keys, and the index of each token's label."""

    labels: list[str]
    numbers: list[int]

    @classmethod
    def of(cls, tokenizer, ids: list[int], pieces: bool) -> "Side":
        """Returns the words of `ids`, or their tokens with `pieces`."""
        if pieces:
            return cls(tokenizer.pieces(ids), list(range(len(ids))))
        return cls(*tokenizer.words(ids))

    def __add__(self, other: "Side") -> "Side":
        shifted = [number + len(self.labels) for number in other.numbers]
        return Side(self.labels + other.labels, self.numbers + shifted)

    def members(self) -> np.ndarray:
        """Returns 1 where a token belongs to a label (tokens, labels) float32."""
        is_member = np.array(self.numbers)[:, None] == np.arange(len(self.labels))
        return is_member.astype(np.float32)


def between(weights: np.ndarray, queries: Side, keys: Side) -> Attended:
    """Returns the weights between words, from weights between tokens (..., Q, K).

    They are summed over the tokens of a key word and averaged over the tokens of a query word
    (Clark et al. 2019, section 4.1).
    """
    of_query = queries.members()
    of_query = of_query / of_query.sum(axis=0)
    by_words = np.einsum("qa,...qk,kb->...ab", of_query, weights, keys.members())
    return Attended(by_words, queries.labels, keys.labels)
