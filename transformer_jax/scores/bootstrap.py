"""The bootstrap (Efron 1979): intervals of a score, and of the difference of two systems' scores.

Examples are drawn with replacement, as many as there are. The draws are those of sacreBLEU.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from jaxtyping import Float64

_SAMPLES = 1000
_SEED = 12345
_LEVEL = 0.95


class Measure(Protocol):
    """Scores of a corpus that follow from sums over its examples."""

    def statistics(self, outputs: Sequence[str], references: Sequence[str]) -> np.ndarray:
        """Returns float64 (N, S): the addends of each of the N examples."""

    def scores(self, sums: np.ndarray, count: int) -> dict[str, float]:
        """Returns the scores of `count` examples, from the sums (S,) of their statistics."""


def scores(measure: Measure, statistics: Float64[np.ndarray, "N S"]) -> dict[str, float]:
    """Returns the scores of all examples. Without examples, the statistics have no sum."""
    return measure.scores(statistics.sum(axis=0), len(statistics))


def intervals(
    measure: Measure, statistics: Float64[np.ndarray, "N S"]
) -> dict[str, tuple[float, float]]:
    """Returns the interval of each score that holds 95 % of the samples (percentiles)."""
    return {name: _interval(sample) for name, sample in samples(measure, statistics).items()}


def comparison(
    measure: Measure, first: Float64[np.ndarray, "N S"], second: Float64[np.ndarray, "N S"]
) -> dict[str, dict]:
    """Returns the paired bootstrap of each score of two systems on the same examples.

    Each result has the `score`, that of the other system (`against`), their `difference`, its
    95 % `interval`, and the two-sided `p_value`: the share of samples whose difference is at least
    as far from the mean difference as that is from 0 (Koehn 2004; Efron & Tibshirani 1993, chapter
    16).
    """
    of_first, of_second = samples(measure, first), samples(measure, second)
    ours, theirs = scores(measure, first), scores(measure, second)
    results = {}
    for name in ours:
        sampled = of_first[name] - of_second[name]
        difference = ours[name] - theirs[name]
        # Rounding must not hide that two systems are equal.
        is_as_far = np.abs(sampled - sampled.mean()) >= abs(difference) - 1e-9
        results[name] = {
            "score": ours[name],
            "against": theirs[name],
            "difference": difference,
            "interval": _interval(sampled),
            # One is added for the corpus itself (Davison & Hinkley 1997, section 4.2.5).
            "p_value": float((is_as_far.sum() + 1) / (_SAMPLES + 1)),
        }
    return results


def samples(
    measure: Measure, statistics: Float64[np.ndarray, "N S"]
) -> dict[str, Float64[np.ndarray, " R"]]:
    """Returns each score of R samples of the examples. Equal N give equal draws."""
    count = len(statistics)
    rng = np.random.default_rng(_SEED)
    sampled = []
    for drawn in (rng.choice(count, count) for _ in range(_SAMPLES)):
        times = np.bincount(drawn, minlength=count)
        sampled.append(measure.scores(times @ statistics, count))
    return {name: np.array([sample[name] for sample in sampled]) for name in sampled[0]}


def _interval(sample: Float64[np.ndarray, " R"]) -> tuple[float, float]:
    tail = 100 * (1 - _LEVEL) / 2
    low, high = np.percentile(sample, [tail, 100 - tail])
    return float(low), float(high)
