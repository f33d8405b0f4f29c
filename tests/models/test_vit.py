"""The Vision Transformer: patches, positions, visible patches, sizes."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.examples import CONFIGS
from tests.jitted import Jitted
from tests.tasks.images import MODEL
from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.families.vit import ViT
from transformer_jax.layers import patches
from transformer_jax.runs.spec import make_task

KEYS = {key: value for key, value in MODEL.items() if key != "name"}
IMAGES = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 1)).astype(np.uint8)


@pytest.fixture(scope="module")
def params():
    return nn.unbox(jax.jit(ViT(**KEYS).init)(jax.random.key(0), IMAGES)["params"])


def test_the_embedding_of_patches_is_a_convolution():
    images = np.random.default_rng(1).normal(size=(2, 12, 12, 3)).astype(np.float32)
    kernel = np.random.default_rng(2).normal(size=(4, 4, 3, 5)).astype(np.float32)
    convolved = jax.lax.conv_general_dilated(
        images, kernel, (4, 4), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    product = jnp.einsum("bnpqc,pqcm->bnm", patches.patches(images, 4), kernel)
    np.testing.assert_allclose(product, convolved.reshape(2, 9, 5), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(patches.joined(patches.patches(images, 4)), images)


def test_the_model_reads_visible_patches_alone(params):
    model = Jitted(ViT(**KEYS))
    order = np.array([[3, 8, 15], [0, 1, 14]])

    def apply(images):
        return model.apply({"params": params}, images, visible=order, method="hidden")

    states = apply(IMAGES)
    assert states.shape == (2, 4, 16)
    changed = np.array(IMAGES)
    hidden = np.ones((2, 16), bool)
    np.put_along_axis(hidden, order, False, axis=1)
    grid = np.repeat(np.repeat(hidden.reshape(2, 4, 4), 2, 1), 2, 2)[..., None]
    changed = np.where(grid, 255 - changed, changed)
    np.testing.assert_array_equal(apply(changed), states)
    # All patches in order are the whole image.
    everything = np.broadcast_to(np.arange(16), (2, 16))
    whole = model.apply({"params": params}, IMAGES)
    same = model.apply({"params": params}, IMAGES, visible=everything, method="hidden")
    np.testing.assert_allclose(whole, same, atol=1e-6)
    layers = np.asarray(model.apply({"params": params}, IMAGES, method="layers"))
    assert layers.shape == (3, 2, 17, 16)
    np.testing.assert_allclose(layers[-1], whole, atol=1e-5)


def test_positions_of_another_resolution():
    table = np.arange(17 * 3, dtype=np.float32).reshape(17, 3)
    larger = np.asarray(patches.interpolated(table, 1 + 64))
    np.testing.assert_array_equal(larger[0], table[0])
    # The positions of this table are linear in the row and the column, and so are those between.
    grid = larger[1:].reshape(8, 8, 3)
    np.testing.assert_allclose(np.diff(grid[1:-1, 1:-1], axis=1), 1.5, atol=1e-4)
    np.testing.assert_allclose(np.diff(grid[1:-1, 1:-1], axis=0), 6, atol=1e-4)
    back = patches.interpolated(table, 17)
    np.testing.assert_allclose(back, table, atol=1e-5)
    assert ViT.resize("position_embed/embedding", (17, 3), (65, 3)) is not None
    assert ViT.resize("position_embed/embedding", (17, 3), (65, 4)) is None
    assert ViT.resize("norm/scale", (3,), (4,)) is None


def test_sinusoids_of_rows_and_columns():
    codes = patches.grid_sinusoids(3, 8).reshape(3, 3, 8)
    np.testing.assert_array_equal(codes[0, :, :4], codes[2, :, :4])  # columns
    np.testing.assert_array_equal(codes[:, 0, 4:], codes[:, 2, 4:])  # rows
    np.testing.assert_allclose(codes[1, 2, :4], [np.sin(2), np.sin(0.02), np.cos(2), np.cos(0.02)])
    model = Jitted(ViT(**KEYS, positions="sinusoidal", pool="mean"))
    params = nn.unbox(model.init(jax.random.key(0), IMAGES)["params"])
    assert "position_embed" not in params
    states = np.asarray(model.apply({"params": params}, IMAGES))
    pooled = model.apply({"params": params}, states, method="pooled")
    np.testing.assert_allclose(pooled, states[:, 1:].mean(axis=1), rtol=1e-5)


# torchvision's and timm's counts, with a head of 1,000 classes.
PUBLISHED = {
    "ti16": 5_717_416,
    "s16": 22_050_664,
    "b32": 88_224_232,
    "b16": 86_567_656,
    "l32": 306_535_400,
    "l16": 304_326_632,
    "h14": 632_045_800,
}


@pytest.mark.parametrize("shape", PUBLISHED)
def test_published_numbers_of_parameters(shape):
    labels = tuple(map(str, range(1000)))
    overrides = {"task.labels": labels, "task.hidden_head": False}
    config = configs.load(CONFIGS / f"vit/vit.py:{shape}", overrides)
    assert make_task(config).parameter_counts()["params"] == PUBLISHED[shape]


@pytest.mark.parametrize(
    "keys, message",
    [
        (dict(patch_size=3), "config.model.patch_size=3 does not divide config.model.image_size=8"),
        (dict(channels=2), "config.model.channels=2: must be 1 or 3"),
        (dict(std=(0.0,)), r"config.model.std=\(0.0,\): must hold a number"),
        (dict(mean=(0.1, 0.2)), "config.model.mean=.*or one for each"),
        (dict(d_model=6, num_heads=2, positions="sinusoidal"), "need a multiple of 4"),
        (dict(num_heads=3), "num_heads=3 does not divide"),
    ],
)
def test_wrong_keys_are_refused(keys, message):
    with pytest.raises(UserError, match=message):
        ViT(**{**KEYS, **keys}).check()


def test_images_of_another_size_are_refused(params):
    with pytest.raises(UserError, match=r"images of shape \(9, 8, 1\): must be \(8, 8, 1\)"):
        ViT(**KEYS).apply({"params": params}, np.zeros((1, 9, 8, 1), np.uint8))
    with pytest.raises(UserError, match="a model of images predicts no tokens"):
        ViT(**KEYS).apply({"params": params}, method="output")
