"""Random files of images and audio: pixels and samples are those of Pillow and soundfile.

An image has a random mode, depth, size, orientation and format. A sound has a random rate,
encoding, number of channels and loudness.
"""

import io
import math

import numpy as np
import pytest
import soundfile
from PIL import Image, ImageOps
from scipy import signal

from transformer_jax.data import speech
from transformer_jax.data.images import FileRows, View
from transformer_jax.data.speech import RATE

FEW, ALL = range(24), range(24, 224)
ENDINGS = {
    "1": ("png", "tif", "bmp"),
    "P": ("png", "gif", "tif", "bmp"),
    "L": ("png", "jpg", "webp", "tif"),
    "LA": ("png", "tif"),
    "RGB": ("png", "jpg", "webp", "tif", "bmp"),
    "RGBA": ("png", "webp", "tif"),
    "CMYK": ("jpg", "tif"),
    "8 in 16": ("png", "tif"),
    "12 in 16": ("png", "tif"),
    "16": ("png", "tif"),
    "float": ("tif",),
}
SUBTYPES = {
    "WAV": ("PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW"),
    "FLAC": ("PCM_S8", "PCM_16", "PCM_24"),
}


def smooth(rng, height, width, channels):
    """Returns a smooth image from 0 to 1 (H, W, C)."""
    coarse = rng.uniform(0, 1, (6, 6, channels)).astype(np.float32)
    layers = [
        Image.fromarray(coarse[..., channel]).resize((width, height), Image.Resampling.BICUBIC)
        for channel in range(channels)
    ]
    return np.stack(layers, axis=-1).clip(0, 1)


def of_depth(values, kind):
    """Returns an image of more than 8 bits, and the same in 8 bits by hand."""
    if kind == "float":
        return Image.fromarray(values), np.rint(255 * values)
    bits = int(kind.split()[0])
    whole = np.rint(values * (2**bits - 1)).astype(np.uint16)
    whole[0, 0] = 2**bits - 1
    return Image.fromarray(whole), whole >> (bits - 8)


def write_image(rng, folder):
    """Writes an image. Returns its path and the upright image of 8 bits, in Pillow's mode."""
    kind = rng.choice([*ENDINGS])
    path = folder / f"x.{rng.choice(ENDINGS[kind])}"
    height, width = (int(length) for length in rng.integers(5, 120, 2))
    values = smooth(rng, height, width, 3)
    exif = Image.Exif()
    if rng.random() < 0.8 and path.suffix in (".png", ".jpg", ".webp", ".tif"):
        exif[0x0112] = int(rng.integers(1, 9))
    by_hand = None
    if kind in Image.MODES:
        image = Image.fromarray(np.rint(255 * values).astype(np.uint8)).convert(kind)
        if kind.endswith("A"):
            alpha = np.rint(255 * smooth(rng, height, width, 1)[..., 0]).astype(np.uint8)
            image.putalpha(Image.fromarray(alpha))
    else:
        image, by_hand = of_depth(values[..., 0], kind)
    image.save(path, exif=exif)
    if by_hand is None:
        # Not from the path: Pillow 13 maps some TIFF files that lie on their side into memory
        # with width and height exchanged.
        return path, ImageOps.exif_transpose(Image.open(io.BytesIO(path.read_bytes())))
    eight_bits = Image.fromarray(by_hand.astype(np.uint8))
    eight_bits.getexif().update(exif)
    return path, ImageOps.exif_transpose(eight_bits)


def check_image(rng, folder):
    path, upright = write_image(rng, folder)
    channels, side = int(rng.choice([1, 3])), int(rng.integers(4, 40))
    [row] = FileRows([str(path)], View(side, channels, 10**6, side), 10**8).rows([(0, 0)])
    shorter = min(upright.size)
    left, upper = ((length - shorter) / 2 for length in upright.size)
    expected = upright.convert("L" if channels == 1 else "RGB").resize(
        (side, side),
        Image.Resampling.BILINEAR,
        box=(left, upper, left + shorter, upper + shorter),
    )
    expected = np.array(expected).reshape(side, side, channels)
    difference = np.abs(row["images"].astype(int) - expected).max()
    # A float may be rounded to the other side of a half.
    assert difference <= (1 if path.suffix == ".tif" else 0), path


def check_sound(rng, folder):
    form = rng.choice([*SUBTYPES])
    subtype = rng.choice(SUBTYPES[form])
    rate = int(rng.choice([8_000, 11_025, RATE, 22_050, 44_100, 48_000]))
    loudness = 10.0 ** rng.uniform(-4, 4 if subtype in ("FLOAT", "DOUBLE") else 0)
    frames, channels = int(rng.integers(1, 3000)), int(rng.integers(1, 4))
    sound = loudness * rng.uniform(-1, 1, (frames, channels))
    path = str(folder / f"x.{form.lower()}")
    soundfile.write(path, sound, rate, subtype=subtype, format=form)
    stored, _ = soundfile.read(path, dtype="float64", always_2d=True)
    expected = stored.mean(axis=1)
    if rate != RATE:
        common = math.gcd(rate, RATE)
        expected = signal.resample_poly(expected, RATE // common, rate // common)
    samples = speech.read(path, path)
    # Files of at most 16 bits are kept with 16 bits, after the mean over channels and resampling.
    rounding = 0.5 / 2**15 if samples.dtype == np.int16 else 0
    scale = np.abs(expected).max()
    np.testing.assert_allclose(
        speech.waveform(samples), expected, rtol=0, atol=1.001 * rounding + 1e-5 * scale
    )
    if rate == RATE and channels == 1:
        np.testing.assert_array_equal(speech.waveform(samples), expected.astype(np.float32))


def check(seed, folder):
    rng = np.random.default_rng(seed)
    (check_sound if seed % 2 else check_image)(rng, folder)


def test_a_few_files(tmp_path):
    for seed in FEW:
        check(seed, tmp_path)


@pytest.mark.full
def test_two_hundred_files(tmp_path):
    for seed in ALL:
        check(seed, tmp_path)
