"""Attention weights with the words, or tokens, they are between."""

from typing import NamedTuple

import numpy as np


class Attended(NamedTuple):
    weights: np.ndarray  # (layers, H, Q, K) float32; each query's add up to 1 over the keys
    queries: list[str]
    keys: list[str]


class Side(NamedTuple):
    """The queries, or the keys, as they are shown: a label for each word, and for each token the
    number of its word.
    """

    labels: list[str]
    numbers: list[int]

    @classmethod
    def of(cls, tokenizer, ids: list[int], pieces: bool) -> "Side":
        """By words; with `pieces`, by tokens."""
        return (
            cls(tokenizer.pieces(ids), list(range(len(ids))))
            if pieces
            else cls(*tokenizer.words(ids))
        )

    def __add__(self, other: "Side") -> "Side":
        return Side(
            self.labels + other.labels,
            self.numbers + [number + len(self.labels) for number in other.numbers],
        )


def between(weights: np.ndarray, queries: Side, keys: Side) -> Attended:
    """Weights between tokens (..., Q, K) as weights between words: summed over a key word's tokens,
    averaged over a query word's (Clark et al. 2019, section 4.1).
    """
    # (tokens, words)
    member = lambda side: (np.array(side.numbers)[:, None] == np.arange(len(side.labels))).astype(
        np.float32
    )
    of_query, of_key = member(queries), member(keys)
    return Attended(
        np.einsum("qa,...qk,kb->...ab", of_query / of_query.sum(axis=0), weights, of_key),
        queries.labels,
        keys.labels,
    )
