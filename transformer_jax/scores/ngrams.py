"""N-gram models of tokens and of residues, as baselines for language models."""

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Int, Int64, Integer
from scipy import optimize

# --------------------------------------------------------------------------------------------------
# N-gram models, which predict a token from counts of the n - 1 tokens before it (Jurafsky & Martin,
# "Speech and Language Processing", chapter 3). For a context that does not occur in the counted
# text, a shorter context is used.

_MOST_HELD_OUT = 2**17  # most tokens on which smoothing is fitted; its few parameters need no more
_ROUNDS = 100  # most iterations, because expectation maximization may converge slowly
_LEAST_CHANGE = 1e-4  # stop if no weight changes by more than this
_BINS = 64  # one for 0 and one for each power of two that an int64 count can reach
# The range in which `k` of add-k smoothing is searched: a bounded search needs finite ends, and k =
# 0 would give unseen n-grams the probability 0.
_LEAST_ADDED, _MOST_ADDED = 1e-6, 1e3


@dataclasses.dataclass(frozen=True)
class Occurrences:
    """For each token of a text, how often its n-grams and their contexts occur in a counted text.

    Row n - 1 of `grams` and `contexts` is for the n-grams that end with each of the N tokens. An
    n-gram that would start before the text has 0 occurrences.
    """

    grams: Int64[np.ndarray, "orders N"]
    contexts: Int64[np.ndarray, "orders N"]
    vocab_size: int

    @functools.cached_property
    def frequencies(self) -> Float64[np.ndarray, "orders N"]:
        """The maximum likelihood estimates; 0 for an n-gram that does not occur."""
        # A context that does not occur has no n-grams, either, and 0 / 1 is 0 instead of NaN.
        return self.grams / np.maximum(self.contexts, 1)

    def add_k(self, order: int, k: float) -> Float64[np.ndarray, " N"]:
        """Returns the probabilities with add-k smoothing (Lidstone 1920)."""
        grams, contexts = self.grams[order - 1], self.contexts[order - 1]
        return (grams + k) / (contexts + k * self.vocab_size)

    def interpolated(
        self, weights: Float64[np.ndarray, "orders bins"]
    ) -> Float64[np.ndarray, " N"]:
        """Returns the interpolated probabilities of Jelinek & Mercer 1980.

        p_n = w p_ML + (1 - w) p_(n - 1), where p_0 is uniform. The weight w depends on the order n,
        and on the bin of the number of occurrences of the context. The weights of bin 0, which is
        for contexts that do not occur, must be 0.
        """
        return self._by_order(self._chosen(weights))[-1]

    def fitted_k(self, order: int) -> float:
        """Returns the `k` of `add_k` that maximizes the likelihood of this text."""

        def loss(log_k: float) -> float:
            return -float(np.log(self.add_k(order, math.exp(log_k))).mean())

        # The search is over log k, because k may lie anywhere in nine powers of ten.
        bounds = (math.log(_LEAST_ADDED), math.log(_MOST_ADDED))
        return math.exp(optimize.minimize_scalar(loss, bounds=bounds, method="bounded").x)

    def fitted_weights(self) -> Float64[np.ndarray, "orders bins"]:
        """Returns the weights of `interpolated` that maximize the likelihood of this text.

        They are found by expectation maximization. A bin without tokens in this text gets the
        weight of the next lower bin that has some.
        """
        weights = np.full((len(self.grams), _BINS), 0.5)
        weights[:, 0] = 0.0
        for _ in range(_ROUNDS):
            before, weights = weights, self._maximized(self._chosen(weights))
            if np.abs(weights - before).max() < _LEAST_CHANGE:
                break
        return weights

    def _chosen(self, weights):
        """Returns the weight of each n-gram, (orders, N)."""
        return np.take_along_axis(weights, self._bins, axis=1)

    @functools.cached_property
    def _bins(self) -> Integer[np.ndarray, "orders N"]:
        """0 for a context that does not occur, b for 2^(b - 1) to 2^b - 1 occurrences."""
        return np.frexp(self.contexts)[1]

    def _by_order(self, chosen) -> list[np.ndarray]:
        """Returns p_0 to p_n."""
        estimates = [np.full(self.grams.shape[1], 1 / self.vocab_size)]
        for weight, frequency in zip(chosen, self.frequencies):
            estimates.append(weight * frequency + (1 - weight) * estimates[-1])
        return estimates

    def _maximized(self, chosen):
        """Returns the weights after an iteration of expectation maximization."""
        by_order = self._by_order(chosen)
        own = chosen * self.frequencies
        bins = self._bins
        # Posterior probability that the token was drawn from the estimate of this order or a lower
        # one, where the latent variable of a token is the order of the estimate.
        reached = np.ones(self.grams.shape[1])
        weights = np.zeros((len(own), _BINS))
        # From the highest order down, because a lower one is reached only if all higher ones are
        # not taken.
        for row in reversed(range(len(own))):
            taken = reached * own[row] / by_order[row + 1]
            totals = np.bincount(bins[row], reached, _BINS)
            # Half a token is added to both choices, so that a weight is neither 0 nor 1. With a
            # weight of 1, a token that does not follow a context would have probability 0.
            weights[row] = (np.bincount(bins[row], taken, _BINS) + 0.5) / (totals + 1)
            weights[row] = weights[row][_last_nonzero(totals)]
            reached = reached - taken
        weights[:, 0] = 0.0
        return weights


