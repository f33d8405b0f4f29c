"""Zero-shot classification by converted classifiers equals that of transformers' pipeline."""

import json

import pytest

from tests.conversion.checkpoints import CLOSE, read_json
from tests.fixtures import make_huggingface_zero_shot as make
from tests.programs import call, refused
from transformer_jax import convert
from transformer_jax.runs.open import open_run

CASES = [
    pytest.param(architecture, case, id=f"{architecture}-{number}")
    for architecture in make.CLASSES
    for number, case in enumerate(read_json(make.HERE / architecture / "zero_shot.json"))
]
PAIRS = {"task.pair": "2", "task.label": "3", "task.length": str(make.LENGTH)}


def converted(architecture, classes, folder):
    """Returns the workdir of a converted classifier of pairs."""
    checkpoint = make.checkpoint(architecture, classes, folder / "hf")
    convert.from_hf(checkpoint, folder / "run", [*PAIRS.items()])
    return folder / "run"


@pytest.mark.sample("BertForSequenceClassification-1")
@pytest.mark.parametrize("architecture, case", CASES)
def test_probabilities_equal(architecture, case, tmp_path, capsys):
    task, params = open_run(converted(architecture, case["classes"], tmp_path))
    for key in ("one_label", "multi_label"):
        options = dict(hypothesis_template=make.TEMPLATE, multi_label=key == "multi_label")
        predictions = list(task.classify(params, make.TEXTS, make.LABELS, **options))
        for (text, details), expected in zip(predictions, case[key], strict=True):
            assert details["probabilities"] == pytest.approx(expected, rel=0, abs=CLOSE["atol"])
            assert [*details["probabilities"]] == [*expected]
            likely = [label for label, probability in expected.items() if probability > 0.5]
            assert text == (",".join(likely) if key == "multi_label" else [*expected][0])
    assert "line 3 is longer than config.task.length=40" in capsys.readouterr().err


@pytest.mark.parametrize("architecture", make.CLASSES)
def test_live(architecture, tmp_path):
    pytest.importorskip("transformers")
    committed = read_json(make.HERE / architecture / "zero_shot.json")
    for actual, expected in zip(make.cases(architecture, tmp_path), committed, strict=True):
        for key in ("one_label", "multi_label"):
            for row, other in zip(actual[key], expected[key], strict=True):
                assert row == pytest.approx(other, rel=0, abs=CLOSE["atol"])


def test_the_command_line_classifies(tmp_path):
    classes = ("entailment", "not_entailment")
    run = converted("BertForSequenceClassification", classes, tmp_path)
    command = ("classify", f"--workdir={run}", f"--hypothesis_template={make.TEMPLATE}")
    labels = "--labels=rat,book,cat"
    text = f"{make.TEXTS[0]}\n\n"
    assert call(*command, labels, text=text).stdout == "rat\n\n"
    done = call(*command, labels, "--multi_label", "--json", text=text)
    first, empty = map(json.loads, done.stdout.splitlines())
    assert first["labels"] == [*first["probabilities"]] == ["book", "rat", "cat"]
    assert empty == {"text": "", "labels": None, "probabilities": None}
    refused(call(*command, text=text), "--labels=... is missing")
    template = "--hypothesis_template=music"
    refused(call(*command, labels, template, text=text), "'music': must hold {} for the label")
