"""Predictions for lines of text: wrong, empty and long lines."""

import pytest

from tests.finetuning.examples import LINES, task_of
from transformer_jax.config import UserError
from transformer_jax.training.step import init_params

EMPTY = {
    "classification": {"label": None, "probabilities": None},
    "regression": {"value": None},
    "tagging": {"words": [], "tags": [], "probabilities": []},
    "span": {"answer": None, "n_best": []},
    "choice": {"choice": None, "probabilities": None},
}


@pytest.mark.parametrize(
    "kind, line, message",
    [
        ("classification", "a\tb", "line 2: must hold 1 text, not 2"),
        ("pairs", "the cat", "line 2: must hold 2 texts"),
        ("pairs", "the cat\t ", "line 2: must hold 2 texts, separated by a tab; one is empty"),
        ("span", "who?", "line 2: must hold a question and its context"),
        ("choice", "a\tb", "line 2: must hold a context and 2 choices"),
    ],
)
def test_wrong_lines_are_refused(kind, line, message, runs, tmp_path):
    task = task_of(tmp_path, kind, runs["bert"])
    with pytest.raises(UserError, match=message):
        list(task.predict(None, [LINES[kind], line]))


@pytest.mark.sample("regression", "span", "choice")
@pytest.mark.parametrize("kind", EMPTY)
def test_empty_lines_have_empty_predictions(kind, runs, tmp_path):
    """They do not change the predictions of other lines."""
    task = task_of(tmp_path, kind, runs["bert"])
    params, line = init_params(task), LINES[kind]
    predictions = list(task.predict(params, ["", line, "  ", line, ""]))
    (alone,) = task.predict(params, [line])
    assert [each.text for each in predictions] == ["", alone.text, "", alone.text, ""]
    empty = ("", {"text": "", **EMPTY[kind]})
    assert predictions[0] == predictions[2] == predictions[4] == empty
    assert list(task.predict(params, [])) == []
    assert list(task.predict(params, [""])) == [empty]


@pytest.mark.sample("span")
@pytest.mark.parametrize("kind", EMPTY)
def test_long_lines_are_named(kind, runs, tmp_path, capsys):
    task = task_of(tmp_path, kind, runs["bert"])
    params, line = init_params(task), LINES[kind]
    (alone,) = task.predict(params, [line])
    capsys.readouterr()
    lines = [line, line.replace("cat", "cat " * 40), line]
    predictions = list(task.predict(params, lines))
    output = capsys.readouterr().err
    assert [predictions[0].text, predictions[2].text] == [alone.text] * 2
    if kind == "span":
        assert "warning" not in output
    else:
        assert "warning: line 2 is longer than config.task.length=32 tokens" in output
        skipped = list(task.predict(params, lines, long="skip"))
        assert [each.text for each in skipped] == [alone.text, "", alone.text]
        with pytest.raises(UserError, match="line 2: longer than config.task.length=32"):
            task.predict(params, lines, long="refuse")
    wrong = "split" if kind in ("classification", "regression", "choice") else "truncate"
    with pytest.raises(UserError, match=f"long='{wrong}': must be one of"):
        task.predict(params, lines, long=wrong)


def test_a_long_sentence_has_all_its_tags(runs, tmp_path):
    task = task_of(tmp_path, "tagging", runs["bert"])
    words = ["the", "cat", "sat", "to", "a", "dog"] * 20
    prediction, _ = task.predict(init_params(task), [" ".join(words), "a dog"])
    tags = [pair.rpartition("/")[2] for pair in prediction.text.split()]
    details = prediction.details
    assert details["words"] == words and details["tags"] == tags
    assert len(details["tags"]) == len(details["probabilities"]) == len(words)
