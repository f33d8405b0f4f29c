"""Augmentation: pure functions of (image, generator), and the rows of images."""

import io

import numpy as np
import pytest
from PIL import Image

from tests.tasks.images import build, picture, write_images
from transformer_jax import config as configs
from transformer_jax.data import images
from transformer_jax.runs.spec import make_task


def generator(seed=0):
    return np.random.default_rng(seed)


def test_boxes_lie_in_the_image():
    for seed in range(200):
        left, upper, right, lower = images.random_box((60, 40), (0.1, 0.9), generator(seed))
        assert 0 <= left < right <= 60 and 0 <= upper < lower <= 40
        share = (right - left) * (lower - upper) / 2400
        ratio = (right - left) / (lower - upper)
        assert 0.1 - 1e-9 <= share <= 0.9 + 1e-9 and 0.74 < ratio < 1.34
    assert images.centre_box((60, 40)) == (10, 0, 50, 40)
    assert images.centre_box((60, 40), 0.5) == (20, 10, 40, 30)
    # No box of these fits in a long strip.
    assert images.random_box((1000, 2), (0.9, 1.0), generator()) == (499, 0, 501, 2)


def test_a_jpeg_is_decoded_at_the_size_that_is_needed():
    smooth = Image.fromarray((np.arange(256 * 256).reshape(256, 256) // 256).astype(np.uint8))
    buffer = io.BytesIO()
    smooth.convert("RGB").save(buffer, "JPEG", quality=95)
    opened = images.opened(buffer.getvalue(), "", 10**6)
    small = images.resized(opened, (0, 0, 256, 256), 16, "RGB")
    assert opened.size == (32, 32) and small.size == (16, 16)  # a factor of 8
    whole = smooth.convert("RGB").resize((16, 16), Image.Resampling.BILINEAR)
    np.testing.assert_allclose(np.array(small, int), np.array(whole, int), atol=3)


def test_shifts_fill_with_zeros():
    pixels = np.arange(1, 17, dtype=np.uint8).reshape(4, 4, 1)
    seen = set()
    for seed in range(60):
        moved = images.shifted(pixels, 1, generator(seed))
        positions = np.argwhere(moved[..., 0] == 6)
        assert len(positions) == 1 and np.abs(positions[0] - 1).max() <= 1
        seen.add(tuple(positions[0]))
    assert len(seen) == 9
    np.testing.assert_array_equal(images.shifted(pixels, 0, generator()), pixels)


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_every_operation_of_rand_augment(mode):
    image = picture(3).convert(mode)
    changed = []
    for number, operation in enumerate(images._OPERATIONS):
        for sign in (1, -1):
            result = operation(image, 0.9, sign)
            assert result.mode == mode and result.size == image.size
            changed.append(number if not np.array_equal(result, image) else None)
            np.testing.assert_array_equal(result, operation(image, 0.9, sign))
    # The colour of a grey image cannot change.
    unchanged = set(range(14)) - set(changed)
    assert unchanged <= ({0} if mode == "RGB" else {0, 1, 6})
    first = images.rand_augmented(image, 2, 9, generator(1))
    np.testing.assert_array_equal(first, images.rand_augmented(image, 2, 9, generator(1)))
    drawn = [images.rand_augmented(image, 2, 9, generator(seed)) for seed in range(5)]
    assert len({image.tobytes() for image in drawn}) == 5


def test_operations_draw_all_kinds_of_magnitude():
    image = picture(2)
    still = images._OPERATIONS[3](image, 0.0, 1)
    np.testing.assert_array_equal(still, image)
    turned = images._OPERATIONS[3](image, 1.0, 1)
    expected = image.rotate(30, Image.Resampling.BILINEAR, fillcolor=(128, 128, 128))
    np.testing.assert_array_equal(turned, expected)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("images") / "images", ending="jpg")


def test_rows_are_a_pure_function_of_the_numbers(folder, tmp_path):
    config = build(
        tmp_path,
        source="images",
        model=dict(channels=3),
        crop="random",
        flip=True,
        shift=1,
        rand_augment=(2, 9),
        mixup=0.4,
    )
    configs.set_key(config, "data.train_files", str(folder))
    configs.set_key(config, "data.valid_files", str(folder))
    rows = make_task(config).rows()
    batch = rows.train.batch(3, range(8))
    assert batch["images"].shape == (8, 8, 8, 3) and batch["images"].dtype == np.uint8
    redrawn = make_task(config).rows().train.batch(3, [5, 1])
    for name, array in redrawn.items():
        np.testing.assert_array_equal(array, batch[name][[5, 1]])
    other = rows.train.batch(4, range(8))
    assert not np.array_equal(other["images"], batch["images"])
    np.testing.assert_allclose(batch["shares"].sum(axis=1), 1, rtol=1e-6)
    assert batch["labels"].shape == (8, 2)
    valid = rows.eval["valid"].batch(0, range(16), 16)
    assert valid["shares"][:, 0].tolist() == [1] * 12 + [0] * 4 and valid["labels"].shape == (16, 1)


def test_mixup_blends_two_rows(tmp_path):
    """The blend of two digits has the pixels of both, in the shares of their labels."""
    config = build(tmp_path, mixup=1.0)
    plain = make_task(build(tmp_path)).split_rows("train")
    mixed = make_task(config).split_rows("train")
    [row] = mixed.rows([(7, 2)])
    own = plain.rows([(7, 0)])[0]
    partner = next(
        number
        for number in range(len(plain))
        if np.array_equal(
            images.mixed(own["images"], plain.rows([(number, 0)])[0]["images"], row["shares"][0]),
            row["images"],
        )
    )
    assert row["labels"].tolist() == [plain.labels[7], plain.labels[partner]]
