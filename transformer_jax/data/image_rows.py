"""Rows of images: decoded, cut to one size and augmented when they are read."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from transformer_jax.data import augmentation, images
from transformer_jax.data.image_records import ENCODED, SHAPE
from transformer_jax.data.rows import Row, generator
from transformer_jax.data.store import Records

if TYPE_CHECKING:  # an optional library
    from PIL.Image import Image


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
            box = augmentation.centre_box(image.size, self.side / self.resize)
            return images.pixels_of(augmentation.resized(image, box, self.side, mode))
        if self.random_crop:
            box = augmentation.random_box(image.size, self.random_crop, random)
        else:
            box = augmentation.centre_box(image.size)
        image = augmentation.resized(image, box, self.side, mode)
        if self.flip:
            image = augmentation.flipped(image, random)
        if self.rand_augment:
            image = augmentation.rand_augmented(image, *self.rand_augment, random)
        pixels = images.pixels_of(image)
        return augmentation.shifted(pixels, self.shift, random) if self.shift else pixels


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
            image = images.opened(content.tobytes(), where, self.view.max_pixels)
        else:
            image = images.of_pixels(content.reshape(shape))
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
            "images": augmentation.mixed(*pair, share),
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
        image = images.of_file(path, self.view.max_pixels, self.max_bytes)
        return self.view.pixels(image, None)
