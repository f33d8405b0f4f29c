"""Conversion of ViT classifiers from and to Hugging Face checkpoints."""

import jax
import numpy as np
import pytest

from tests.conversion.checkpoints import CLOSE, copied, random_run, read_json, refused, weights
from tests.fixtures.make_huggingface_vit import FOLDER, LABELS, MEAN
from tests.jitted import jitted
from tests.tasks.images import build, picture
from transformer_jax import convert
from transformer_jax.config import UserError
from transformer_jax.runs.open import open_run

NAME = FOLDER.name


def test_a_checkpoint_gives_the_published_outputs_and_is_written_unchanged(tmp_path):
    convert.from_hf(FOLDER, tmp_path / "run")
    task, params = open_run(tmp_path / "run")
    expected = dict(np.load(FOLDER / "expected.npz"))
    logits = jitted(task.logits)(params, expected["images"])
    np.testing.assert_allclose(logits, expected["logits"], **CLOSE)
    states = jitted(task.model.apply)(
        {"params": task.model_params(params)}, expected["images"], method="layers"
    )
    # The last ones here are normalised.
    np.testing.assert_allclose(states[:-1], expected["hidden"][:-1], **CLOSE)
    assert task.labels == LABELS and task.model.mean == tuple(MEAN)
    picture(1).save(tmp_path / "x.png")
    [prediction] = task.predict(params, [f"{tmp_path}/x.png"])
    assert prediction.text in LABELS

    convert.to_hf(tmp_path / "run", tmp_path / "back")
    original, written = weights(FOLDER), weights(tmp_path / "back")
    assert written.keys() == original.keys()
    for name, array in written.items():
        np.testing.assert_array_equal(original[name], array, err_msg=name)
    config = read_json(FOLDER / "config.json")
    for key, value in read_json(tmp_path / "back" / "config.json").items():
        assert config.get(key, value) == value, key
    before, after = (
        read_json(folder / "preprocessor_config.json") for folder in (FOLDER, tmp_path / "back")
    )
    assert {key: before[key] for key in after} == after


@pytest.mark.full
def test_a_run_comes_back_unchanged(tmp_path):
    config = build(tmp_path, labels=tuple("0123456789"))
    run = random_run(config, tmp_path / "run")
    convert.to_hf(run, tmp_path / "hf")
    convert.from_hf(tmp_path / "hf", tmp_path / "back")
    (task, params), (reread, others) = open_run(run), open_run(tmp_path / "back")
    assert reread.labels == task.labels and reread.model.channels == 1
    jax.tree.map(np.testing.assert_array_equal, params, others)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"hidden_act": "relu"}, "hidden_act='relu': only 'gelu'"),
        ({"qkv_bias": False}, "qkv_bias=False: only True"),
        ({"image_size": 16}, "has shape"),
        ({"patch_size": 5}, "patch_size=5 does not divide"),
        ({"patch_size": ...}, "no patch_size"),
    ],
)
def test_checkpoints_without_an_equivalent_are_refused(change, message, tmp_path):
    refused(copied(NAME, tmp_path / "hf", **change), tmp_path, message)


@pytest.mark.parametrize(
    "model, task, message",
    [
        (dict(positions="sinusoidal"), {}, "has only 'learned'"),
        (dict(pool="mean"), {}, "has only 'class'"),
        ({}, dict(hidden_head=True), "has only False"),
    ],
)
def test_runs_without_an_equivalent_are_refused(model, task, message, tmp_path):
    config = build(tmp_path, model=model, labels=("0", "1"), **task)
    run = random_run(config, tmp_path / "run")
    with pytest.raises(UserError, match=message):
        convert.to_hf(run, tmp_path / "hf")
    assert not (tmp_path / "hf").exists()
