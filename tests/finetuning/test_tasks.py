"""Each fine-tuning task from BERT and from GPT: it learns, is measured, predicts, and resumes."""

import json
import math

import jax
import numpy as np
import pytest

from tests.finetuning.examples import FILES, LINES, build, pretrained, task_of
from transformer_jax.runs import spec
from transformer_jax.runs.open import open_run
from transformer_jax.runs.spec import make_task, resolve
from transformer_jax.runs.train import train
from transformer_jax.training.step import Program
from transformer_jax.training.trainer import run

SCORES = {
    "classification": "accuracy",
    "pairs": "accuracy",
    "regression": "pearson",
    "tagging": "f1",
    "span": "f1",
    "choice": "accuracy",
}
# Later texts of a row decide these, which an initial GPT does not learn.
NOT_LEARNED = [("pairs", "bert"), ("pairs", "gpt"), ("span", "gpt")]


@pytest.mark.sample("pairs-gpt", "tagging-bert")
@pytest.mark.parametrize(
    "kind, family",
    [
        ("pairs", "gpt"),
        *((kind, "bert") for kind in FILES if kind != "pairs"),
        *(
            pytest.param(kind, "bert" if kind == "pairs" else "gpt", marks=pytest.mark.full)
            for kind in FILES
        ),
    ],
)
def test_it_learns_measures_and_predicts(kind, family, runs, tmp_path):
    learns, score = (kind, family) not in NOT_LEARNED, SCORES[kind]
    steps = 20 if not learns else 200 if kind == "span" else 60
    config = build(
        tmp_path,
        kind,
        runs[family],
        train__num_steps=steps,
        train__eval_every=steps,
        checkpoint__every=steps,
        task__lm_weight=0.5 if family == "gpt" else 0.0,
    )
    last = train(config, tmp_path / "run")
    task, params = open_run(tmp_path / "run")
    assert task.config.model.name == family
    assert task.model.vocab_size == (303 if family == "gpt" else 80)
    scores = task.evaluate(params, "valid")
    assert scores["loss"] == pytest.approx(last["valid/loss"], rel=1e-4)
    assert scores[score] == pytest.approx(last[f"valid/{score}"], rel=1e-4)
    assert scores[score] > 0.85 or not learns
    if kind == "classification":
        check_details(scores, task.names)
    names = task.names if kind in ("classification", "pairs") else None
    (tmp_path / f"train.{FILES[kind][0]}").unlink()  # A run knows its labels without the data.
    task, params = open_run(tmp_path / "run")
    (alone,) = task.predict(params, [LINES[kind]])
    in_batch = list(task.predict(params, [LINES[kind]] * 7))
    assert len(in_batch) == 7 and in_batch[3].text == alone.text
    check_prediction(kind, alone)
    if names:
        assert list(alone.details["probabilities"]) == names


def check_details(scores, names):
    assert list(scores["f1_by_class"]) == scores["confusion"]["labels"] == names
    counts = np.array(scores["confusion"]["counts"])
    assert counts.trace() / counts.sum() == pytest.approx(scores["accuracy"])
    assert np.mean(list(scores["f1_by_class"].values())) == pytest.approx(scores["macro_f1"])


def check_prediction(kind, prediction):
    text, details = prediction
    if "probabilities" in details:
        values = details["probabilities"]
        values = list(values.values()) if isinstance(values, dict) else values
        assert np.all(np.array(values) > 0)
        assert kind == "tagging" or sum(values) == pytest.approx(1)
    if kind == "tagging":
        expected = [f"{word}/{tag}" for word, tag in zip(details["words"], details["tags"])]
        assert text.split() == expected and "cat/B-PET" in expected
    assert json.dumps(details)


@pytest.mark.full
def test_resuming_equals_running_straight(runs, tmp_path):
    def opened_after(folder, *stops):
        for stop in stops:
            config = build(
                tmp_path,
                "classification",
                runs["bert"],
                model__name="bert",
                train__num_steps=stop,
                train__log_every=2,
                train__eval_every=100,
                checkpoint__every=2,
                task__head_dropout=0.3,
                task__group_by_length=4,
                optimizer__schedule="constant",
            )
            train(config, tmp_path / folder, overrides=[("model.dropout", "0.2")])
        return open_run(tmp_path / folder, "latest")

    task, straight = opened_after("straight", 6)
    assert task.model.dropout == 0.2
    _, resumed = opened_after("resumed", 4, 6)
    jax.tree.map(np.testing.assert_array_equal, straight, resumed)


