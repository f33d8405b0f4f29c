"""Images: reading files, records, augmentation, and rows."""

import dataclasses
import io
import math
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Literal

import numpy as np

from transformer_jax.config import UserError
from transformer_jax.data.rows import Row, generator
from transformer_jax.data.store import Record, Records
from transformer_jax.storage import buckets

if TYPE_CHECKING:  # an optional library
    from PIL.Image import Image


# --------------------------------------------------------------------------------------------------
# Image files, which Pillow opens in a few formats only, whatever their names say. Their size is
# checked before they are decoded, so that a small file can't fill the memory.

# The supported formats, and the suffixes of their files. Pillow is told these formats, because it
# would otherwise open files of many more.
FORMATS = {
    "PNG": (".png",),
    "JPEG": (".jpg", ".jpeg"),
    "WEBP": (".webp",),
    "BMP": (".bmp",),
    "GIF": (".gif",),
    "TIFF": (".tif", ".tiff"),
}
ENDINGS = tuple(ending for endings in FORMATS.values() for ending in endings)
MOST_PIXELS = 89_478_485  # Pillow warns of a decompression bomb if an image has more


def pillow() -> ModuleType:
    """Returns `PIL.Image`, and turns its decompression bomb warning into an error.

    Raises UserError if Pillow is not installed.
    """
    try:
        from PIL import Image
    except ImportError:
        raise UserError("images need Pillow: pip install -e '.[vision]'") from None
    # As an error, it stops Pillow before it decodes. As a warning, it would scroll past.
    warnings.simplefilter("error", Image.DecompressionBombWarning)
    return Image


def opened(content: bytes, where: str, max_pixels: int) -> "Image":
    """Opens the image in the bytes of a file, without decoding it.

    `where` is its location for error messages. Raises UserError if the bytes are not an image in
    one of FORMATS, or if the image has more than `max_pixels`.
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
    except Exception as error:  # each of Pillow's formats raises its own exceptions
        raise UserError(f"{where}: can't be read as an image ({error})") from None
    width, height = image.size
    if width * height > max_pixels:
        raise UserError(
            f"{where}: {width} x {height} pixels: an image may have at most "
            f"config.source.max_pixels={max_pixels}"
        )
    return image


def loaded(image: "Image", where: str) -> "Image":
    """Decodes the image. Raises UserError if the file is damaged, or has values such as NaN."""
    try:
        image.load()
    except Exception as error:  # each of Pillow's formats raises its own exceptions
        raise UserError(f"{where}: the image is damaged ({error})") from None
    # `converted` scales by the smallest and the largest value, which must not be NaN.
    if image.mode == "F" and not np.isfinite(np.asarray(image)).all():
        raise UserError(f"{where}: the image is damaged (it has values that are not finite)")
    return image


def check_file(content: bytes, where: str, max_pixels: int) -> tuple[int, int]:
    """Returns (height, width) of an upright image file. Raises UserError if it can't be decoded.

    A JPEG is decoded at an eighth of its size, which is faster and detects damage as well.
    """
    image = opened(content, where, max_pixels)
    size = image.size
    # The size was taken before, because `draft` changes it.
    image.draft(None, (1, 1))
    loaded(image, where)
    width, height = size[::-1] if _is_on_its_side(image) else size
    return height, width


def open_image(path: str, max_pixels: int, max_bytes: int) -> "Image":
    """Returns the decoded image of a file. Raises UserError like `opened` and `loaded`."""
    return loaded(opened(file_bytes(path, max_bytes), path, max_pixels), path)


def file_bytes(path: str, max_bytes: int) -> bytes:
    """Returns the content of a file. Raises UserError if it can't be read or is too large."""
    with buckets.reading(path):
        size = buckets.size(path)
        if size > max_bytes:
            raise UserError(
                f"{path}: {size} bytes: a file may have at most config.source.max_bytes={max_bytes}"
            )
        return buckets.path(path).read_bytes()


def image_from_pixels(pixels: np.ndarray) -> "Image":
    """Returns an image from an array of pixels, uint8 (H, W, 1) or (H, W, 3)."""
    pixels = pixels[..., 0] if pixels.shape[-1] == 1 else pixels
    return pillow().fromarray(np.ascontiguousarray(pixels))


