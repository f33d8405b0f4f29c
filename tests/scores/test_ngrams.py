"""N-gram models beside counts in dictionaries."""

import collections
import math

import numpy as np
import pytest

from transformer_jax.scores.ngrams import NGrams, scores

VOCABULARY = 7
RNG = np.random.default_rng(0)


def text(length):
    """Returns tokens of a Markov chain. The last token of the vocabulary never occurs."""
    tokens = [0]
    while len(tokens) < length:
        tokens.append(int((tokens[-1] * 2 + RNG.choice(3, p=[0.7, 0.2, 0.1])) % (VOCABULARY - 1)))
    return np.array(tokens, np.uint16)


COUNTED, HELD_OUT = text(400), np.concatenate([text(60), [6, 6, 1]]).astype(np.uint16)


class Naive:
    """Probabilities of n-grams, one token at a time."""

    def __init__(self, tokens):
        self.grams = collections.Counter()
        self.contexts = collections.Counter()
        for order in (1, 2, 3):
            for end in range(order, len(tokens) + 1):
                gram = tuple(tokens[end - order : end].tolist())
                self.grams[gram] += 1
                self.contexts[gram[:-1]] += 1

    def add_k(self, gram, k):
        return (self.grams[gram] + k) / (self.contexts[gram[:-1]] + k * VOCABULARY)

    def interpolated(self, gram, weights):
        if not gram:
            return 1 / VOCABULARY
        shorter = self.interpolated(gram[1:], weights)
        context = self.contexts[gram[:-1]]
        if not context:
            return shorter
        weight = weights[len(gram) - 1, context.bit_length()]
        return weight * self.grams[gram] / context + (1 - weight) * shorter


def grams(tokens, order):
    """Returns the n-gram that ends with each token; None where it begins before the text."""
    ends = range(1, len(tokens) + 1)
    return [tuple(tokens[e - order : e].tolist()) if e >= order else None for e in ends]


def test_counts_and_probabilities_are_those_of_dictionaries():
    naive = Naive(COUNTED)
    seen = NGrams.count(COUNTED, 3, VOCABULARY).occurrences(HELD_OUT)
    weights = np.r_[:1, RNG.uniform(size=63)] * np.ones((3, 1))
    for order in (1, 2, 3):
        for index, gram in enumerate(grams(HELD_OUT, order)):
            if gram is None:
                assert seen.grams[order - 1, index] == seen.contexts[order - 1, index] == 0
                continue
            count, context = naive.grams[gram], naive.contexts[gram[:-1]]
            assert seen.grams[order - 1, index] == count
            assert seen.contexts[order - 1, index] == context
            assert seen.frequencies[order - 1, index] == (count / context if context else 0)
            assert seen.add_k(order, 0.3)[index] == pytest.approx(naive.add_k(gram, 0.3))
    expected = [naive.interpolated(gram, weights) for gram in grams(HELD_OUT, 3)[2:]]
    np.testing.assert_allclose(seen.interpolated(weights)[2:], expected, rtol=1e-12)


def test_probabilities_of_all_next_tokens_add_up_to_one():
    counts = NGrams.count(COUNTED, 3, VOCABULARY)
    weights = counts.occurrences(HELD_OUT).fitted_weights()
    assert ((weights >= 0) & (weights <= 1)).all() and (weights[:, 0] == 0).all()
    for context in ([0, 1], [6, 0], [6, 6]):
        nexts = [
            counts.occurrences(np.array([*context, token], np.uint16))
            for token in range(VOCABULARY)
        ]
        for order in (1, 2, 3):
            assert sum(each.add_k(order, 0.2)[-1] for each in nexts) == pytest.approx(1)
        assert sum(each.interpolated(weights)[-1] for each in nexts) == pytest.approx(1)


def test_fitted_values_are_the_best():
    held_out = NGrams.count(COUNTED, 3, VOCABULARY).occurrences(text(5000))
    for order in (1, 2):
        k = held_out.fitted_k(order)
        loss = [-np.log(held_out.add_k(order, k * c)).mean() for c in (0.9, 1, 1.1)]
        assert loss[1] < min(loss) + 1e-8
    weights = held_out.fitted_weights()

    best = np.log(held_out.interpolated(weights)).mean()
    for _ in range(200):
        other = weights * RNG.uniform(0.3, 1.7, size=weights.shape)
        likelihood = np.log(held_out.interpolated(other.clip(0, 0.99))).mean()
        # Expectation maximization ends a little before the best weights.
        assert likelihood < best + 1e-3
    assert np.log(held_out.interpolated(0.5 * (weights > 0))).mean() < best - 0.01


def test_scores_are_losses_of_the_tokens_after_the_first():
    naive, measured = Naive(COUNTED), scores(COUNTED, HELD_OUT, VOCABULARY)
    for name, order in (("unigram", 1), ("bigram", 2)):
        k = measured[name]["k"]
        expected = [-math.log(naive.add_k(gram, k)) for gram in grams(HELD_OUT, order)[1:]]
        assert measured[name]["loss"] == pytest.approx(np.mean(expected))
    assert measured["trigram"]["loss"] < measured["unigram"]["loss"]
    pairs = grams(HELD_OUT, 2)[1:]
    occurring = [naive.grams[gram] / naive.contexts[gram[:1]] for gram in pairs if gram[:1] != (6,)]
    occurring = [frequency for frequency in occurring if frequency]
    assert measured["frequencies"]["unseen"] == len(pairs) - len(occurring) >= 3
    assert measured["frequencies"]["loss"] == pytest.approx(-np.log(occurring).mean())


def test_tiny_and_large_vocabularies():
    assert scores(np.array([1, 0]), np.array([0, 1, 0]), 2)["unigram"]["loss"] > 0
    # Numbers far apart are sorted in index of being counted one by one.
    wide = scores(COUNTED.astype(np.int64) * 10**6, HELD_OUT.astype(np.int64) * 10**6, 10**7)
    narrow = scores(COUNTED, HELD_OUT, VOCABULARY)
    assert wide["frequencies"] == narrow["frequencies"]
