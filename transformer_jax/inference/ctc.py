"""Decoding connectionist temporal classification: greedy, and by prefix beam search.

The output of T frames is a path of T tokens, one of which is the blank. A path stands for the
sequence that is left when repeats are joined and blanks removed (Graves et al. 2006, section 3).
"""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

Tokens = tuple[int, ...]
# From the tokens so far, of a sequence that begins and ends with a boundary of words, to the
# log-probabilities (V,) of the next.
LanguageModel = Callable[[Tokens], np.ndarray]
_IMPOSSIBLE = -math.inf


class Decoded(NamedTuple):
    """A sequence of tokens, and its score: see `PrefixBeam`."""

    tokens: Tokens
    score: float


def greedy(log_probs: Float[np.ndarray, "T V"], blank: int = 0) -> Decoded:
    """Returns the sequence of the likeliest path, and the log-probability of that path."""
    path = log_probs.argmax(axis=1)
    begins = np.append(True, path[1:] != path[:-1]) if len(path) else np.zeros(0, bool)
    tokens = path[begins & (path != blank)]
    return Decoded(tuple(tokens.tolist()), float(log_probs.max(axis=1, initial=-np.inf).sum()))


class _Prefix(NamedTuple):
    """The log-probabilities of the paths of a prefix that end with a blank, and of the others."""

    blank: float
    other: float

    @property
    def both(self) -> float:
        return np.logaddexp(self.blank, self.other)


_NONE = _Prefix(_IMPOSSIBLE, _IMPOSSIBLE)


@dataclasses.dataclass(frozen=True)
class PrefixBeam:
    """Searches the likeliest sequences (Graves & Jaitly 2014, algorithm 1; Hannun et al. 2014).

    The score of a sequence is log p(sequence | sound) + lm_weight log p(sequence) + length_bonus
    times its number of tokens. Without a beam of all prefixes, paths of pruned prefixes are lost.

    Attributes:
      beam: prefixes that are left after each frame.
      blank: the number of the blank.
      language_model: see `LanguageModel`; None: without one.
      lm_weight: the factor of its log-probability.
      length_bonus: what each token adds to the score.
      boundary: the token in front of a sequence and behind it, for the language model.
      least: a token whose log-probability in a frame is below it is not tried.
    """

    beam: int
    blank: int = 0
    language_model: LanguageModel | None = None
    lm_weight: float = 0.0
    length_bonus: float = 0.0
    boundary: int = 0
    least: float = -12.0

    def __call__(self, log_probs: Float[np.ndarray, "T V"], n_best: int = 1) -> list[Decoded]:
        """Returns the `n_best` sequences, the best first."""
        prior = {(): 0.0}  # of each prefix, from language model and length
        prefixes = {(): _Prefix(0.0, _IMPOSSIBLE)}
        for frame in log_probs.astype(np.float64):
            extended = self._extended(prefixes, frame, prior)
            ranked = sorted(extended, key=lambda p: prior[p] + extended[p].both, reverse=True)
            prefixes = {prefix: extended[prefix] for prefix in ranked[: self.beam]}
            prior = {prefix: prior[prefix] for prefix in prefixes}
        scores = {
            prefix: float(state.both + prior[prefix] + self._end(prefix))
            for prefix, state in prefixes.items()
        }
        ranked = sorted(scores, key=scores.get, reverse=True)
        return [Decoded(prefix, scores[prefix]) for prefix in ranked[:n_best]]

    def _extended(self, prefixes: dict, frame: np.ndarray, prior: dict) -> dict[Tokens, _Prefix]:
        """Returns the prefixes after a frame, and adds the scores of the new ones to `prior`."""
        extended: dict[Tokens, list[float]] = {}
        tried = [int(token) for token in np.flatnonzero(frame > self.least) if token != self.blank]

        def add(prefix: Tokens, end: int, value: float) -> None:
            state = extended.setdefault(prefix, [*_NONE])
            state[end] = np.logaddexp(state[end], value)

        for prefix, state in prefixes.items():
            add(prefix, 0, state.both + frame[self.blank])
            if prefix:
                add(prefix, 1, state.other + frame[prefix[-1]])
            for token in tried:
                # A token that repeats the last one begins anew after a blank alone.
                before = state.blank if prefix and token == prefix[-1] else state.both
                if before == _IMPOSSIBLE:
                    continue
                longer = (*prefix, token)
                add(longer, 1, before + frame[token])
                if longer not in prior:
                    prior[longer] = prior[prefix] + self._added(prefix, token)
        return {prefix: _Prefix(*state) for prefix, state in extended.items()}

    def _added(self, prefix: Tokens, token: int) -> float:
        """Returns what a token after a prefix adds to the score."""
        if self.language_model is None:
            return self.length_bonus
        log_prob = self.language_model((self.boundary, *prefix))[token]
        return self.length_bonus + self.lm_weight * float(log_prob)

    def _end(self, prefix: Tokens) -> float:
        """Returns what the end of a sequence adds to its score."""
        if self.language_model is None or not prefix:
            return 0.0
        log_prob = self.language_model((self.boundary, *prefix))[self.boundary]
        return self.lm_weight * float(log_prob)
