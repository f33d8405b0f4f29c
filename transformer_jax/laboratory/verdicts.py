"""Paired differences of scores over seeds: intervals, tests, and verdicts.

Pair i of a comparison trains every arm with seed i. The arms share what their configs allow: rows,
masks, dropout keys and initial values, so that much of a score's variation is common to a pair and
drops out of its difference. All statistics here are of these differences.

Either the number of pairs is fixed, and Student's t gives the intervals and tests; or the
experiment is looked at after every pair and stopped when it is decided, and a confidence sequence
replaces the interval, because a t interval that is looked at repeatedly is wrong far more often
than it promises.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64
from scipy import stats

ALPHA = 0.05  # the rate of false verdicts that is allowed
_POWER = 0.8  # of the smallest difference that is called detectable, as is usual
# The variance of the mixture over effect sizes (the mean over the standard deviation) in
# `sequence_radius`. Seeds explain little of a clear difference between two models, so effects are
# often above 1, and 3 gives the shortest intervals from 5 to 20 pairs.
_MIXTURE = 3.0
_MOST = 10_000  # pairs that are still worth naming as a remedy
# Pairs from which equal differences count as certain. Two of them may be equal by chance, as
# accuracies on few examples are.
FEWEST_EXACT = 4


@dataclasses.dataclass(frozen=True)
class Mean:
    """The mean of a score over seeds.

    Attributes:
      low, high: its 95 % interval by Student's t; infinite for a single seed.
    """

    values: tuple[float, ...]
    mean: float
    deviation: float
    low: float
    high: float


def mean(values: Sequence[float]) -> Mean:
    """Returns the mean of a score over seeds, with its interval."""
    array = np.asarray(values, float)
    deviation = _deviation(array)
    radius = _radius(deviation, len(array), ALPHA)
    center = float(array.mean())
    return Mean(tuple(map(float, array)), center, deviation, center - radius, center + radius)


@dataclasses.dataclass(frozen=True)
class Difference:
    """The difference of a score between two arms, b minus a, over pairs of seeds.

    Attributes:
      pairs: the number of pairs.
      mean, deviation: of the differences.
      low, high: an interval of the mean difference: by Student's t, or a confidence sequence if the
        experiment is `sequential`.
      p: the probability of so large a t if the means are equal, two-sided; None if `sequential`.
      removed: the share of the variance of an unpaired difference that pairing removed, negative if
        it added to it; None where scores do not vary.
      detectable: the smallest difference that a test with so many pairs finds four times out of
        five.
      sequential: whether the interval may be looked at after every pair.
    """

    pairs: int
    mean: float
    deviation: float
    low: float
    high: float
    p: float | None
    removed: float | None
    detectable: float
    sequential: bool

    @property
    def is_identical(self) -> bool:
        """Whether the two arms have the same score in every pair."""
        return self.mean == 0 and self.deviation == 0


def difference(
    a: Sequence[float], b: Sequence[float], *, alpha: float = ALPHA, sequential: bool = False
) -> Difference:
    """Returns the paired difference b - a of a score, with an interval of level 1 - alpha.

    Raises ValueError unless both have equally many scores, and at least one.
    """
    a, b = np.asarray(a, float), np.asarray(b, float)
    if len(a) != len(b) or not len(a):
        raise ValueError(f"{len(a)} and {len(b)} scores: pairs need equally many")
    differences = b - a
    pairs, center, deviation = len(a), float(differences.mean()), _deviation(differences)
    if deviation == 0 and center != 0 and pairs < FEWEST_EXACT:
        radius, p = math.inf, None if sequential else 1.0
    elif sequential:
        radius, p = sequence_radius(deviation, pairs, alpha), None
    else:
        radius, p = _radius(deviation, pairs, alpha), _p_value(center, deviation, pairs)
    unpaired = a.var(ddof=1) + b.var(ddof=1) if pairs > 1 else 0.0
    removed = float(1 - deviation**2 / unpaired) if unpaired > 0 else None
    return Difference(
        pairs,
        center,
        deviation,
        center - radius,
        center + radius,
        p,
        removed,
        detectable(deviation, pairs),
        sequential,
    )


def _deviation(values: Float64[np.ndarray, " N"]) -> float:
    # The differences of equal numbers are exactly 0, and so must their deviation be: NumPy's mean
    # of n equal numbers may differ from them in the last bit.
    if len(values) < 2 or np.ptp(values) == 0:
        return 0.0
    return float(values.std(ddof=1))


def _radius(deviation: float, count: int, alpha: float) -> float:
    """Returns half of the width of a t interval."""
    if count < 2:
        return math.inf
    return float(stats.t.ppf(1 - alpha / 2, count - 1)) * deviation / math.sqrt(count)


def _p_value(center: float, deviation: float, count: int) -> float:
    if count < 2:
        return 1.0
    if deviation == 0:
        return 1.0 if center == 0 else 0.0
    t = abs(center) / (deviation / math.sqrt(count))
    return float(2 * stats.t.sf(t, count - 1))


def detectable(deviation: float, count: int) -> float:
    """Returns the difference that a two-sided t test of `count` pairs finds four times out of five.

    It is the usual approximation (t_(1 - alpha/2) + t_power) times the standard error.
    """
    if count < 2:
        return math.inf
    quantiles = stats.t.ppf([1 - ALPHA / 2, _POWER], count - 1)
    return float(quantiles.sum()) * deviation / math.sqrt(count)


def pairs_needed(deviation: float, wanted: float) -> int | None:
    """Returns the number of pairs with which a difference `wanted` is detectable.

    None stands for more than 10,000.
    """
    needed = _first(lambda count: detectable(deviation, count) <= wanted, 2)
    return None if needed > _MOST else needed


def sequence_radius(deviation: float, count: int, alpha: float = ALPHA) -> float:
    """Returns half of the width of a confidence sequence for a mean, after `count` observations.

    With probability 1 - alpha the mean is inside the interval at every count at once, so one may
    look after each observation and stop at will. It inverts the t test whose evidence is a Bayes
    factor: a mixture, over effect sizes from N(0, g), of likelihood ratios of the t statistic
    (Gönen et al. 2005; as an e-value that is valid at any time: Pérez-Ortiz et al. 2024, Wang &
    Ramdas 2025). The ratio

      E(t) = (1 + n g)^(-1/2) ((1 + t^2 / v) / (1 + t^2 / (v (1 + n g))))^((v + 1) / 2)

    with v = n - 1 exceeds 1 / alpha at any n with probability at most alpha if the observations are
    normal. Among other laws, it is conservative for symmetric ones; skewed differences can exceed
    it (docs/compare.md has the rates).
    """
    if count < 2:
        return math.inf
    degrees, shrunk = count - 1, 1 / (1 + count * _MIXTURE)
    bound = (1 / (alpha * math.sqrt(shrunk))) ** (2 / count)
    if bound * shrunk >= 1:
        return math.inf  # so few observations exclude nothing
    t = math.sqrt(degrees * (bound - 1) / (1 - bound * shrunk))
    return t * deviation / math.sqrt(count)


# ---------------------------------------------------------------------------------------- verdicts

BETTER, WORSE = "better", "worse"
SAME = "no difference that matters"
IDENTICAL = "identical in every pair"
UNDECIDED = "undecided"


def verdicts(
    differences: Sequence[Difference], lower_is_better: Sequence[bool], margin: Sequence[float]
) -> list[str]:
    """Returns the verdict on each difference, which together are wrong with probability 5 %.

    An arm is better or worse than the first one if the means differ: by Holm's procedure (1979), or
    because an interval excludes 0 if it is a confidence sequence, or if there is a margin. There is
    no difference that matters if the whole interval lies within +-margin; a margin of 0 gives no
    such verdict. The levels of these intervals must already be divided by the number of differences
    (`level`).
    """
    rejected = holm([1.0 if each.p is None else each.p for each in differences])
    # Holm's procedure spends the whole level on better and worse, and would leave none for the
    # verdict about the margin.
    by_interval = any(margin) or any(each.sequential for each in differences)
    result = []
    for number, each in enumerate(differences):
        differs = not each.low <= 0 <= each.high if by_interval else rejected[number]
        is_lower = each.mean < 0
        if each.is_identical:
            result.append(IDENTICAL if each.pairs > 1 else UNDECIDED)
        # First, because a difference may be certain and yet too small to matter.
        elif margin[number] and -margin[number] <= each.low and each.high <= margin[number]:
            result.append(SAME)
        elif differs:
            result.append(BETTER if is_lower == lower_is_better[number] else WORSE)
        else:
            result.append(UNDECIDED)
    return result


def level(count: int) -> float:
    """Returns the level at which each of `count` differences may be wrong (Bonferroni)."""
    return ALPHA / max(count, 1)


def holm(p_values: Sequence[float]) -> list[bool]:
    """Returns which hypotheses Holm's procedure rejects, at a joint level of 5 % (Holm 1979)."""
    order = np.argsort(p_values, kind="stable")
    rejected = [False] * len(p_values)
    for rank, index in enumerate(order):
        if p_values[index] > ALPHA / (len(p_values) - rank):
            break
        rejected[index] = True
    return rejected


def more_pairs(each: Difference, margin: float, alpha: float) -> int | None:
    """Returns how many more pairs would decide, if mean and deviation stay as they are.

    None stands for more than 10,000.
    """
    distance = abs(each.mean)
    if each.deviation == 0 and distance:
        return max(FEWEST_EXACT - each.pairs, 1)
    # The interval must leave 0, or shrink into the margin, whichever takes fewer pairs.
    wanted = max(distance, margin - distance)
    if each.deviation == 0 or wanted <= 0:
        return None
    radius = sequence_radius if each.sequential else _radius

    def decides(count: int) -> bool:
        return radius(each.deviation, count, alpha) < wanted

    needed = _first(decides, each.pairs + 1)
    return None if needed > _MOST else needed - each.pairs


def _first(holds, start: int) -> int:
    """Returns the smallest count for which `holds`, which stays true from then on."""
    low, high = start, start
    while not holds(high):
        if high > _MOST:
            return high
        low, high = high + 1, 2 * high
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low