def pixels_of(image: "Image") -> np.ndarray:
    """Returns the pixels of an image of mode L or RGB, uint8 (H, W, 1) or (H, W, 3)."""
    # A copy, because `np.asarray` of an image is read-only.
    pixels = np.array(image)
    return pixels[..., None] if pixels.ndim == 2 else pixels


# --------------------------------------------------------------------------------------------------
# What the file says about its pixels: which way is up, and which values are black and white. Pillow
# applies neither when it decodes, so that an image would be read differently from how it is seen.

# EXIF's orientations, and the method of Pillow's `transpose` that turns such an image upright, as
# in `PIL.ImageOps.exif_transpose`. That function is not called itself, because it also writes the
# EXIF data anew, which fails for some cameras.
_ORIENTATION = 0x0112
_TO_UPRIGHT = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
_ON_SIDE = (5, 6, 7, 8)  # these exchange width and height

# The bits that values in a file of 16 or more bits may have. Cameras and scanners of 12 bits often
# store their values unscaled, and so do programs that write 8 bits in a larger type.
_BITS = (8, 12, 16)


def _orientation(image: "Image") -> int:
    """Returns the orientation in an image's EXIF data, 1 if it is upright or has none."""
    # Pillow turns a TIFF when it decodes it, and its size is the upright one from the beginning.
    if image.format == "TIFF":
        return 1
    try:
        return image.getexif().get(_ORIENTATION, 1)
    except Exception:  # damaged EXIF data of an image that is whole: each reader ignores them
        return 1


def _is_on_its_side(image: "Image") -> bool:
    return _orientation(image) in _ON_SIDE


def upright_size(image: "Image") -> tuple[int, int]:
    """Returns (width, height) of an image once it is `upright`."""
    return image.size[::-1] if _is_on_its_side(image) else image.size


def upright(image: "Image") -> "Image":
    """Returns an image as its EXIF orientation says that it is looked at."""
    method = _TO_UPRIGHT.get(_orientation(image))
    return image.transpose(getattr(pillow().Transpose, method)) if method else image


def converted(image: "Image", mode: str) -> "Image":
    """Returns an image in the `mode` L or RGB, with values from 0 to 255.

    Pillow converts palettes, single bits, CMYK and other color spaces, and ignores transparency. It
    would clip an image of one channel of more than 8 bits at 255, so that almost all of it would
    be white. Such an image is scaled by its own range, the smallest of 8, 12 and 16 bits that holds
    all of its values, and for numbers that are not whole also 0 to 1. Whole numbers keep their
    highest 8 bits, as Pillow keeps those of a color image of 16 bits. Where values are negative or
    larger, the smallest becomes 0 and the largest 255.
    """
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        image = pillow().fromarray(_in_bytes(np.asarray(image)))
    if image.mode == "LAB":  # Pillow converts it to RGB only
        image = image.convert("RGB")
    return image if image.mode == mode else image.convert(mode)


def _in_bytes(values: np.ndarray) -> np.ndarray:
    """Returns values, integers or float32 (H, W), scaled to uint8 as `converted` says."""
    least, most = float(values.min()), float(values.max())
    is_whole = values.dtype.kind != "f"
    ranges = [2**bits - 1 for bits in _BITS] if is_whole else [1, *(2**bits - 1 for bits in _BITS)]
    top = next((top for top in ranges if 0 <= least and most <= top), None)
    if top is None:
        # A constant image has no range to divide by.
        values, top = values - least, most - least or 1.0
    elif is_whole:
        # A shift and not a rounded division, because Pillow reads color images of 16 bits in this
        # way.
        return (values >> (top.bit_length() - 8)).astype(np.uint8)
    return np.rint(values * (255 / top)).astype(np.uint8)


# --------------------------------------------------------------------------------------------------
# Images as records: either the unchanged bytes of an image file, or raw pixels. Files stay encoded,
# because decoded images would take many times the space, and a crop needs them in their full size.

SHAPE = ("height", "width", "channels")  # integers of a record
ENCODED = 0  # as "channels", for an image file, because pixels have at least 1 channel
NO_LABEL = -1


