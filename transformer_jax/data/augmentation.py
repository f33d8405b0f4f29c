"""Augmentation of images: pure functions of an image and of the generator of its row."""

import math
from typing import TYPE_CHECKING

import numpy as np

from transformer_jax.data import images

if TYPE_CHECKING:  # an optional library
    from PIL.Image import Image

Box = tuple[float, float, float, float]  # left, upper, right and lower, in pixels

_TRIES = 10
_LONGEST_SIDE = 4 / 3  # of a random crop, over its shorter side


def centre_box(size: tuple[int, int], share: float = 1.0) -> Box:
    """Returns the square in the centre of an image of `size` (width, height).

    Its sides are `share` of the image's shorter side.
    """
    width, height = size
    side = share * min(width, height)
    left, upper = (width - side) / 2, (height - side) / 2
    return left, upper, left + side, upper + side


def random_box(
    size: tuple[int, int], area: tuple[float, float], generator: np.random.Generator
) -> Box:
    """Returns the box of a random crop (Szegedy et al. 2015, section 6).

    Its area is a share of the image between those of `area`. The ratio of its sides is from 3/4 to
    4/3, on a logarithmic scale. Where no such box fits in 10 draws, it is the square in the centre.
    """
    width, height = size
    for _ in range(_TRIES):
        target = generator.uniform(*area) * width * height
        ratio = math.exp(generator.uniform(-1, 1) * math.log(_LONGEST_SIDE))
        box_width, box_height = math.sqrt(target * ratio), math.sqrt(target / ratio)
        if box_width <= width and box_height <= height:
            left = generator.uniform(0, width - box_width)
            upper = generator.uniform(0, height - box_height)
            return left, upper, left + box_width, upper + box_height
    return centre_box(size)


def resized(image: "Image", box: Box, side: int, mode: str) -> "Image":
    """Returns the box of an image as a square of `side` pixels, in the `mode` L or RGB.

    The interpolation is bilinear over all pixels of the box. A JPEG that has not been decoded is
    decoded at the least size of its format that is not smaller than needed.
    """
    full = image.size
    smaller = max(side / max(box[2] - box[0], 1e-6), side / max(box[3] - box[1], 1e-6))
    if smaller < 1:
        image.draft(None, tuple(math.ceil(length * smaller) for length in full))
        scale = [now / before for now, before in zip(image.size, full)]
        box = tuple(edge * scale[number % 2] for number, edge in enumerate(box))
    image = image if image.mode == mode else image.convert(mode)
    if image.size == (side, side) and box == (0, 0, side, side):
        return image
    bilinear = images.pillow().Resampling.BILINEAR
    return image.resize((side, side), bilinear, box=box, reducing_gap=2.0)


def flipped(image: "Image", generator: np.random.Generator) -> "Image":
    """Returns the image, or in half of the draws its mirror image."""
    mirror = images.pillow().Transpose.FLIP_LEFT_RIGHT
    return image.transpose(mirror) if generator.random() < 0.5 else image


def shifted(pixels: np.ndarray, most: int, generator: np.random.Generator) -> np.ndarray:
    """Returns pixels (H, W, C) moved by up to `most` rows and columns; 0 fills the border."""
    height, width, _ = pixels.shape
    down, right = generator.integers(-most, most, 2, endpoint=True)
    moved = np.zeros_like(pixels)
    rows = slice(max(down, 0), height + min(down, 0))
    columns = slice(max(right, 0), width + min(right, 0))
    source_rows = slice(max(-down, 0), height + min(-down, 0))
    source_columns = slice(max(-right, 0), width + min(-right, 0))
    moved[rows, columns] = pixels[source_rows, source_columns]
    return moved


def mixed(pixels: np.ndarray, others: np.ndarray, share: float) -> np.ndarray:
    """Returns `share` of the pixels and the rest of the others (Zhang et al. 2018): mixup."""
    mixture = share * pixels.astype(np.float32) + (1 - share) * others.astype(np.float32)
    return np.rint(mixture).astype(np.uint8)


def rand_augmented(
    image: "Image", count: int, magnitude: float, generator: np.random.Generator
) -> "Image":
    """Returns the image after `count` random operations of RandAugment (Cubuk et al. 2019).

    Each of the 14 operations of their section 3 is equally likely. A magnitude is from 0 to 10, and
    its ranges are those of AutoAugment (Cubuk et al. 2018, appendix A, table 6). Half of the
    magnitudes with a direction are negative. Grey fills the border.
    """
    for number in generator.integers(len(_OPERATIONS), size=count):
        sign = 1 if generator.random() < 0.5 else -1
        image = _OPERATIONS[number](image, magnitude / 10, sign)
    return image


def _identity(image: "Image", level: float, sign: int) -> "Image":
    return image


def _autocontrast(image: "Image", level: float, sign: int) -> "Image":
    from PIL import ImageOps

    return ImageOps.autocontrast(image)


def _equalize(image: "Image", level: float, sign: int) -> "Image":
    from PIL import ImageOps

    return ImageOps.equalize(image)


def _solarize(image: "Image", level: float, sign: int) -> "Image":
    from PIL import ImageOps

    return ImageOps.solarize(image, round(256 * (1 - level)))


def _posterize(image: "Image", level: float, sign: int) -> "Image":
    from PIL import ImageOps

    return ImageOps.posterize(image, round(8 - 4 * level))


def _enhanced(kind: str):
    """Returns the operation that changes a property of the image by up to 0.9 of it."""

    def operation(image: "Image", level: float, sign: int) -> "Image":
        from PIL import ImageEnhance

        return getattr(ImageEnhance, kind)(image).enhance(1 + sign * 0.9 * level)

    return operation


def _rotate(image: "Image", level: float, sign: int) -> "Image":
    bilinear = images.pillow().Resampling.BILINEAR
    return image.rotate(sign * 30 * level, bilinear, fillcolor=_grey(image))


def _moved(columns: float, rows: float, leaning: bool):
    """Returns an affine operation: with `leaning` a shear by up to 0.3, else a shift by up to 0.45.

    The shift is a share of the sides. The operation is along the columns or the rows.
    """

    def operation(image: "Image", level: float, sign: int) -> "Image":
        module = images.pillow()
        width, height = image.size
        along, across = sign * level * columns, sign * level * rows
        if leaning:
            matrix = (1, along, 0, across, 1, 0)
        else:
            matrix = (1, 0, along * width, 0, 1, across * height)
        transform = module.Transform.AFFINE
        bilinear = module.Resampling.BILINEAR
        return image.transform(image.size, transform, matrix, bilinear, fillcolor=_grey(image))

    return operation


def _grey(image: "Image") -> int | tuple[int, int, int]:
    return 128 if image.mode == "L" else (128, 128, 128)


_OPERATIONS = (
    _identity,
    _autocontrast,
    _equalize,
    _rotate,
    _solarize,
    _posterize,
    _enhanced("Color"),
    _enhanced("Contrast"),
    _enhanced("Brightness"),
    _enhanced("Sharpness"),
    _moved(0.3, 0.0, leaning=True),
    _moved(0.0, 0.3, leaning=True),
    _moved(0.45, 0.0, leaning=False),
    _moved(0.0, 0.45, leaning=False),
)
