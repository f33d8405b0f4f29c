"""What is read of image files: which way is up, and values of any depth and color space."""

import numpy as np
import pytest
from PIL import Image, ImageOps

from tests.tasks.images import build
from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.data.images import FileRows, ImageRows, View
from transformer_jax.records.images import Images

SIDE = 12
ORIENTATION = 0x0112


def saved(path, image, **options):
    image.save(path, **options)
    return path


def with_orientation(number):
    exif = Image.Exif()
    exif[ORIENTATION] = number
    return exif


def read(path, channels=3, side=SIDE, **keys):
    """Returns the pixels of a file as programs on files read them, such as `predict`."""
    view = View(side, channels, 10**6, side, **keys)
    [row] = FileRows([str(path)], view, 10**8).rows([(0, 0)])
    return row["images"]


def read_as_record(path, tmp_path, channels=3, side=SIDE, **keys):
    """Returns the pixels of a file as training and evaluation read them, with its (H, W)."""
    config = build(tmp_path, source="images", model=dict(channels=channels))
    config.data.train_files = str(path)
    source = configs.build_source(config)
    assert isinstance(source, Images)
    records = source.records("train")
    rows = ImageRows(records, View(side, channels, 10**6, side, **keys), np.zeros(2, np.uint64))
    [row] = rows.rows([(0, 0)])
    return row["images"], (records.array("height")[0], records.array("width")[0])


def by_pillow(image, channels=3, side=SIDE):
    """Returns the central square as Pillow alone makes it, uint8 (S, S, C)."""
    image = image.convert("L" if channels == 1 else "RGB")
    shorter = min(image.size)
    left, upper = ((length - shorter) / 2 for length in image.size)
    box = (left, upper, left + shorter, upper + shorter)
    pixels = np.array(image.resize((side, side), Image.Resampling.BILINEAR, box=box))
    return pixels.reshape(side, side, channels)


def picture(size=(31, 22)):
    """Returns a smooth image whose quarters differ, so that each orientation shows."""
    rows, columns = np.indices(size)
    channels = [rows * 7 + columns, 255 - columns * 6, (rows * columns) % 256]
    return Image.fromarray(np.stack(channels, axis=-1).clip(0, 255).astype(np.uint8))


@pytest.mark.parametrize("ending", ["jpg", "png", "webp", "tif"])
def test_images_are_read_upright(ending, tmp_path):
    """The oracle is `PIL.ImageOps.exif_transpose`, on all orientations, known and unknown."""
    options = {"lossless": True} if ending == "webp" else {}
    for number in (1, 2, 3, 4, 5, 6, 7, 8, 0, 9):
        exif = with_orientation(number)
        path = saved(tmp_path / f"{number}.{ending}", picture(), exif=exif, **options)
        expected = ImageOps.exif_transpose(Image.open(path))
        np.testing.assert_array_equal(read(path), by_pillow(expected), err_msg=str(number))
        pixels, size = read_as_record(path, tmp_path)
        np.testing.assert_array_equal(pixels, by_pillow(expected))
        assert size == expected.size[::-1]
        # A training image is cropped from the upright image, too. The JPEG decodes at a smaller
        # size for it, which changes its pixels a little.
        crop, _ = read_as_record(path, tmp_path, augments=True)
        assert np.abs(crop - by_pillow(expected).astype(int)).max() <= 6


def test_orientations_elsewhere_in_a_file(tmp_path):
    """In XMP, behind the pixels of a PNG, and in damaged EXIF data, which are ignored."""
    xmp = b'<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    path = saved(tmp_path / "xmp.jpg", picture(), xmp=xmp)
    expected = Image.open(path).transpose(Image.Transpose.ROTATE_270)
    np.testing.assert_array_equal(read(path), by_pillow(expected))

    content = saved(tmp_path / "x.png", picture(), exif=with_orientation(8)).read_bytes()
    start = content.index(b"eXIf") - 4
    end = start + 12 + int.from_bytes(content[start : start + 4], "big")
    last = content.index(b"IEND") - 4
    moved = content[:start] + content[end:last] + content[start:end] + content[last:]
    (tmp_path / "behind.png").write_bytes(moved)
    expected = by_pillow(picture().transpose(Image.Transpose.ROTATE_90))
    np.testing.assert_array_equal(read(tmp_path / "behind.png"), expected)
    np.testing.assert_array_equal(read_as_record(tmp_path / "behind.png", tmp_path)[0], expected)

    for exif in (b"Exif\0\0nothing", b"Exif\0\0II*\0\x08\0\0\0\x05\0\x12\x01"):
        path = saved(tmp_path / "damaged.jpg", picture(), exif=exif)
        np.testing.assert_array_equal(read(path), by_pillow(Image.open(path)))


def ramp(most):
    """Returns the whole numbers from 0 to `most`, evenly spread, (64, 64)."""
    return np.linspace(0, most, 64 * 64).reshape(64, 64)


def whole(most):
    return np.rint(ramp(most)).astype(np.int64)