def known_labels(records: Records) -> np.ndarray:
    """Returns the labels of records, int64 (N,). Raises UserError if an image has none."""
    values = records.array("label")
    if num_unlabelled := int((values == NO_LABEL).sum()):
        raise UserError(
            f"config.data: {num_unlabelled:,} of {len(values):,} images have no label, which TFDS "
            "says by -1; name a split whose images have labels"
        )
    return values


def record_of_pixels(pixels: np.ndarray, label: int) -> Record:
    """Returns a record of pixels, uint8 (H, W, C)."""
    shape = dict(zip(SHAPE, pixels.shape))
    return Record(pixels.tobytes(), {"label": label, **shape})


def record_of_file(content: bytes, size: tuple[int, int], label: int) -> Record:
    """Returns a record of an image file whose image has this `size` (height, width)."""
    shape = dict(zip(SHAPE, (*size, ENCODED)))
    return Record(content, {"label": label, **shape})


# --------------------------------------------------------------------------------------------------
# Image augmentation: functions of an image and of the random generator of its row, so that an image
# does not depend on which process reads it, or when.

Box = tuple[float, float, float, float]  # left, upper, right and lower, in pixels

_TRIES = 10
_LONGEST_SIDE = 4 / 3  # of a random crop, as in the paper


def centre_box(size: tuple[int, int], share: float = 1.0) -> Box:
    """Returns the central square of an image of `size` (width, height).

    Its side is `share` times the shorter side of the image.
    """
    width, height = size
    side = share * min(width, height)
    left, upper = (width - side) / 2, (height - side) / 2
    return left, upper, left + side, upper + side


def random_box(
    size: tuple[int, int], area: tuple[float, float], generator: np.random.Generator
) -> Box:
    """Returns the box of a random crop (Szegedy et al. 2015, section 6).

    Its share of the image's area is drawn uniformly between the two values of `area`, and its
    aspect ratio log-uniformly between 3/4 and 4/3. If none of 10 such boxes fits in the image, the
    central square is returned.
    """
    width, height = size
    for _ in range(_TRIES):
        target = generator.uniform(*area) * width * height
        # Log-uniform, so that wide and tall boxes are equally likely.
        ratio = math.exp(generator.uniform(-1, 1) * math.log(_LONGEST_SIDE))
        box_width, box_height = math.sqrt(target * ratio), math.sqrt(target / ratio)
        if box_width <= width and box_height <= height:
            left = generator.uniform(0, width - box_width)
            upper = generator.uniform(0, height - box_height)
            return left, upper, left + box_width, upper + box_height
    return centre_box(size)


# How an evaluated image is resized, see `View`: published models differ in it.
Fit = Literal["center", "stretch", "shorter", "none"]
Resample = Literal["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"]


def resized(
    image: "Image", box: Box, side: int, mode: str, resample: Resample = "bilinear"
) -> "Image":
    """Resizes the box of an image to a square of `side` pixels, in the `mode` L or RGB.

    The box is one of the `upright` image. The interpolation `resample`, has
    antialiasing. A JPEG that has not been decoded yet is decoded at the smallest of the sizes that
    its format offers which is large enough, and a much larger image is first reduced by whole
    pixels. Both are faster than Pillow's plain `resize`, whose pixels differ a little.
    """
    full = upright_size(image)
    # `draft` has an effect only before a JPEG is decoded. It saves much of the time that decoding a
    # large JPEG would take.
    smaller = max(side / max(box[2] - box[0], 1e-6), side / max(box[3] - box[1], 1e-6))
    if smaller < 1:
        image.draft(None, tuple(math.ceil(length * smaller) for length in image.size))
        # From the size that `draft` has chosen: a JPEG is only decoded at a half, a quarter or an
        # eighth.
        scale = [new / old for new, old in zip(upright_size(image), full)]
        box = tuple(edge * scale[number % 2] for number, edge in enumerate(box))
    image = converted(upright(image), mode)
    if image.size == (side, side) and box == (0, 0, side, side):
        return image
    filter = getattr(pillow().Resampling, resample.upper())
    return image.resize((side, side), filter, box=box, reducing_gap=2.0)


