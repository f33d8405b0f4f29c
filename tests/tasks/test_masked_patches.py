"""Masked autoencoders: the loss, its masks, and reconstructions."""

import flax.linen as nn
import jax
import numpy as np
import pytest

from tests.jitted import jitted
from tests.tasks.conftest import trained
from tests.tasks.images import build
from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.contracts.task import Context
from transformer_jax.runs import spec
from transformer_jax.runs.spec import make_task


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Returns (task, random parameters, a batch)."""
    folder = tmp_path_factory.mktemp("masked")
    task = make_task(build(folder, "masked_patches", mask_ratio=0.75, normalize_pixels=True))
    params = jax.jit(lambda: nn.unbox(task.init(jax.random.key(0))))()
    return task, params, task.rows().train.batch(0, range(4))


def test_the_loss_is_that_of_the_hidden_patches(made):
    task, params, batch = made
    assert task.num_visible == 4 and batch["order"].shape == (4, 16)
    assert (np.sort(batch["order"], axis=1) == np.arange(16)).all()
    loss = jax.jit(lambda params, batch: task.loss(params, batch, Context()).terms["loss"])
    predicted = np.asarray(jitted(task.predicted)(params, batch))
    pixels = (batch["images"] / 255 - 0.5) / 0.5
    expected = 0.0
    for row in range(4):
        for patch in batch["order"][row, 4:]:
            top, left = 2 * (patch // 4), 2 * (patch % 4)
            values = pixels[row, top : top + 2, left : left + 2].ravel()
            target = (values - values.mean()) / np.sqrt(values.var(ddof=1) + 1e-6)
            expected += np.mean((predicted[row, patch] - target) ** 2) / 12
    assert float(loss(params, batch)) == pytest.approx(expected, rel=1e-4)
    # The rows that fill a batch count nothing.
    batch = batch | {"weight": np.array([1, 1, 0, 0], np.int32)}
    first = {name: array[:2] for name, array in batch.items()}
    assert float(loss(params, batch)) == pytest.approx(float(loss(params, first)), rel=1e-5)


def test_predictions_depend_on_visible_patches_alone(made):
    task, params, batch = made
    predict = jitted(task.predicted)
    predicted = predict(params, batch)
    grid = np.zeros((4, 16), np.uint8)
    np.put_along_axis(grid, batch["order"][:, 4:], 77, axis=1)
    noise = np.repeat(np.repeat(grid.reshape(4, 4, 4), 2, 1), 2, 2)[..., None]
    other = batch | {"images": batch["images"] + noise}
    np.testing.assert_array_equal(predict(params, other), predicted)


@pytest.mark.full
def test_a_batch_can_be_overfitted(tmp_path):
    config = build(tmp_path, "masked_patches", source="images", normalize_pixels=False)
    # Grey squares with a gradient: the visible patches tell the others.
    levels = np.arange(8)[:, None, None] * 28 + np.arange(8)[:, None] * 6
    pixels = np.broadcast_to(levels, (8, 8, 8)).astype(np.uint8)
    np.save(tmp_path / "few.npy", pixels)
    configs.set_key(config, "data.train_files", str(tmp_path / "few.npy"))
    config.train.num_steps = config.train.eval_every = config.checkpoint.every = 120
    config.train.log_every = 20
    config.optimizer.learning_rate = 1e-2
    trained(config, tmp_path)
    lines = spec.metrics(tmp_path / "run")
    losses = [line["train/loss"] for line in lines if "train/loss" in line]
    assert losses[-1] < 0.5 * losses[0]


def test_reconstructions(made):
    task, params, batch = made
    originals, visible, reconstructed = task.reconstruct(params, batch["images"])
    np.testing.assert_array_equal(originals, batch["images"])
    is_grey = np.abs(visible.astype(int) - 128) <= 1
    as_it_was = np.abs(visible.astype(int) - originals) <= 1
    assert (is_grey | as_it_was).all() and is_grey.mean() >= 0.75
    hidden = ~as_it_was
    same = np.abs(reconstructed.astype(int) - originals) <= 1
    assert same[~hidden].mean() > 0.9 and not same[hidden].all()
    figure = task.result(params, [])
    assert [axes.get_ylabel() for axes in figure.axes if axes.get_ylabel()] == [
        "image",
        "visible",
        "reconstructed",
    ]


@pytest.mark.parametrize(
    "keys, message",
    [
        (dict(mask_ratio=1.0), "config.task.mask_ratio=1.0: must hide some of 16"),
        (dict(decoder_width=18), "config.task.decoder_width=18: must be a multiple"),
        (dict(decoder_layers=0), "at least 1"),
    ],
)
def test_wrong_keys_are_refused(keys, message, tmp_path):
    with pytest.raises(UserError, match=message):
        make_task(build(tmp_path, "masked_patches", **keys))
