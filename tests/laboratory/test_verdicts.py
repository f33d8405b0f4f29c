"""Statistics of paired scores: intervals beside scipy's, and the rate of false verdicts."""

import math

import numpy as np
import pytest
from scipy import stats

from transformer_jax.laboratory import verdicts
from transformer_jax.laboratory.verdicts import difference, more_pairs, sequence_radius

A = [3.1, 2.9, 3.4, 3.0, 3.3]
B = [3.0, 2.7, 3.3, 2.9, 3.05]


def test_means_and_differences_are_those_of_student():
    found = verdicts.mean(A)
    low, high = stats.t.interval(0.95, 4, np.mean(A), stats.sem(A))
    assert (found.low, found.high) == pytest.approx((low, high))
    paired = difference(A, B)
    own = stats.ttest_rel(B, A)
    interval = own.confidence_interval(0.95)
    assert paired.p == pytest.approx(own.pvalue)
    assert (paired.low, paired.high) == pytest.approx((interval.low, interval.high))
    unpaired = np.var(A, ddof=1) + np.var(B, ddof=1)
    assert paired.removed == pytest.approx(1 - np.var(np.subtract(B, A), ddof=1) / unpaired)
    # As many pairs as a power analysis by the noncentral t asks for, within one.
    noncentral = stats.nct.sf(
        stats.t.ppf(0.975, 4), 4, paired.detectable / (paired.deviation / math.sqrt(5))
    )
    assert noncentral == pytest.approx(0.8, abs=0.03)
    needed = verdicts.pairs_needed(paired.deviation, 0.05)
    assert verdicts.detectable(paired.deviation, needed) <= 0.05
    assert verdicts.detectable(paired.deviation, needed - 1) > 0.05
    assert verdicts.pairs_needed(1.0, 0.0) is None and verdicts.pairs_needed(1.0, 1e-6) is None
    with pytest.raises(ValueError, match="5 and 4 scores"):
        difference(A, B[:4])


def test_a_confidence_sequence_is_where_the_evidence_stays_below_20():
    """The radius inverts the Bayes factor, which is integrated here over its mixture."""
    from scipy.integrate import quad

    for count in (5, 8, 30):
        t = sequence_radius(1.0, count) * math.sqrt(count)

        def ratio(effect, t=t, count=count):
            shifted = stats.nct.pdf(t, count - 1, effect * math.sqrt(count))
            return shifted * stats.norm.pdf(effect, scale=math.sqrt(3)) / stats.t.pdf(t, count - 1)

        evidence, _ = quad(ratio, -12, 12, limit=400, points=[0])
        assert evidence == pytest.approx(20, rel=1e-3)
    assert sequence_radius(1.0, 2) == math.inf and sequence_radius(0.0, 9) == 0
    radii = [sequence_radius(1.0, count) for count in range(4, 200)]
    assert all(later < earlier for earlier, later in zip(radii, radii[1:]))


def judge(differences, lower=True, margin=0.0):
    size = len(differences)
    return verdicts.verdicts(differences, [lower] * size, [margin] * size)


def test_verdicts():
    lower, same = difference(A, B), difference(A, A)
    assert judge([lower]) == ["better"] and judge([lower], lower=False) == ["worse"]
    assert judge([same]) == ["identical in every pair"]
    assert judge([difference(A[:1], A[:1])]) == ["undecided"]
    assert judge([lower], margin=0.5) == ["no difference that matters"]
    noisy = difference([1, 2, 3], [3, 2, 1.5])
    assert judge([noisy]) == ["undecided"]
    sequential = difference(A, B, sequential=True)
    assert sequential.p is None and sequential.low < lower.low
    # A constant difference, as of two arms that differ by a bias alone, is certain from four pairs.
    few = difference(A[:2], [x + 0.25 for x in A[:2]])
    assert judge([few]) == ["undecided"] and few.low == -math.inf
    assert more_pairs(few, 0.0, 0.05) == 2
    shifted = difference(A, [x + 0.25 for x in A])
    assert judge([shifted]) == ["worse"]


def test_holm_rejects_what_statsmodels_would():
    # Holm 1979: 0.01 <= 0.05 / 3, 0.02 <= 0.05 / 2, 0.06 > 0.05.
    assert verdicts.holm([0.02, 0.06, 0.01]) == [True, False, True]
    assert verdicts.holm([0.03, 0.03, 0.03]) == [False] * 3
    assert verdicts.holm([]) == []


