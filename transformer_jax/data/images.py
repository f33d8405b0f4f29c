"""Image files: opened by Pillow in a few formats, bounded before they are decoded."""

import io
import warnings
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from transformer_jax.config import UserError
from transformer_jax.storage import buckets, errors

if TYPE_CHECKING:  # an optional library
    from PIL.Image import Image

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


def of_file(path: str, max_pixels: int, max_bytes: int) -> "Image":
    """Returns the decoded image of a file. Raises UserError as `opened` and `loaded` do."""
    return loaded(opened(file_bytes(path, max_bytes), path, max_pixels), path)


def file_bytes(path: str, max_bytes: int) -> bytes:
    """Returns the content of a file. Raises UserError where it can't be read, or is too large."""
    with errors.reading(path):
        size = buckets.size(path)
        if size > max_bytes:
            raise UserError(
                f"{path}: {size} bytes: a file may have at most config.source.max_bytes={max_bytes}"
            )
        return buckets.path(path).read_bytes()


def of_pixels(pixels: np.ndarray) -> "Image":
    """Returns the image of an array of pixels, uint8 (H, W, 1) or (H, W, 3)."""
    pixels = pixels[..., 0] if pixels.shape[-1] == 1 else pixels
    return pillow().fromarray(np.ascontiguousarray(pixels))


def pixels_of(image: "Image") -> np.ndarray:
    """Returns the pixels of an image of mode L or RGB, uint8 (H, W, 1) or (H, W, 3)."""
    pixels = np.array(image)
    return pixels[..., None] if pixels.ndim == 2 else pixels