def flipped(image: "Image", generator: np.random.Generator) -> "Image":
    """Flips the image horizontally with probability 1/2."""
    mirror = pillow().Transpose.FLIP_LEFT_RIGHT
    return image.transpose(mirror) if generator.random() < 0.5 else image


def shifted(pixels: np.ndarray, most: int, generator: np.random.Generator) -> np.ndarray:
    """Shifts pixels (H, W, C) randomly by up to `most` rows and columns, and fills with zeros."""
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
    """Returns mixup's weighted mean of two images (Zhang et al. 2018), rounded to uint8."""
    # In float32, because products of uint8 would overflow.
    mixture = share * pixels.astype(np.float32) + (1 - share) * others.astype(np.float32)
    return np.rint(mixture).astype(np.uint8)


def rand_augmented(
    image: "Image", count: int, magnitude: float, generator: np.random.Generator
) -> "Image":
    """Applies `count` random operations of RandAugment to an image (Cubuk et al. 2019).

    The 14 operations of section 3 are equally likely. `magnitude` is from 0 to 10 and scales the
    ranges of AutoAugment (Cubuk et al. 2018, appendix A, table 6). Magnitudes that have a direction
    are negative with probability 1/2. Borders are filled with gray.
    """
    for number in generator.integers(len(_OPERATIONS), size=count):
        sign = 1 if generator.random() < 0.5 else -1
        image = _OPERATIONS[number](image, magnitude / 10, sign)
    return image


def _identity(image: "Image", level: float, sign: int) -> "Image":
    return image


def _autocontrast(image: "Image", level: float, sign: int) -> "Image":
    # Imported here, as in the functions below, because Pillow is an optional library.
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

    # From 8 to 4 bits, the range of AutoAugment's table.
    return ImageOps.posterize(image, round(8 - 4 * level))


def _enhanced(kind: str):
    """Returns the operation that scales a property of the image by a factor from 0.1 to 1.9."""

    def operation(image: "Image", level: float, sign: int) -> "Image":
        from PIL import ImageEnhance

        return getattr(ImageEnhance, kind)(image).enhance(1 + sign * 0.9 * level)

    return operation


def _rotate(image: "Image", level: float, sign: int) -> "Image":
    bilinear = pillow().Resampling.BILINEAR
    return image.rotate(sign * 30 * level, bilinear, fillcolor=_gray(image))


def _affine(columns: float, rows: float, shear: bool):
    """Returns an affine operation: a shear, or a translation by a share of the image's sides.

    `columns` and `rows` are the largest values along the two axes, of which one is 0.
    """

    def operation(image: "Image", level: float, sign: int) -> "Image":
        module = pillow()
        width, height = image.size
        along, across = sign * level * columns, sign * level * rows
        if shear:
            matrix = (1, along, 0, across, 1, 0)
        else:
            matrix = (1, 0, along * width, 0, 1, across * height)
        transform = module.Transform.AFFINE
        bilinear = module.Resampling.BILINEAR
        return image.transform(image.size, transform, matrix, bilinear, fillcolor=_gray(image))

    return operation


def _gray(image: "Image") -> int | tuple[int, int, int]:
    # The color of the borders in AutoAugment's published code.
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
    _affine(0.3, 0.0, shear=True),
    _affine(0.0, 0.3, shear=True),
    _affine(0.45, 0.0, shear=False),
    _affine(0.0, 0.45, shear=False),
)


# --------------------------------------------------------------------------------------------------
# Rows of images, which are decoded, cropped to one size and augmented when they are read, because
# each epoch crops and augments otherwise.


