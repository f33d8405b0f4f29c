"""Classification of images: training, beginnings, evaluation, prediction and mistakes."""

import json

import jax
import numpy as np
import pytest

from tests.jitted import jitted
from tests.programs import call, refused
from tests.tasks.conftest import trained
from tests.tasks.images import build, picture, write_images
from transformer_jax import config as configs
from transformer_jax import pictures
from transformer_jax.config import UserError
from transformer_jax.contracts.task import Context
from transformer_jax.objectives import rollouts
from transformer_jax.runs.open import open_run
from transformer_jax.runs.spec import make_task


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    """Returns the workdir of a masked autoencoder of digits."""
    folder = tmp_path_factory.mktemp("masked")
    trained(build(folder, "masked_patches"), folder)
    return folder / "run"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Returns (workdir, folder of images) of a classifier of two classes of images."""
    folder = tmp_path_factory.mktemp("classes")
    files = write_images(folder / "images")
    config = build(folder, source="images", model=dict(channels=3), label_smoothing=0.1)
    changes = {
        "data.train_files": str(files),
        "data.valid_files": str(files),
        "train.num_steps": 30,
        "train.eval_every": 30,
        "checkpoint.every": 30,
        "optimizer.learning_rate": 1e-2,
    }
    for key, value in changes.items():
        configs.set_key(config, key, value)
    scores = trained(config, folder).scores
    assert scores["valid/accuracy"] == 1  # a batch can be overfitted
    return folder / "run", files


def test_a_run_is_evaluated_and_predicts_files(run):
    workdir, files = run
    task, params = open_run(workdir)
    assert task.labels == ("dark", "light")
    scores = task.evaluate(params, "valid")
    assert scores["accuracy"] == scores["macro_f1"] == 1 and scores["records"] == 12
    assert scores["confusion"] == {"labels": ["dark", "light"], "counts": [[6, 0], [0, 6]]}
    paths = [f"{files}/light/01.png", "", f"{files}/dark/00.png"]
    labels = [prediction.text for prediction in task.predict(params, paths)]
    assert labels == ["light", "", "dark"]
    _, details = next(task.predict(params, paths))
    assert sum(details["probabilities"].values()) == pytest.approx(1, abs=1e-5)
    # The loss of an evaluation has no label smoothing.
    rows = task.rows().eval["valid"].batch(0, range(12), 12)
    total, count = jitted(task.loss)(params, rows, Context()).metrics["loss"]
    assert float(total) / float(count) == pytest.approx(scores["loss"], rel=1e-4)


def test_the_programs(run, tmp_path):
    workdir, files = run
    picture(5).save(tmp_path / "mine.jpg")
    (tmp_path / "bad.jpg").write_bytes((tmp_path / "mine.jpg").read_bytes()[:-100])
    text = f"{tmp_path}/mine.jpg\n\n{files}/dark/02.png\n"
    done = call("predict", f"--workdir={workdir}", "--json", text=text)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["label"] for line in lines] == ["light", None, "dark"]
    refused(call("predict", f"--workdir={workdir}", text=f"{tmp_path}/bad.jpg\n"), "bad.jpg: the")
    refused(call("predict", f"--workdir={workdir}", "--text=none.jpg"), "none.jpg: can't be read")
    refused(call("predict", f"--workdir={workdir}", "--long=skip", "--text=x"), "have no length")
    refused(call("evaluate", f"--workdir={workdir}", "--set=test"), "data.test_files")
    output = f"--output={tmp_path}/x.png"
    done = call("draw", "result", f"--workdir={workdir}", f"--text={tmp_path}/mine.jpg", output)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_the_picture_of_the_attention(run):
    task, params = open_run(run[0])
    figure = task.result(params, [])
    images = [image for axes in figure.axes for image in axes.images]
    maps = [np.asarray(image.get_array()) for image in images if image.get_array().shape == (4, 4)]
    assert len(maps) == 8 and all(each.sum() == pytest.approx(1, abs=1e-4) for each in maps)
    assert {axes.get_title() for axes in figure.axes} >= {"dark", "light"} - {""}


def test_attention_rollout_is_a_product_of_the_layers():
    weights = np.random.default_rng(0).dirichlet(np.ones(5), (3, 2, 5))
    shares = rollouts.rollout(weights)
    layers = [0.5 * weights[layer].mean(axis=0) + 0.5 * np.eye(5) for layer in range(3)]
    np.testing.assert_allclose(shares, layers[2] @ layers[1] @ layers[0], rtol=1e-5)
    np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-5)
    by_class = rollouts.patch_shares(weights, pools_class=True)
    np.testing.assert_allclose(by_class.ravel(), shares[0, 1:] / shares[0, 1:].sum(), rtol=1e-5)
    assert rollouts.patch_shares(weights, pools_class=False).shape == (2, 2)
    assert callable(pictures.shares)


@pytest.mark.full
@pytest.mark.parametrize("side", [8, 12])
def test_a_run_begins_with_a_masked_autoencoder(masked, side, tmp_path):
    """Also at a higher resolution, whose positions are interpolated."""
    config = build(tmp_path, model=dict(image_size=side))
    changes = {"init_from": str(masked), "train.num_steps": 1, "optimizer.learning_rate": 0.0}
    for key, value in changes.items():
        configs.set_key(config, key, value)
    trained(config, tmp_path)
    task, params = open_run(tmp_path / "run")
    _, earlier = open_run(masked)
    assert not np.any(params["head"]["out"]["kernel"]) and "decoder" not in params
    jax.tree.map(np.testing.assert_array_equal, params["encoder"], earlier["encoder"])
    table = params["position_embed"]["embedding"]
    assert table.shape == (1 + (side // 2) ** 2, 16)
    before = earlier["position_embed"]["embedding"]
    np.testing.assert_array_equal(table[0], before[0])
    if side == 8:
        np.testing.assert_array_equal(table, before)
    assert task.labels == tuple("0123456789")


@pytest.mark.full
def test_only_the_head_of_a_frozen_model_is_trained(masked, tmp_path):
    config = build(tmp_path, frozen=True)
    configs.set_key(config, "init_from", str(masked))
    trained(config, tmp_path)
    params, earlier = open_run(tmp_path / "run")[1], open_run(masked)[1]
    jax.tree.map(np.testing.assert_array_equal, params["encoder"], earlier["encoder"])
    assert np.any(params["head"]["out"]["kernel"])


@pytest.mark.parametrize(
    "keys, message",
    [
        (dict(crop_area=(0.5, 0.2)), "config.task.crop_area"),
        (dict(shift=8), "config.task.shift=8: must be below"),
        (dict(rand_augment=(2, 11)), "config.task.rand_augment"),
        (dict(mixup=-1.0), "config.task.mixup=-1.0"),
        (dict(resize=4), "config.task.resize=4: must be at least"),
        (dict(head_dropout=1.0), "config.task.head_dropout"),
        (dict(labels=("0", "1")), "unknown class '2'; the classes are: 0, 1"),
    ],
)
def test_wrong_keys_are_refused(keys, message, tmp_path):
    with pytest.raises(UserError, match=message):
        make_task(build(tmp_path, **keys)).rows()


def test_images_without_labels_and_models_of_text_are_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((4, 8, 8), np.uint8))
    config = build(tmp_path, source="images")
    configs.set_key(config, "data.train_files", str(tmp_path / "x.npy"))
    with pytest.raises(UserError, match="config.data.train_files: images without labels"):
        make_task(config).rows()
    config = build(tmp_path)
    config.mesh.sequence = 2
    with pytest.raises(UserError, match="config.mesh.sequence=2"):
        make_task(config)
    config = configs.experiment(
        model=dict(name="bert"), task=dict(name="image_classification"), source=dict(name="digits")
    )
    with pytest.raises(UserError, match="reads tokens, and .* gives images"):
        make_task(config)