def _last_nonzero(totals: np.ndarray) -> np.ndarray:
    """Returns, for each index, the last index up to it with a total above 0; 0 if there is none."""
    return np.maximum.accumulate(np.where(totals > 0, np.arange(len(totals)), 0))


@dataclasses.dataclass(frozen=True)
class NGrams:
    """The counts of a text's n-grams of the orders 1, 2 and so on.

    An n-gram is encoded as the number `context * vocab_size + token`. Its context is the index of
    the (n - 1)-gram in front of the token in the table of that order; the empty context is 0. So
    numbers of n-grams stay below the length of the text times the size of the vocabulary, for any
    order.
    """

    vocab_size: int
    # For each order, the n-grams that occur, in ascending order, and their counts.
    tables: tuple[tuple[np.ndarray, np.ndarray], ...]

    @classmethod
    def count(cls, tokens: Integer[np.ndarray, " N"], order: int, vocab_size: int) -> "NGrams":
        """Counts the n-grams of up to `order` tokens in a text."""
        contexts = np.zeros(len(tokens), np.int64)
        tables = []
        for _ in range(order):
            numbers = _numbers(contexts, tokens, vocab_size)
            ngrams, indices, counts = _distinct(numbers[numbers >= 0])
            tables.append((ngrams, counts))
            in_table = np.full(len(tokens), -1)
            in_table[numbers >= 0] = indices
            contexts = _contexts(in_table)
        return cls(vocab_size, tuple(tables))

    def occurrences(self, tokens: Integer[np.ndarray, " N"]) -> Occurrences:
        """Returns how often the counted text has the n-grams of another text."""
        contexts = np.zeros(len(tokens), np.int64)
        num_contexts = 1  # the empty one
        rows = []
        for ngrams, counts in self.tables:
            numbers = _numbers(contexts, tokens, self.vocab_size)
            indices = np.searchsorted(ngrams, numbers)
            occurs = np.append(ngrams, -2)[indices] == numbers  # no number is -2
            context_counts = np.bincount(ngrams // self.vocab_size, counts, num_contexts)
            # The last entry is for the context -1, which is unknown.
            context_counts = np.append(context_counts.astype(np.int64), 0)
            gram_counts = np.where(occurs, np.append(counts, 0)[indices], 0)
            rows.append((gram_counts, context_counts[contexts]))
            contexts = _contexts(np.where(occurs, indices, -1))
            num_contexts = len(ngrams)
        all_grams, all_contexts = (np.stack(parts) for parts in zip(*rows))
        return Occurrences(all_grams, all_contexts, self.vocab_size)

    def following(
        self, context: Sequence[int], weights: Float64[np.ndarray, "orders bins"]
    ) -> Float64[np.ndarray, " V"]:
        """Returns the probability of each token after `context`; see `Occurrences.interpolated`."""
        estimate = np.full(self.vocab_size, 1 / self.vocab_size)
        for order, (ngrams, counts) in enumerate(self.tables[: len(context) + 1]):
            index = self._index(context[len(context) - order :])
            if index is None:
                break  # longer contexts do not occur either
            # The n-grams with the same context are consecutive in the table.
            bounds = np.array([index, index + 1]) * self.vocab_size
            first, last = np.searchsorted(ngrams, bounds)
            total = counts[first:last].sum()
            frequency = np.zeros(self.vocab_size)
            frequency[ngrams[first:last] - bounds[0]] = counts[first:last] / max(total, 1)
            weight = weights[order, np.frexp(total)[1]]
            estimate = weight * frequency + (1 - weight) * estimate
        return estimate

    def _index(self, tokens: Sequence[int]) -> int | None:
        """Returns the index of an n-gram in the table of its order; None if it does not occur.

        The index of the empty n-gram is 0.
        """
        index = 0
        for (ngrams, _), token in zip(self.tables, tokens):
            number = index * self.vocab_size + token
            index = int(np.searchsorted(ngrams, number))
            if index == len(ngrams) or ngrams[index] != number:
                return None
        return index


def _numbers(
    contexts: Int64[np.ndarray, " N"], tokens: Integer[np.ndarray, " N"], vocab_size: int
) -> Int64[np.ndarray, " N"]:
    """Returns the number of the n-gram that ends with each token; -1 after an unknown context."""
    return np.where(contexts < 0, -1, contexts * vocab_size + tokens)


def _contexts(indices: Int[np.ndarray, " N"]) -> Int64[np.ndarray, " N"]:
    """Returns each token's context, which is the n-gram that ends with the token before."""
    return np.concatenate([[-1], indices[:-1]]).astype(np.int64)


def _distinct(numbers: Int64[np.ndarray, " N"]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the distinct numbers in order, the index of each number there, and their counts."""
    if not len(numbers) or numbers.max() > 4 * len(numbers):
        return np.unique(numbers, return_inverse=True, return_counts=True)
    # Small numbers can be counted without sorting.
    counts = np.bincount(numbers)
    return np.nonzero(counts)[0], (np.cumsum(counts > 0) - 1)[numbers], counts[counts > 0]


def scores(
    counted: Integer[np.ndarray, " N"], text: Integer[np.ndarray, " T"], vocab_size: int
) -> dict[str, dict[str, float]]:
    """Returns the losses of n-gram models on the tokens of a text after the first, in nats.

    The models are counted on `counted`: a unigram and a bigram model with add-k smoothing, and an
    interpolated trigram model. `k` and the weights are fitted on the last tenth of `counted`, with
    counts of the rest. The entry "frequencies" is for unsmoothed bigrams: the loss over the bigrams
    that occur in `counted`, and the number of the others, whose probability is 0.
    """
    held_out = _held_out(counted, vocab_size)
    occurrences = NGrams.count(counted, 3, vocab_size).occurrences(text)
    losses = {}
    for order, name in ((1, "unigram"), (2, "bigram")):
        k = held_out.fitted_k(order)
        losses[name] = {"loss": _loss(occurrences.add_k(order, k)[1:]), "k": k}
    losses["trigram"] = {"loss": _loss(occurrences.interpolated(held_out.fitted_weights())[1:])}
    frequencies = occurrences.frequencies[1, 1:]
    occurring = frequencies[frequencies > 0]
    if len(occurring):
        unseen = len(frequencies) - len(occurring)
        losses["frequencies"] = {"loss": _loss(occurring), "unseen": unseen}
    return losses


def log_probabilities(
    counted: Integer[np.ndarray, " N"], texts: Sequence[Sequence[int]], vocab_size: int, end: int
) -> list[Float64[np.ndarray, " T"]]:
    """Returns the log-probability of each token of each text, by the interpolated trigram model.

    A text follows `end`, the separator of documents. The model is that of `scores`.
    """
    weights = _held_out(counted, vocab_size).fitted_weights()
    # Two separators, because the tokens of one text must not be the context of the next.
    joined = np.concatenate([np.array([end, end, *ids], np.int64) for ids in texts])
    occurrences = NGrams.count(counted, 3, vocab_size).occurrences(joined)
    log_probs = np.log(occurrences.interpolated(weights))
    stops = np.cumsum([2 + len(ids) for ids in texts])
    return [log_probs[stop - len(ids) : stop] for ids, stop in zip(texts, stops)]


def _held_out(counted: Integer[np.ndarray, " N"], vocab_size: int) -> Occurrences:
    """Returns the occurrences of the last tenth of a text in the rest, to fit smoothing on."""
    split = len(counted) - min(max(len(counted) // 10, 1), _MOST_HELD_OUT)
    return NGrams.count(counted[:split], 3, vocab_size).occurrences(counted[split:])


def _loss(probabilities: np.ndarray) -> float:
    return -float(np.log(probabilities).mean())


# --------------------------------------------------------------------------------------------------
# N-gram models of residues, as baselines for protein language models (Rives et al. 2021, table 1).
# A masked model also sees the residues to the right, and so does one of these baselines.

_ORDER = 3
_MOST_RESIDUES = 2**17  # most tokens on which the weights are fitted; so few need no more


def residue_scores(
    counted: Integer[np.ndarray, " N"],
    text: Integer[np.ndarray, " T"],
    vocab_size: int,
    end: int,
) -> dict[str, dict[str, float]]:
    """Returns the losses of interpolated trigram models on the residues of proteins, in nats.

    Both texts are proteins with the token `end` before and after each. The models are counted on
    `counted`. "left" predicts a residue from the two residues before it, and "both_sides" from the
    residue on either side, which are never masked. "ece" is the exponential of the loss. The
    weights are fitted on the last tenth of `counted`, with counts of the rest.
    """
    split = len(counted) - min(max(len(counted) // 10, 1), _MOST_RESIDUES)
    results = {}
    for name, occurrences in (("left", _left), ("both_sides", _both_sides)):
        fitted = occurrences(counted[:split], counted[split:], vocab_size, end)
        measured = occurrences(counted, text, vocab_size, end)
        probabilities = measured.interpolated(fitted.fitted_weights())
        loss = -float(np.log(probabilities).mean())
        results[name] = {"loss": loss, "ece": math.exp(loss)}
    return results


def _left(counted, text, vocab_size: int, end: int) -> Occurrences:
    """Returns the occurrences of the n-grams that end with a residue of the text."""
    counts = NGrams.count(counted, _ORDER, vocab_size).occurrences(text)
    is_residue = text != end
    return Occurrences(counts.grams[:, is_residue], counts.contexts[:, is_residue], vocab_size)


def _both_sides(counted, text, vocab_size: int, end: int) -> Occurrences:
    """Returns the occurrences of residues given (left neighbor, right neighbor)."""
    counted_triples = _triples(counted, vocab_size, end)
    text_triples = _triples(text, vocab_size, end)
    counts = NGrams.count(counted_triples, _ORDER, 3 * vocab_size).occurrences(text_triples)
    contexts = counts.contexts[:, 2::3].copy()
    # The empty context counts all tokens, of which a third are residues and the others neighbors.
    contexts[0] //= 3
    return Occurrences(counts.grams[:, 2::3], contexts, vocab_size)


def _triples(text, vocab_size: int, end: int) -> np.ndarray:
    """Returns (left neighbor, right neighbor, residue) of all residues, as one text.

    Left and right neighbors have tokens of their own, so that they are not confused with residues.
    """
    indices = np.flatnonzero(text[1:-1] != end) + 1
    sides = (text[indices - 1] + vocab_size, text[indices + 1] + 2 * vocab_size, text[indices])
    return np.stack(sides, axis=1).reshape(-1)
