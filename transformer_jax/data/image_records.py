"""Images as records of a source: files as they are, or raw pixels."""

import abc
import dataclasses

import numpy as np

from transformer_jax.config import UserError
from transformer_jax.data.images import MOST_PIXELS
from transformer_jax.data.sources.source import Source
from transformer_jax.data.store import Record

SHAPE = ("height", "width", "channels")  # numbers of a record
ENCODED = 0  # "channels" of a record that is an image file
NO_LABEL = -1


@dataclasses.dataclass
class ImageSource(Source):
    """Records of images, with the numbers of SHAPE and "label".

    The label is the place of the class in `label_names`. The bytes are those of an image file, or
    pixels uint8 (height, width, channels).
    """

    # pixels of an image, at most: a file with more is an error before it is decoded
    max_pixels: int = 50_000_000
    max_bytes: int = 100_000_000  # bytes of an image file, at most

    def __post_init__(self):
        if not 1 <= self.max_pixels <= MOST_PIXELS:
            raise UserError(
                f"config.source.max_pixels={self.max_pixels}: must be from 1 to {MOST_PIXELS}, "
                "beyond which Pillow warns of a decompression bomb"
            )
        if self.max_bytes < 1:
            raise UserError(f"config.source.max_bytes={self.max_bytes}: must be at least 1")

    @abc.abstractmethod
    def label_names(self, split: str) -> tuple[str, ...]:
        """Returns the names of the classes of a split; none for images without labels."""


def of_pixels(pixels: np.ndarray, label: int) -> Record:
    """Returns the record of an array of pixels, uint8 (H, W, C)."""
    shape = dict(zip(SHAPE, pixels.shape))
    return Record(pixels.tobytes(), {"label": label, **shape})


def of_file(content: bytes, size: tuple[int, int], label: int) -> Record:
    """Returns the record of an image file of `size` (height, width)."""
    shape = dict(zip(SHAPE, (*size, ENCODED)))
    return Record(content, {"label": label, **shape})
