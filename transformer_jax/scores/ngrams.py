"""N-gram models of tokens and of residues, the floor of a language model."""

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Int, Int64, Integer
from scipy import optimize

# --------------------------------------------------------------------------------------------------
# N-gram models: the probability of a token from counts of the n - 1 tokens before it.
#
# They are the floor of a language model (Jurafsky & Martin, "Speech and Language Processing",
# chapter 3). A shorter context takes the place of one that the counted text does not have.

_MOST_HELD_OUT = 2**17  # tokens that smoothing is fitted on
_ROUNDS = 100  # of expectation maximization, at most
_LEAST_CHANGE = 1e-4  # of a weight; smaller changes end it
_BINS = 64  # of contexts, by the power of two of their occurrences
# The range of the counts that are added.
_LEAST_ADDED, _MOST_ADDED = 1e-6, 1e3


@dataclasses.dataclass(frozen=True)
class Occurrences:
    """How often a counted text has the n-grams of a text of N tokens, and their contexts.

    Row n - 1 of `grams` and `contexts` (orders, N) is for the n-grams that end with each token. An
    n-gram that begins before the text counts as one that does not occur.
    """

    grams: Int64[np.ndarray, "orders N"]
    contexts: Int64[np.ndarray, "orders N"]
    vocab_size: int

    @functools.cached_property
    def frequencies(self) -> Float64[np.ndarray, "orders N"]:
        """The relative frequencies (maximum likelihood); 0 for an n-gram that does not occur."""
        return self.grams / np.maximum(self.contexts, 1)

    def add_k(self, order: int, k: float) -> Float64[np.ndarray, " N"]:
        """Returns the probabilities where each n-gram occurs `k` times more (Lidstone 1920)."""
        grams, contexts = self.grams[order - 1], self.contexts[order - 1]
        return (grams + k) / (contexts + k * self.vocab_size)

    def interpolated(
        self, weights: Float64[np.ndarray, "orders bins"]
    ) -> Float64[np.ndarray, " N"]:
        """Returns the probabilities of Jelinek & Mercer 1980.

        p_n = w p_ML + (1 - w) p_(n - 1), where p_0 is uniform. The weight w is that of the order
        and of the bin of the context's occurrences. Bin 0, of unseen contexts, must have weight 0.
        """
        return self._by_order(self._chosen(weights))[-1]

    def fitted_k(self, order: int) -> float:
        """Returns the `k` of `add_k` with which this text is the most likely."""

        def loss(log_k: float) -> float:
            return -float(np.log(self.add_k(order, math.exp(log_k))).mean())

        bounds = (math.log(_LEAST_ADDED), math.log(_MOST_ADDED))
        return math.exp(optimize.minimize_scalar(loss, bounds=bounds, method="bounded").x)

    def fitted_weights(self) -> Float64[np.ndarray, "orders bins"]:
        """Returns the weights of `interpolated` for this text, by expectation maximization.

        Half a token more for each choice keeps them above 0 and below 1: no token is impossible.
        A bin that this text does not have gets the weight of the bin below it.
        """
        weights = np.full((len(self.grams), _BINS), 0.5)
        weights[:, 0] = 0.0
        for _ in range(_ROUNDS):
            before, weights = weights, self._maximized(self._chosen(weights))
            if np.abs(weights - before).max() < _LEAST_CHANGE:
                break
        return weights

    def _chosen(self, weights):
        """Returns the weight of each n-gram (orders, N)."""
        return np.take_along_axis(weights, self._bins, axis=1)

    @functools.cached_property
    def _bins(self) -> Integer[np.ndarray, "orders N"]:
        """0 for an unseen context, b for one of 2^(b - 1) to 2^b - 1 occurrences."""
        return np.frexp(self.contexts)[1]

    def _by_order(self, chosen) -> list[np.ndarray]:
        """Returns p_0 to p_n."""
        estimates = [np.full(self.grams.shape[1], 1 / self.vocab_size)]
        for weight, frequency in zip(chosen, self.frequencies):
            estimates.append(weight * frequency + (1 - weight) * estimates[-1])
        return estimates

    def _maximized(self, chosen):
        """Returns the weights after a round of expectation maximization."""
        by_order = self._by_order(chosen)
        own = chosen * self.frequencies
        bins = self._bins
        # The probability that the estimate of an order, or of a lower one, gives the token.
        reached = np.ones(self.grams.shape[1])
        weights = np.zeros((len(own), _BINS))
        for row in reversed(range(len(own))):
            taken = reached * own[row] / by_order[row + 1]
            totals = np.bincount(bins[row], reached, _BINS)
            weights[row] = (np.bincount(bins[row], taken, _BINS) + 0.5) / (totals + 1)
            weights[row] = weights[row][_last_nonzero(totals)]
            reached = reached - taken
        weights[:, 0] = 0.0
        return weights


