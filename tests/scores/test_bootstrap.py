"""The bootstrap: samples equal to sacreBLEU's, and intervals that cover."""

import numpy as np
import pytest
import sacrebleu
from sacrebleu.significance import PairedTest

from transformer_jax.scores import predictions
from transformer_jax.scores.texts import Bleu

RNG = np.random.default_rng(0)
REFERENCES = [" ".join(RNG.choice([*"abcdefgh"], RNG.integers(1, 12))) for _ in range(60)]


class Mean:
    """The mean of one number of each example."""

    def scores(self, sums, count):
        return {"mean": float(sums[0]) / count}


def changed(share):
    """Returns the references with a share of other words."""
    return [
        " ".join("z" if RNG.random() < share else word for word in line.split())
        for line in REFERENCES
    ]


def test_samples_of_bleu_are_those_of_sacrebleu():
    outputs, others = changed(0.2), changed(0.3)
    measure, metric = Bleu(), sacrebleu.BLEU()
    first, second = (measure.statistics(texts, REFERENCES) for texts in (outputs, others))
    expected = metric.corpus_score(outputs, [REFERENCES], n_bootstrap=1000)
    assert predictions.scores(measure, first)["bleu"] == pytest.approx(expected.score)
    sample = predictions.samples(measure, first)["bleu"]
    assert sample.mean() == pytest.approx(expected._mean, rel=1e-5)
    ordered = np.sort(sample)
    assert (ordered[-26] - ordered[25]) / 2 == pytest.approx(expected._ci, rel=1e-5)
    low, high = predictions.intervals(measure, first)["bleu"]
    assert low < expected.score < high

    compared = predictions.comparison(measure, first, second)["bleu"]
    systems = [("other", others), ("this", outputs)]
    _, results = PairedTest(systems, {"bleu": metric}, [REFERENCES], test_type="bs")()
    other, this = results["BLEU"]
    assert compared["difference"] == pytest.approx(this.score - other.score)
    # sacreBLEU counts one tail of the distances from their mean; a p-value has two.
    assert compared["p_value"] == pytest.approx(2 * this.p_value, abs=0.02)
    equal = predictions.comparison(measure, first, first)["bleu"]
    assert (equal["difference"], equal["p_value"]) == (0, 1) and equal["interval"] == (0, 0)


@pytest.mark.full
def test_intervals_cover_the_mean_of_the_population():
    """At least 53 of 60 intervals of 95 % hold it, with 40 examples each."""
    covered, significant = 0, 0
    for _ in range(60):
        first, second = RNG.normal(1, 1, (2, 40, 1))
        low, high = predictions.intervals(Mean(), first)["mean"]
        covered += low < 1 < high
        significant += predictions.comparison(Mean(), first, second)["mean"]["p_value"] < 0.05
    assert 53 <= covered < 60 and significant <= 7
    assert predictions.intervals(Mean(), first) == predictions.intervals(Mean(), first)


def test_a_small_difference_on_all_examples_is_significant():
    """Pairing removes the differences between examples, which are a hundred times larger."""
    first = RNG.normal(0, 10, (50, 1))
    result = predictions.comparison(Mean(), first + RNG.normal(0.1, 0.05, (50, 1)), first)["mean"]
    low, high = result["interval"]
    assert result["p_value"] < 0.01 and 0 < low < result["difference"] < high