def test_all_verdicts_together_are_wrong_in_one_of_twenty_experiments():
    """With a margin, too: one arm is equal but noisy, the other is just at the margin."""
    random = np.random.default_rng(0)
    wrong, count, margin, level = 0, 2000, 3.0, verdicts.level(2)
    for _ in range(count):
        draws = (random.normal(0, 10, 20), random.normal(margin, 1, 20))
        found = [difference(np.zeros(20), draw, alpha=level) for draw in draws]
        first, second = judge(found, margin=margin)
        wrong += first in ("better", "worse") or second in ("better", "no difference that matters")
    assert wrong / count <= 0.06


def test_more_pairs_are_as_many_as_decide():
    each = difference([1, 2, 3, 2.5], [1.4, 1.9, 3.6, 2.4])
    for sequential in (False, True):
        asked = difference([1, 2, 3, 2.5], [1.4, 1.9, 3.6, 2.4], sequential=sequential)
        count = asked.pairs + more_pairs(asked, 0.0, 0.05)
        radius = sequence_radius if sequential else verdicts._radius
        assert radius(asked.deviation, count, 0.05) < abs(asked.mean)
        assert radius(asked.deviation, count - 1, 0.05) >= abs(asked.mean)
    assert more_pairs(each, 1.0, 0.05) < more_pairs(each, 0.0, 0.05)
    balanced = difference([1, 2], [2, 1])
    assert more_pairs(balanced, 0.0, 0.05) is None and more_pairs(balanced, 1.0, 0.05) > 0


EXPERIMENTS, PAIRS = 10_000, 40
DRAWS = {
    "normal": lambda random, shape: random.normal(size=shape),
    "t3": lambda random, shape: random.standard_t(3, size=shape),
    "log-normal": lambda random, shape: random.lognormal(size=shape),
}


def false_verdicts(differences: np.ndarray, margin: float) -> np.ndarray:
    """Returns which experiments, looked at after every pair, ever exclude their mean.

    `differences` (experiments, pairs) have the mean `margin` or 0.
    """
    count = np.arange(1, differences.shape[1] + 1)
    center = np.cumsum(differences, axis=1) / count
    squares = np.cumsum(differences**2, axis=1) / count
    deviation = np.sqrt(np.maximum(squares - center**2, 0) * count / np.maximum(count - 1, 1))
    deviation[:, 0] = 1  # of one number; the radius there is infinite anyway
    radius = np.array([sequence_radius(1.0, int(n)) for n in count]) * deviation
    low, high = center - radius, center + radius
    if margin:
        # "No difference that matters" is false where the mean is at the margin.
        wrong = (low >= -margin) & (high <= margin)
    else:
        wrong = (low > 0) | (high < 0)
    # The first decision counts, because there the experiment ends.
    if margin:
        decided = wrong | (low > 0) | (high < 0)
        first = np.argmax(decided, axis=1)
        return decided.any(axis=1) & wrong[np.arange(len(wrong)), first]
    return wrong.any(axis=1)


@pytest.mark.parametrize("correlation", [0.0, 0.8])
@pytest.mark.parametrize("margin", [0.0, 0.5])
@pytest.mark.parametrize("law", DRAWS)
def test_false_verdicts_are_rare_however_often_one_looks(law, margin, correlation):
    """Two arms of one law, whose differences are symmetric, with a common part or without."""
    random = np.random.default_rng(0)
    shape = (EXPERIMENTS, PAIRS)
    common = DRAWS[law](random, shape)
    arms = [
        math.sqrt(correlation) * common + math.sqrt(1 - correlation) * DRAWS[law](random, shape)
        for _ in range(2)
    ]
    shift = margin * np.std(arms[1] - arms[0]) if margin else 0.0
    differences = arms[1] - arms[0] + shift
    assert false_verdicts(differences, shift).mean() <= 0.05
    # The test can fail: a t interval that is looked at after every pair is wrong far more often.
    if not margin and law == "normal":
        count = np.arange(1, PAIRS + 1)
        center = np.cumsum(differences, axis=1) / count
        deviation = np.array([differences[:, :n].std(axis=1, ddof=1) for n in count[4:]]).T
        radius = stats.t.ppf(0.975, count[4:] - 1) * deviation / np.sqrt(count[4:])
        assert (np.abs(center[:, 4:]) > radius).any(axis=1).mean() > 0.15
