"""Zero-shot classification by runs that were fine-tuned here; tests/conversion has its figures."""

import pytest

from tests.finetuning.examples import task_of
from transformer_jax.config import UserError
from transformer_jax.training.step import init_params

THREE = ("neutral", "Contradiction", "Entailment")
TEXTS = ["the cat sat on the mat", "", "the dog ran"]


@pytest.mark.sample("True")
@pytest.mark.parametrize("symmetric", [False, True])
def test_a_causal_model_gives_the_probabilities_of_its_pairs(symmetric, runs, tmp_path):
    keys = dict(task__labels=THREE, task__symmetric=symmetric)
    task = task_of(tmp_path, "pairs", runs["gpt"], **keys)
    params = init_params(task)
    options = dict(hypothesis_template="the {} sat", multi_label=True)
    first, empty, last = task.classify(params, TEXTS, ["cat", "dog"], **options)
    assert empty == ("", {"text": "", "labels": None, "probabilities": None})
    for text, prediction in ((TEXTS[0], first), (TEXTS[2], last)):
        for label, probability in prediction.details["probabilities"].items():
            (pair,) = task.predict(params, [f"{text}\tthe {label} sat"])
            by_class = pair.details["probabilities"]
            both = by_class["Entailment"] + by_class["Contradiction"]
            assert probability == pytest.approx(by_class["Entailment"] / both, abs=1e-5)


def test_a_single_label_has_a_probability_of_its_own(runs, tmp_path):
    task = task_of(tmp_path, "pairs", runs["bert"], task__labels=THREE)
    params = init_params(task)
    first, *_ = task.classify(params, TEXTS, ["cat"])
    assert 0 < first.details["probabilities"]["cat"] < 1
    first, *_ = task.classify(params, TEXTS, ["cat", "dog"])
    assert sum(first.details["probabilities"].values()) == pytest.approx(1)
    assert first.details["label"] == first.text == [*first.details["probabilities"]][0]


@pytest.mark.parametrize(
    "kind, classes, labels, message",
    [
        ("classification", THREE, ["cat"], "config.task.pair is missing: inference needs"),
        ("pairs", ("no", "yes"), ["cat"], r"\('no', 'yes'\): none begins with 'entail'"),
        (
            "pairs",
            ("entailment", "neutral", "other"),
            ["cat"],
            "none begins with 'contradict', as a classifier",
        ),
        ("pairs", THREE, [], r"labels=\[\]: must be different texts, at least one"),
        ("pairs", THREE, ["cat", " "], "must be different texts"),
        ("pairs", THREE, ["cat " * 30], "the hypothesis .* tokens: must have at most 28"),
    ],
)
def test_mistakes_are_refused(kind, classes, labels, message, runs, tmp_path):
    task = task_of(tmp_path, kind, runs["bert"], task__labels=classes)
    with pytest.raises(UserError, match=f"^[^\n]*{message}[^\n]*$"):
        task.classify(None, TEXTS, labels)


def test_one_text_as_labels_is_no_list(runs, tmp_path):
    task = task_of(tmp_path, "pairs", runs["bert"], task__labels=THREE)
    with pytest.raises(TypeError, match="expected a list of texts"):
        task.classify(None, TEXTS, "cat")
