"""Images: their files, their records, their augmentation, and rows of them."""

import dataclasses
import io
import math
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from transformer_jax.config import UserError
from transformer_jax.data.rows import Row, generator
from transformer_jax.data.store import Record, Records
from transformer_jax.storage import buckets

if TYPE_CHECKING:  # an optional library
    from PIL.Image import Image


# --------------------------------------------------------------------------------------------------
# Image files: opened by Pillow in a few formats, bounded before they are decoded.

# The formats that are opened, and the endings of their files.
FORMATS = {
    "PNG": (".png",),
    "JPEG": (".jpg", ".jpeg"),
    "WEBP": (".webp",),
    "BMP": (".bmp",),
    "GIF": (".gif",),
}
ENDINGS = tuple(ending for endings in FORMATS.values() for ending in endings)
MOST_PIXELS = 89_478_485  # Pillow warns of a decompression bomb beyond so many


def pillow() -> ModuleType:
    """Returns `PIL.Image`, whose warning of a decompression bomb is an error from now on.

    Raises UserError where Pillow is not installed.
    """
    try:
        from PIL import Image
    except ImportError:
        raise UserError("images need Pillow: pip install -e '.[vision]'") from None
    warnings.simplefilter("error", Image.DecompressionBombWarning)
    return Image


def opened(content: bytes, where: str, max_pixels: int) -> "Image":
    """Returns the image in the bytes of a file, not decoded yet.

    `where` is its place in error messages. Raises UserError for bytes that are no image of FORMATS,
    and for an image of more than `max_pixels`.
    """
    module = pillow()
    if not content:
        raise UserError(f"{where}: the file is empty")
    try:
        image = module.open(io.BytesIO(content), formats=[*FORMATS])
    except module.UnidentifiedImageError:
        raise UserError(f"{where}: no image of the formats {', '.join(FORMATS)}") from None
    except (module.DecompressionBombError, module.DecompressionBombWarning) as error:
        raise UserError(f"{where}: {error}") from None
    except Exception as error:  # each format of Pillow raises its own
        raise UserError(f"{where}: can't be read as an image ({error})") from None
    width, height = image.size
    if width * height > max_pixels:
        raise UserError(
            f"{where}: {width} x {height} pixels: an image may have at most "
            f"config.source.max_pixels={max_pixels}"
        )
    return image


def loaded(image: "Image", where: str) -> "Image":
    """Returns the decoded image. Raises UserError where the file is damaged."""
    try:
        image.load()
    except Exception as error:  # each format of Pillow raises its own
        raise UserError(f"{where}: the image is damaged ({error})") from None
    return image


def check_file(content: bytes, where: str, max_pixels: int) -> tuple[int, int]:
    """Returns (height, width) of an image file. Raises UserError where it can't be decoded.

    A JPEG is decoded at an eighth of its size, which finds a damage as well.
    """
    image = opened(content, where, max_pixels)
    width, height = image.size
    image.draft(None, (1, 1))
    loaded(image, where)
    return height, width


def open_image(path: str, max_pixels: int, max_bytes: int) -> "Image":
    """Returns the decoded image of a file. Raises UserError as `opened` and `loaded` do."""
    return loaded(opened(file_bytes(path, max_bytes), path, max_pixels), path)


def file_bytes(path: str, max_bytes: int) -> bytes:
    """Returns the content of a file. Raises UserError where it can't be read, or is too large."""
    with buckets.reading(path):
        size = buckets.size(path)
        if size > max_bytes:
            raise UserError(
                f"{path}: {size} bytes: a file may have at most config.source.max_bytes={max_bytes}"
            )
        return buckets.path(path).read_bytes()


def image_from_pixels(pixels: np.ndarray) -> "Image":
    """Returns the image of an array of pixels, uint8 (H, W, 1) or (H, W, 3)."""
    pixels = pixels[..., 0] if pixels.shape[-1] == 1 else pixels
    return pillow().fromarray(np.ascontiguousarray(pixels))