@pytest.mark.parametrize("ending", ["png", "tif"])
@pytest.mark.parametrize("bits", [8, 12, 16])
def test_16_bits_are_scaled_by_their_range(bits, ending, tmp_path):
    values = whole(2**bits - 1)
    path = saved(tmp_path / f"x.{ending}", Image.fromarray(values.astype(np.uint16)))
    expected = (values >> (bits - 8))[..., None]
    assert len(np.unique(expected)) == 256
    for channels in (1, 3):
        pixels = np.broadcast_to(expected, (64, 64, channels))
        np.testing.assert_array_equal(read(path, channels, 64), pixels)
        np.testing.assert_array_equal(read_as_record(path, tmp_path, channels, 64)[0], pixels)
        np.testing.assert_array_equal(
            read_as_record(path, tmp_path, channels, 64, augments=True)[0], pixels
        )


def test_16_bits_of_a_photo_are_those_of_its_8_bits(tmp_path):
    """A photo of 16 bits is as bright as the same photo of 8 bits, also if it is dark."""
    photo = np.random.default_rng(0).integers(0, 60, (20, 20)).astype(np.uint8)
    for factor, dtype, ending in ((257, np.uint16, "png"), (257, np.int32, "tif")):
        image = Image.fromarray(photo.astype(dtype) * dtype(factor))
        path = saved(tmp_path / f"x.{ending}", image)
        np.testing.assert_array_equal(read(path, 1, 20)[..., 0], photo)
    # Big-endian TIFF files have a mode of their own in Pillow.
    big = Image.frombytes("I;16B", (20, 20), (photo.astype(">u2") * 257).tobytes())
    np.testing.assert_array_equal(read(saved(tmp_path / "b.tif", big), 1, 20)[..., 0], photo)


@pytest.mark.parametrize(
    "values, expected",
    [
        (ramp(1), np.rint(ramp(255))),
        (ramp(0.5), np.rint(ramp(127.5))),
        (ramp(255), np.rint(ramp(255))),
        (ramp(4095), np.rint(ramp(255))),
        (ramp(65535), np.rint(ramp(255))),
        (ramp(1e6), np.rint(ramp(255))),
        (ramp(40) - 30, np.rint(ramp(255))),
        (np.zeros((64, 64)), np.zeros((64, 64))),
        (np.full((64, 64), -3.0), np.zeros((64, 64))),
        (whole(100_000).astype(np.int32), np.rint(whole(100_000) * 255 / 100_000)),
        (whole(400).astype(np.int32) - 200, np.rint(whole(400) * 255 / 400)),
    ],
)
def test_other_numbers_in_tiff_files(values, expected, tmp_path):
    """Floats from 0 to 1 or of a range of bits keep it; any others are spread over 0 to 255."""
    values = values if values.dtype == np.int32 else values.astype(np.float32)
    path = saved(tmp_path / "x.tif", Image.fromarray(values))
    pixels = read(path, 1, 64)[..., 0].astype(int)
    # In float32, a value may be rounded to the other side of a half.
    assert np.abs(pixels - expected).max() <= 1 and (pixels == expected).mean() > 0.99


def test_numbers_that_are_not_finite_are_damage(tmp_path):
    values = ramp(1).astype(np.float32)
    values[3, 4] = np.nan
    path = saved(tmp_path / "x.tif", Image.fromarray(values))
    with pytest.raises(UserError, match=r"^\S*x.tif: the image is damaged .* not finite\)$"):
        read(path)
    with pytest.raises(UserError, match="x.tif: the image is damaged"):
        read_as_record(path, tmp_path)


def test_other_color_spaces_are_those_of_pillow(tmp_path):
    """One bit, palettes, CMYK, gray and color with alpha: Pillow converts them."""
    photo = picture()
    files = {
        "1.png": photo.convert("1"),
        "1.tif": photo.convert("1"),
        "palette.png": photo.convert("P", palette=Image.Palette.ADAPTIVE, colors=9),
        "palette.gif": photo.convert("P", palette=Image.Palette.ADAPTIVE, colors=200),
        "palette.bmp": photo.convert("P"),
        "cmyk.jpg": photo.convert("CMYK"),
        "cmyk.tif": photo.convert("CMYK"),
        "lab.tif": photo.convert("LAB"),
        "ycbcr.tif": photo.convert("YCbCr"),
        "la.png": photo.convert("LA"),
        "rgba.png": photo.convert("RGBA"),
        "rgba.webp": photo.convert("RGBA"),
    }
    for name in ("la.png", "rgba.png", "rgba.webp"):  # alpha is ignored
        alpha = Image.fromarray(np.indices(photo.size[::-1]).sum(0).astype(np.uint8) * 4)
        files[name].putalpha(alpha)
    for name, image in files.items():
        path = saved(tmp_path / name, image)
        for channels in (1, 3):
            expected = Image.open(path)
            expected = expected.convert("RGB") if expected.mode == "LAB" else expected
            expected = by_pillow(expected, channels)
            np.testing.assert_array_equal(read(path, channels), expected, err_msg=name)


def test_a_long_image_is_not_resized_without_bound(tmp_path):
    path = saved(tmp_path / "x.png", Image.new("L", (1000, 1)))
    with pytest.raises(UserError, match="1000 x 1 pixels would be resized to 12000 x 12, more"):
        View(12, 1, 10**5, 12, fit="shorter").pixels(Image.open(path), None)
