"""Conversion of ViT classifiers from and to Hugging Face checkpoints."""

import json

import jax
import numpy as np
import pytest
from PIL import Image

from tests.conversion.checkpoints import CLOSE, copied, random_run, read_json, refused, weights
from tests.fixtures.make_huggingface_vit import (
    FOLDER,
    LABELS,
    MEAN,
    PROCESSORS,
    STD,
    photo,
    processed,
)
from tests.jitted import jitted
from tests.tasks.images import build, picture
from transformer_jax import convert
from transformer_jax.config import UserError
from transformer_jax.families.vit import ARCHITECTURES
from transformer_jax.layers import patches
from transformer_jax.runs.open import open_run
from transformer_jax.runs.spec import make_task

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
    # The last ones here are normalized.
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


def with_processor(folder, content, name="preprocessor_config.json"):
    """Copies the checkpoint, with another image processor."""
    copied(NAME, folder)
    (folder / "preprocessor_config.json").unlink()
    (folder / name).write_text(json.dumps(content))
    return folder


def task_of(folder):
    """Returns the task of the run that the conversion of a checkpoint would make."""
    [family] = ARCHITECTURES
    return make_task(family.read_config(read_json(folder / "config.json"), folder))


def pixels_of(task):
    """Returns the photo as the model multiplies it with its first weights, float32 (12, 12, 3)."""
    pixels = task.view.pixels(Image.fromarray(photo()), None)[None]
    return np.asarray(jitted(patches.normalized)(pixels, task.model.mean, task.model.std))[0]


# Values from 0 to 255 are less exact than those around 0.
AS_PROCESSED = dict(rtol=1e-6, atol=3e-6)


@pytest.mark.parametrize("case", PROCESSORS)
def test_images_are_prepared_as_by_the_image_processor(case, tmp_path):
    """The oracle is transformers' processor, run by tests/fixtures/make_huggingface_vit.py."""
    expected = np.load(FOLDER / "processors.npz")[case]
    task = task_of(with_processor(tmp_path / "hf", PROCESSORS[case]))
    np.testing.assert_allclose(pixels_of(task), expected, **AS_PROCESSED)

    # The file that is written for transformers says the same.
    [family] = ARCHITECTURES
    [written] = family.tokenizer_files(task).values()
    again = task_of(with_processor(tmp_path / "back", json.loads(written)))
    np.testing.assert_allclose(pixels_of(again), expected, **AS_PROCESSED)


@pytest.mark.full
@pytest.mark.parametrize("case", PROCESSORS)
def test_transformers_prepares_images_as_the_written_processor_says(case, tmp_path):
    pytest.importorskip("transformers")
    [family] = ARCHITECTURES
    task = task_of(with_processor(tmp_path / "hf", PROCESSORS[case]))
    [written] = family.tokenizer_files(task).values()
    np.testing.assert_allclose(processed(json.loads(written)), pixels_of(task), **AS_PROCESSED)


def test_a_run_of_its_own_is_read_by_transformers_with_the_same_crop(tmp_path):
    config = build(tmp_path, labels=("0", "1"), model=dict(image_size=12, channels=3), resize=14)
    convert.to_hf(random_run(config, tmp_path / "run"), tmp_path / "hf")
    written = read_json(tmp_path / "hf" / "preprocessor_config.json")
    assert written["size"] == {"shortest_edge": 14}
    assert written["crop_size"] == {"height": 12, "width": 12} and written["do_center_crop"]


def test_the_processor_that_transformers_5_writes_is_read(tmp_path):
    nested = {"image_processor": PROCESSORS["not normalized"], "processor_class": "AnyProcessor"}
    folder = with_processor(tmp_path / "hf", nested, "processor_config.json")
    # An older file beside it does not count.
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSORS["as it is"]))
    convert.from_hf(folder, tmp_path / "run")
    task, _ = open_run(tmp_path / "run")
    assert task.model.mean == (0,) * 3 and task.model.std == (1,) * 3


@pytest.mark.parametrize(
    "change, message",
    [
        ({"image_processor_type": "ConvNextImageProcessor"}, "='ConvNextImageProcessor': must be"),
        ({"size": {"height": 12, "width": 24}}, "size={'height': 12, 'width': 24}: must be a sq"),
        ({"size": {"longest_edge": 12}}, "size={'longest_edge': 12}: must be a square"),
        ({"resample": 7}, "resample=7: must be"),
        ({"rescale_factor": 0}, "rescale_factor=0: must be a number above 0"),
        ({"image_mean": ["a"]}, r"image_mean=\['a'\]: must be a number for each channel"),
        ({"image_std": [0, 0, 0]}, "config.model.std=.* above 0"),
        ({"do_pad": True}, "do_pad=True: must be false"),
    ],
)
def test_processors_without_an_equivalent_are_refused(change, message, tmp_path):
    content = PROCESSORS["as it is"] | change
    refused(with_processor(tmp_path / "hf", content), tmp_path, message)


def test_a_processor_for_another_size_is_named(tmp_path, capsys):
    content = dict(size={"height": 24, "width": 24}, image_mean=MEAN, image_std=STD)
    convert.from_hf(with_processor(tmp_path / "hf", content), tmp_path / "run")
    [line] = [line for line in capsys.readouterr().err.splitlines() if "24 pixels" in line]
    assert "image_size=12" in line
    assert open_run(tmp_path / "run")[0].resize is None


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