@pytest.mark.full
@pytest.mark.parametrize(
    "kind, family",
    [
        ("classification", "bert"),
        pytest.param("pairs", "bart", marks=pytest.mark.full),
        pytest.param("tagging", "bert", marks=pytest.mark.full),
    ],
)
def test_equal_losses_on_a_mesh(kind, family, runs, tmp_path):
    origin = runs.get(family) or pretrained(tmp_path / "origin", family)

    def losses(**mesh):
        overrides = {f"mesh__{axis}": size for axis, size in mesh.items()}
        overrides |= dict(train__num_steps=3, train__log_every=1)
        config = build(tmp_path, kind, origin, **overrides)
        config = resolve(config, tmp_path / "none").config
        task, folder = make_task(config), tmp_path / f"run{len(mesh)}"
        program = Program.of(config, task, jax.devices()[: math.prod(mesh.values())])
        run(config, task, folder, program, origin=spec.origin(config, folder))
        lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
        return [line["train/loss"] for line in lines if "train/loss" in line]

    np.testing.assert_allclose(losses(data=2, fsdp=2, tensor=2), losses(data=1), rtol=1e-5)


@pytest.mark.full
def test_a_frozen_encoder_does_not_change(runs, tmp_path):
    config = build(tmp_path, "tagging", runs["bert"], train__num_steps=3, task__frozen=True)
    train(config, tmp_path / "run")
    kernels = [
        open_run(workdir)[1]["encoder"]["layers"]["mlp"]["wi"]["kernel"]
        for workdir in (tmp_path / "run", runs["bert"])
    ]
    np.testing.assert_array_equal(*kernels)


@pytest.mark.full
@pytest.mark.parametrize(
    "features",
    [
        "last",
        "sum-all",
        pytest.param("embeddings", marks=pytest.mark.full),
        pytest.param("second-to-last", marks=pytest.mark.full),
    ],
)
def test_an_lstm_learns_from_the_states_of_a_frozen_encoder(features, runs, tmp_path):
    config = build(
        tmp_path,
        "tagging",
        runs["bert"],
        task__features=features,
        task__lstm_width=16,
        optimizer__learning_rate=2e-2,
    )
    assert train(config, tmp_path / "run")["valid/f1"] > 0.85
    tables = [
        open_run(workdir)[1]["token_embed"]["embedding"]
        for workdir in (tmp_path / "run", runs["bert"])
    ]
    np.testing.assert_array_equal(*tables)


@pytest.mark.full
def test_the_order_of_a_symmetric_pair_has_no_meaning(runs, tmp_path):
    config = build(tmp_path, "pairs", runs["gpt"], train__num_steps=2, task__symmetric=True)
    train(config, tmp_path / "run")
    task, params = open_run(tmp_path / "run")
    first, second = task.predict(params, ["the cat sat\ta dog", "a dog\tthe cat sat"])
    probabilities = second.details["probabilities"]
    assert first.details["probabilities"] == pytest.approx(probabilities, rel=1e-4)


def test_the_flops_are_those_of_the_work(runs, tmp_path):
    """A vocabulary without logits costs nothing; an LSTM on a frozen encoder does."""
    plain = task_of(tmp_path / "plain", "classification", runs["gpt"])
    both = task_of(tmp_path / "both", "classification", runs["gpt"], task__lm_weight=0.5)
    logits = 3 * 2 * 32 * plain.model.d_model * plain.model.vocab_size
    assert both.flops() - plain.flops() == logits
    frozen = task_of(tmp_path / "frozen", "tagging", runs["bert"], task__frozen=True)
    options = dict(task__features="last", task__lstm_width=8)
    recurrent = task_of(tmp_path / "recurrent", "tagging", runs["bert"], **options)
    # directions, gates, width of a direction, inputs
    first, second = 2 * 4 * 4 * (frozen.model.d_model + 4), 2 * 4 * 4 * (8 + 4)
    assert recurrent.flops() - frozen.flops() == 3 * 32 * 2 * (first + second)
