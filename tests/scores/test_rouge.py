"""ROUGE: equal to the library's, and to cases by hand."""

import sys

import pytest
from rouge_score import rouge_scorer

from transformer_jax.config import UserError
from transformer_jax.scores import predictions
from transformer_jax.scores.texts import NAMES, Rouge


def of(output, reference):
    measure = Rouge(str.splitlines)
    return predictions.scores(measure, measure.statistics([output], [reference]))


def test_rouge_by_hand():
    """Four of four words are in the reference of six, two of three pairs, in order."""
    scores = of("The cat, sitting here!", "the cat was always sitting here")
    assert scores["rouge1"] == pytest.approx(100 * 2 * 4 / (4 + 6))
    assert scores["rouge2"] == pytest.approx(100 * 2 * 2 / (3 + 5))
    assert scores["rougeL"] == pytest.approx(100 * 2 * 4 / (4 + 6))
    # Stems are equal; exchanged sentences shorten the subsequence of the text, not of the summary.
    exchanged = of("dogs running\ncats sleep", "cat sleeps\ndog runs")
    assert exchanged["rouge1"] == exchanged["rougeLsum"] == 100 and exchanged["rougeL"] == 50
    assert set(of("", "a word").values()) == {0}


def test_means_over_examples_are_those_of_the_library():
    outputs = ["Returns the list.", "Open a file\nand close it", "nothing of it"]
    references = ["Return a list.", "Close a file\nopen it", "Raise an error."]
    scorer = rouge_scorer.RougeScorer(NAMES, use_stemmer=True)
    expected = [scorer.score(*pair) for pair in zip(references, outputs)]
    measure = Rouge(str.splitlines)
    scores = predictions.scores(measure, measure.statistics(outputs, references))
    for name in NAMES:
        mean = sum(example[name].fmeasure for example in expected) / 3
        assert scores[name] == pytest.approx(100 * mean)


def test_a_missing_library_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "rouge_score", None)
    with pytest.raises(UserError, match=r"pip install 'transformer_jax\[summaries\]'"):
        Rouge(str.splitlines)
