"""The handwritten digits of scikit-learn: 1,797 grayscale images of 8 x 8 pixels."""

import dataclasses
import functools
import hashlib

import numpy as np

from transformer_jax.config import UserError
from transformer_jax.contracts.source import ImageSource
from transformer_jax.data import images

_LEVELS = 16  # the largest value of a pixel in scikit-learn's set
# The range [start, stop) of each split in the shuffled images. The test images come first, so that
# their numbers do not depend on how the rest is divided.
_STARTS = {"test": (0, 360), "valid": (360, 540), "train": (540, 1797)}


@dataclasses.dataclass
class Digits(ImageSource):
    """Handwritten digits of 8 x 8 pixels: 1,257 training, 180 validation and 360 test images.

    They come with scikit-learn (Alpaydin & Kaynak 1998) and are shuffled in a fixed order. Pixel
    values from 0 to 16 are scaled to 0 to 255.
    """

    def label_names(self, split):
        return tuple(map(str, range(10)))

    def fingerprint(self, split):
        images, labels = _read()
        # Of the images themselves, because another version of scikit-learn could have others.
        digest = hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest()
        return [split, *_STARTS[split], digest]

    def read(self, split):
        pixels, labels = _read()
        for number in _order(len(pixels))[slice(*_STARTS[split])]:
            yield images.record_of_pixels(pixels[number], int(labels[number]))


@functools.cache
def _read() -> tuple[np.ndarray, np.ndarray]:
    """Returns the images uint8 (1797, 8, 8, 1) and their labels uint8 (1797,)."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise UserError(
            "config.source.name='digits' needs scikit-learn: pip install -e '.[vision]'"
        ) from None
    loaded = load_digits()
    # The full range of a byte, because models scale all images from 0 to 255 alike.
    images = np.rint(loaded.images * (255 / _LEVELS)).astype(np.uint8)
    return images[..., None], loaded.target.astype(np.uint8)


def _order(count: int) -> list[int]:
    """Returns the numbers of the images in shuffled order.

    In the original order, consecutive images are by the same writer and digits follow a pattern.
    """
    # Sorting by a hash gives the same order on every platform and with every version of NumPy.
    return sorted(range(count), key=lambda number: hashlib.sha256(str(number).encode()).digest())