@dataclasses.dataclass(frozen=True)
class View:
    """How an image becomes the square of pixels that a model reads.

    Without `augments`, it is the central square of the resized image. `fit` says how an image is
    resized:

    center: its shorter side to `resize` pixels, and its center is read, by one interpolation of a
      box whose edges may lie between pixels, so that nothing is distorted.
    stretch: both of its sides to `resize` pixels.
    shorter: its shorter side to `resize` pixels, and the longer one in proportion, rounded down.
    none: not at all.

    The last three are as in transformers' image processors: the center is cut out in whole
    pixels, and an image that is smaller than the square is padded with zeros.
    """

    side: int  # pixels on each side
    channels: int  # 1: grayscale; 3: RGB
    max_pixels: int
    resize: int
    fit: Fit = "center"
    resample: Resample = "bilinear"  # the interpolation
    augments: bool = False
    random_crop: tuple[float, float] | None = None  # smallest and largest share of the area
    flip: bool = False
    shift: int = 0
    rand_augment: tuple[int, float] | None = None  # number of operations, magnitude

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.side, self.side, self.channels

    def pixels(self, image: "Image", random: np.random.Generator | None) -> np.ndarray:
        """Returns the pixels of an image, uint8 (S, S, C).

        `random` draws the augmentation, and may be None without `augments`.
        """
        mode = "L" if self.channels == 1 else "RGB"
        if not self.augments:
            return pixels_of(self._fitted(converted(upright(image), mode)))
        size = upright_size(image)
        box = random_box(size, self.random_crop, random) if self.random_crop else centre_box(size)
        image = resized(image, box, self.side, mode, self.resample)
        if self.flip:
            image = flipped(image, random)
        if self.rand_augment:
            image = rand_augmented(image, *self.rand_augment, random)
        pixels = pixels_of(image)
        return shifted(pixels, self.shift, random) if self.shift else pixels

    def _fitted(self, image: "Image") -> "Image":
        """Returns the central square of a resized image, by Pillow's plain `resize`."""
        side, resize = self.side, self.resize
        filter = getattr(pillow().Resampling, self.resample.upper())
        if self.fit == "center":
            box = centre_box(image.size, side / resize)
            return image.resize((side, side), filter, box=box)
        if self.fit == "stretch":
            image = image.resize((resize, resize), filter)
        elif self.fit == "shorter":
            width, height = (resize * length // min(image.size) for length in image.size)
            # A long and narrow image of few pixels would take much memory.
            if width * height > self.max_pixels:
                raise UserError(
                    f"an image of {image.size[0]} x {image.size[1]} pixels would be resized to "
                    f"{width} x {height}, more than config.source.max_pixels={self.max_pixels}"
                )
            image = image.resize((width, height), filter)
        left, upper = ((length - side) // 2 for length in image.size)
        return image.crop((left, upper, left + side, upper + side))


class ImageRows:
    """One row for each record: "images" uint8 (S, S, C), and "weight" int32 (), which is 1.

    `key` is the Philox key from `rows.philox_key`.
    """

    def __init__(self, records: Records, view: View, key: np.ndarray):
        self.records, self.view, self.key = records, view, key
        # Read at once, because they are small and each row needs one.
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
        """Returns the row for a record with this content."""
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
    """Rows with "labels" int32 (K,) and their "shares" float32 (K,), instead of "weight".

    Without `mixup`, K is 1 and the share is 1. With `mixup`, K is 2: each row is mixed with the row
    of a random other record, and its share of the mixture is drawn from Beta(mixup, mixup) (Zhang
    et al. 2018). In the padding rows of an evaluation, shares are 0.
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
        # Each row draws its own partner, where the paper mixes the rows of a batch with each other,
        # so that a row does not depend on the batch that it is in.
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
    """Rows with "order" int32 (N,), a random permutation of the N patches of an image."""

    def __init__(self, records: Records, view: View, key: np.ndarray, num_patches: int):
        super().__init__(records, view, key)
        self.num_patches = num_patches

    def row(self, number: int, content: np.ndarray, random: np.random.Generator) -> Row:
        row = super().row(number, content, random)
        return row | {"order": random.permutation(self.num_patches).astype(np.int32)}


class FileRows:
    """One row for each image file: "images" uint8 (S, S, C), without augmentation."""

    def __init__(self, paths: Sequence[str], view: View, max_bytes: int):
        self.paths, self.view, self.max_bytes = paths, view, max_bytes

    def __len__(self) -> int:
        return len(self.paths)

    def rows(self, numbers: Sequence[tuple[int, int]]) -> list[Row]:
        return [{"images": self._pixels(self.paths[number])} for number, _ in numbers]

    def _pixels(self, path: str) -> np.ndarray:
        image = open_image(path, self.view.max_pixels, self.max_bytes)
        return self.view.pixels(image, None)
