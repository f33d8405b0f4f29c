"""Word and character error rates."""

import pytest

from transformer_jax.scores import predictions
from transformer_jax.scores.texts import WordErrors


def scores(outputs, references):
    measure = WordErrors()
    return predictions.scores(measure, measure.statistics(outputs, references))


def test_the_rates_are_those_of_the_whole_set():
    """A word is replaced and another inserted: one and four characters."""
    rates = scores(["onx two", "six six one"], ["one two", "six six"])
    assert rates == pytest.approx({"wer": 100 * 2 / 4, "cer": 100 * 5 / 14})


def test_empty_texts():
    assert scores(["", "one"], ["one two", ""])["wer"] == pytest.approx(100 * 3 / 2)
    assert scores([""], [""]) == {"wer": 0.0, "cer": 0.0}