def pixels_of(image: "Image") -> np.ndarray:
    """Returns the pixels of an image of mode L or RGB, uint8 (H, W, 1) or (H, W, 3)."""
    pixels = np.array(image)
    return pixels[..., None] if pixels.ndim == 2 else pixels


# --------------------------------------------------------------------------------------------------
# Images as records of a source: files as they are, or raw pixels.

SHAPE = ("height", "width", "channels")  # numbers of a record
ENCODED = 0  # "channels" of a record that is an image file
NO_LABEL = -1


def record_of_pixels(pixels: np.ndarray, label: int) -> Record:
    """Returns the record of an array of pixels, uint8 (H, W, C)."""
    shape = dict(zip(SHAPE, pixels.shape))
    return Record(pixels.tobytes(), {"label": label, **shape})


def record_of_file(content: bytes, size: tuple[int, int], label: int) -> Record:
    """Returns the record of an image file of `size` (height, width)."""
    shape = dict(zip(SHAPE, (*size, ENCODED)))
    return Record(content, {"label": label, **shape})


# --------------------------------------------------------------------------------------------------
# Augmentation of images: pure functions of an image and of the generator of its row.

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
    bilinear = pillow().Resampling.BILINEAR
    return image.resize((side, side), bilinear, box=box, reducing_gap=2.0)


def flipped(image: "Image", generator: np.random.Generator) -> "Image":
    """Returns the image, or in half of the draws its mirror image."""
    mirror = pillow().Transpose.FLIP_LEFT_RIGHT
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
    bilinear = pillow().Resampling.BILINEAR
    return image.rotate(sign * 30 * level, bilinear, fillcolor=_grey(image))


def _moved(columns: float, rows: float, leaning: bool):
    """Returns an affine operation: with `leaning` a shear by up to 0.3, else a shift by up to 0.45.

    The shift is a share of the sides. The operation is along the columns or the rows.
    """

    def operation(image: "Image", level: float, sign: int) -> "Image":
        module = pillow()
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


# --------------------------------------------------------------------------------------------------
# Rows of images: decoded, cut to one size and augmented when they are read.


@dataclasses.dataclass(frozen=True)
class View:
    """The square of an image that a model reads.

    Without `augments`, it is the centre of the image, whose shorter side is `resize` pixels before.
    """

    side: int  # pixels of a side
    channels: int  # 1: grey; 3: red, green and blue
    max_pixels: int
    resize: int
    augments: bool = False
    random_crop: tuple[float, float] | None = None  # least and largest share of the area
    flip: bool = False
    shift: int = 0
    rand_augment: tuple[int, float] | None = None  # number of operations, magnitude

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.side, self.side, self.channels

    def pixels(self, image: "Image", random: np.random.Generator | None) -> np.ndarray:
        """Returns the pixels of an image, uint8 (S, S, C). The generator draws the augmentation."""
        mode = "L" if self.channels == 1 else "RGB"
        if not self.augments:
            box = centre_box(image.size, self.side / self.resize)
            return pixels_of(resized(image, box, self.side, mode))
        if self.random_crop:
            box = random_box(image.size, self.random_crop, random)
        else:
            box = centre_box(image.size)
        image = resized(image, box, self.side, mode)
        if self.flip:
            image = flipped(image, random)
        if self.rand_augment:
            image = rand_augmented(image, *self.rand_augment, random)
        pixels = pixels_of(image)
        return shifted(pixels, self.shift, random) if self.shift else pixels