def _last_nonzero(totals: np.ndarray) -> np.ndarray:
    """Returns, for each place, the last place up to it that is not 0; 0 where there is none."""
    return np.maximum.accumulate(np.where(totals > 0, np.arange(len(totals)), 0))


@dataclasses.dataclass(frozen=True)
class NGrams:
    """The counts of a text's n-grams of the orders 1, 2 and so on.

    An n-gram is the number `context * vocab_size + token`. Its context is the place of the
    (n - 1)-gram before the token in the table of that order. The empty context is 0.
    """

    vocab_size: int
    # For each order: the n-grams that occur, in order, and how often.
    tables: tuple[tuple[np.ndarray, np.ndarray], ...]

    @classmethod
    def count(cls, tokens: Integer[np.ndarray, " N"], order: int, vocab_size: int) -> "NGrams":
        """Counts the n-grams of up to `order` tokens in a text."""
        contexts = np.zeros(len(tokens), np.int64)
        tables = []
        for _ in range(order):
            numbers = _numbers(contexts, tokens, vocab_size)
            ngrams, places, counts = _distinct(numbers[numbers >= 0])
            tables.append((ngrams, counts))
            within = np.full(len(tokens), -1)
            within[numbers >= 0] = places
            contexts = _before(within)
        return cls(vocab_size, tuple(tables))

    def occurrences(self, tokens: Integer[np.ndarray, " N"]) -> Occurrences:
        """Returns how often the counted text has the n-grams of another text."""
        contexts = np.zeros(len(tokens), np.int64)
        size_before = 1  # contexts of the first order
        rows = []
        for ngrams, counts in self.tables:
            numbers = _numbers(contexts, tokens, self.vocab_size)
            places = np.searchsorted(ngrams, numbers)
            occurs = np.append(ngrams, -2)[places] == numbers  # no number is -2
            of_context = np.bincount(ngrams // self.vocab_size, counts, size_before)
            of_context = np.append(of_context.astype(np.int64), 0)  # of the context -1
            rows.append((np.where(occurs, np.append(counts, 0)[places], 0), of_context[contexts]))
            contexts = _before(np.where(occurs, places, -1))
            size_before = len(ngrams)
        grams, of_contexts = (np.stack(parts) for parts in zip(*rows))
        return Occurrences(grams, of_contexts, self.vocab_size)

    def following(
        self, context: Sequence[int], weights: Float64[np.ndarray, "orders bins"]
    ) -> Float64[np.ndarray, " V"]:
        """Returns the probability of each token after `context`, see `Occurrences.interpolated`."""
        estimate = np.full(self.vocab_size, 1 / self.vocab_size)
        for order, (ngrams, counts) in enumerate(self.tables[: len(context) + 1]):
            place = self._place(context[len(context) - order :])
            if place is None:
                break
            bounds = np.array([place, place + 1]) * self.vocab_size
            first, last = np.searchsorted(ngrams, bounds)
            total = counts[first:last].sum()
            frequency = np.zeros(self.vocab_size)
            frequency[ngrams[first:last] - bounds[0]] = counts[first:last] / max(total, 1)
            weight = weights[order, np.frexp(total)[1]]
            estimate = weight * frequency + (1 - weight) * estimate
        return estimate

    def _place(self, tokens: Sequence[int]) -> int | None:
        """Returns the place of an n-gram in the table of its order; None where it does not occur.

        That of the empty one is 0.
        """
        place = 0
        for (ngrams, _), token in zip(self.tables, tokens):
            number = place * self.vocab_size + token
            place = int(np.searchsorted(ngrams, number))
            if place == len(ngrams) or ngrams[place] != number:
                return None
        return place


def _numbers(
    contexts: Int64[np.ndarray, " N"], tokens: Integer[np.ndarray, " N"], vocab_size: int
) -> Int64[np.ndarray, " N"]:
    """Returns the number of the n-gram at each token; -1 after an unknown context."""
    return np.where(contexts < 0, -1, contexts * vocab_size + tokens)


def _before(places: Int[np.ndarray, " N"]) -> Int64[np.ndarray, " N"]:
    """Returns, as contexts, the places one token earlier."""
    return np.concatenate([[-1], places[:-1]]).astype(np.int64)


def _distinct(numbers: Int64[np.ndarray, " N"]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the distinct numbers in order, the place of each number there, and their counts."""
    if not len(numbers) or numbers.max() > 4 * len(numbers):
        return np.unique(numbers, return_inverse=True, return_counts=True)
    # Few numbers need no sorting.
    counts = np.bincount(numbers)
    return np.nonzero(counts)[0], (np.cumsum(counts > 0) - 1)[numbers], counts[counts > 0]


def scores(
    counted: Integer[np.ndarray, " N"], text: Integer[np.ndarray, " T"], vocab_size: int
) -> dict[str, dict[str, float]]:
    """Returns the losses of n-gram models on the tokens of a text after the first, in nats.

    The models count the tokens `counted`. A unigram and a bigram model add `k`, and a trigram model
    is interpolated. The last tenth of `counted`, left out of the counts at first, fits `k` and the
    weights. `frequencies` has the relative frequencies of bigrams: their loss over those that the
    counts have, and the number of the others, whose probability is 0.
    """
    split = len(counted) - min(max(len(counted) // 10, 1), _MOST_HELD_OUT)
    held_out = NGrams.count(counted[:split], 3, vocab_size).occurrences(counted[split:])
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


def _loss(probabilities: np.ndarray) -> float:
    return -float(np.log(probabilities).mean())


# --------------------------------------------------------------------------------------------------
# N-gram models of residues, the floor of a protein language model (Rives et al. 2021, table 1).

_ORDER = 3
_MOST_RESIDUES = 2**17  # tokens that the weights are fitted on


def residue_scores(
    counted: Integer[np.ndarray, " N"],
    text: Integer[np.ndarray, " T"],
    vocab_size: int,
    end: int,
) -> dict[str, dict[str, float]]:
    """Returns the loss of interpolated trigram models on the residues of proteins, in nats.

    Both texts are proteins with the token `end` in front of and behind each. The models count the
    first. "left" predicts a residue from the two before it, "both_sides" from its two neighbours,
    which are never masked. "ece" is the exponential of the loss. The last tenth of `counted` fits
    the weights of the orders.
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
    """Returns the occurrences of residues after (left neighbour, right neighbour)."""
    of_counted = _triples(counted, vocab_size, end)
    of_text = _triples(text, vocab_size, end)
    counts = NGrams.count(of_counted, _ORDER, 3 * vocab_size).occurrences(of_text)
    contexts = counts.contexts[:, 2::3].copy()
    # A third of the tokens are residues; the others are neighbours.
    contexts[0] //= 3
    return Occurrences(counts.grams[:, 2::3], contexts, vocab_size)


def _triples(text, vocab_size: int, end: int) -> np.ndarray:
    """Returns (left neighbour, right neighbour, residue) of all residues, as one text.

    Neighbours have tokens of their own.
    """
    places = np.flatnonzero(text[1:-1] != end) + 1
    sides = (text[places - 1] + vocab_size, text[places + 1] + 2 * vocab_size, text[places])
    return np.stack(sides, axis=1).reshape(-1)
