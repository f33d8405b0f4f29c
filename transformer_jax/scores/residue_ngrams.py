"""N-gram models of residues, the floor of a protein language model (Rives et al. 2021, table 1)."""

import math

import numpy as np
from jaxtyping import Integer

from transformer_jax.scores.ngrams import NGrams, Occurrences

_ORDER = 3
_MOST_HELD_OUT = 2**17  # tokens that the weights are fitted on


def scores(
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
    split = len(counted) - min(max(len(counted) // 10, 1), _MOST_HELD_OUT)
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