class ImageRows:
    """A row for each record: "images" uint8 (S, S, C), and "weight" 1, int32 ().

    The rows that fill the last batch of an evaluation have weight 0. `key` is that of Philox.
    """

    def __init__(self, records: Records, view: View, key: np.ndarray):
        self.records, self.view, self.key = records, view, key
        self._shapes = np.stack([records.array(name) for name in SHAPE], axis=1)

    def __len__(self) -> int:
        return len(self.records)

    def rows(self, numbers: Sequence[tuple[int, int]]) -> list[Row]:
        contents = self.records.read([number for number, _ in numbers])
        return [
            self.row(number, content, generator(self.key, number, epoch))
            for (number, epoch), content in zip(numbers, contents)
        ]

    def row(self, number: int, content: np.ndarray, random: np.random.Generator) -> Row:
        """Returns the row of a record, from its content."""
        pixels = self.pixels(number, content, random)
        return {"images": pixels, "weight": np.ones((), np.int32)}

    def pixels(self, number: int, content: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Returns the pixels of a record, uint8 (S, S, C)."""
        shape = self._shapes[number]
        if shape[2] == ENCODED:
            where = f"record {number} of the images"
            image = opened(content.tobytes(), where, self.view.max_pixels)
        else:
            image = image_from_pixels(content.reshape(shape))
        return self.view.pixels(image, random)


class LabelledRows(ImageRows):
    """Rows with "labels" int32 (K,) in place of a weight, and their "shares" float32 (K,).

    K is 1, and the share 1. With `mixup`, K is 2: a row is mixed with the row of another record,
    which it draws. Its share of the mixture is from Beta(mixup, mixup) (Zhang et al. 2018). The
    rows that fill the last batch of an evaluation have shares of 0.
    """

    def __init__(
        self,
        records: Records,
        view: View,
        key: np.ndarray,
        labels: np.ndarray,
        mixup: float = 0.0,
    ):
        super().__init__(records, view, key)
        self.labels, self.mixup = labels, mixup

    def rows(self, numbers: Sequence[tuple[int, int]]) -> list[Row]:
        if not self.mixup:
            return super().rows(numbers)
        randoms = [generator(self.key, *number) for number in numbers]
        partners = [int(random.integers(len(self))) for random in randoms]
        both = [*(number for number, _ in numbers), *partners]
        contents = self.records.read(both)
        drawn = [
            self.pixels(number, content, random)
            for number, content, random in zip(both, contents, 2 * randoms)
        ]
        pairs = zip(drawn, drawn[len(numbers) :])
        labels = zip(self.labels[both], self.labels[partners])
        return [self._mixed(*each) for each in zip(pairs, labels, randoms)]

    def _mixed(self, pair, labels: tuple[int, int], random: np.random.Generator) -> Row:
        share = random.beta(self.mixup, self.mixup)
        return {
            "images": mixed(*pair, share),
            "labels": np.array(labels, np.int32),
            "shares": np.array([share, 1 - share], np.float32),
        }

    def row(self, number: int, content: np.ndarray, random: np.random.Generator) -> Row:
        return {
            "images": self.pixels(number, content, random),
            "labels": np.array([self.labels[number]], np.int32),
            "shares": np.ones(1, np.float32),
        }


class PermutedRows(ImageRows):
    """Rows with an "order" int32 (N,) beside: a random permutation of the N patches of an image."""

    def __init__(self, records: Records, view: View, key: np.ndarray, num_patches: int):
        super().__init__(records, view, key)
        self.num_patches = num_patches

    def row(self, number: int, content: np.ndarray, random: np.random.Generator) -> Row:
        row = super().row(number, content, random)
        return row | {"order": random.permutation(self.num_patches).astype(np.int32)}


class FileRows:
    """A row for each image file of a user: "images" uint8 (S, S, C), without augmentation."""

    def __init__(self, paths: Sequence[str], view: View, max_bytes: int):
        self.paths, self.view, self.max_bytes = paths, view, max_bytes

    def __len__(self) -> int:
        return len(self.paths)

    def rows(self, numbers: Sequence[tuple[int, int]]) -> list[Row]:
        return [{"images": self._pixels(self.paths[number])} for number, _ in numbers]

    def _pixels(self, path: str) -> np.ndarray:
        image = open_image(path, self.view.max_pixels, self.max_bytes)
        return self.view.pixels(image, None)
