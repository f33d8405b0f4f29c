"""Data that is not text: records of bytes and numbers.

A kind of data is one file of records/ with one subclass of `Source`. `config.source.name` is
the name of the file, and the fields of the class are the keys of `config.source`.
"""

import abc
import dataclasses
from collections.abc import Iterator
from typing import Annotated, Any

from ml_collections import ConfigDict

from transformer_jax.config import Range, UserError
from transformer_jax.data import store
from transformer_jax.data.images import MOST_PIXELS
from transformer_jax.data.sources.text_files import matching_files
from transformer_jax.data.store import Record


@dataclasses.dataclass
class Source(abc.ABC):
    """The records of each split, "train", "valid" or "test". Equal keys give equal records."""

    data: ConfigDict  # config.data

    @abc.abstractmethod
    def fingerprint(self, split: str) -> Any:
        """Returns a description of the content of a split, for JSON; None for no such split."""

    @abc.abstractmethod
    def read(self, split: str) -> Iterator[Record]:
        """Yields the records of a split, in a fixed order. All have the same numbers by name."""

    def records(self, split: str) -> store.Records | None:
        """Returns the records of a split, to be read at random; None for no such split.

        They are read once and then kept in `config.data.cache`.
        """
        fingerprint = self.fingerprint(split)
        if fingerprint is None:
            return None
        # A file outside the package has a module whose name changes with its content.
        names = [field.name for field in dataclasses.fields(self) if field.name != "data"]
        own_keys = {name: getattr(self, name) for name in names}
        key = {
            "source": type(self).__module__.rpartition(".")[2],
            "keys": own_keys,
            "content": fingerprint,
        }
        return store.build_records(
            self.data.cache, "records", key, lambda: self.read(split), rebuild=self.data.rebuild
        )

    def files(self, split: str) -> tuple[str, ...] | None:
        """Returns the files that `config.data.<split>_files` names; None where it names none.

        Raises UserError where a file does not exist, or where no training files are named.
        """
        key = f"config.data.{split}_files"
        patterns = self.data[f"{split}_files"]
        if patterns:
            return tuple(matching_files(key, patterns))
        if split == "train":
            raise UserError(f"{key} is missing: the training records")
        return None


@dataclasses.dataclass
class ImageSource(Source):
    """Records of images, with the numbers of SHAPE and "label".

    The label is the place of the class in `label_names`. The bytes are those of an image file, or
    pixels uint8 (height, width, channels).
    """

    # pixels of an image, at most: a file with more is an error before it is decoded
    max_pixels: int = 50_000_000
    max_bytes: Annotated[int, Range(least=1)] = 100_000_000  # bytes of an image file, at most

    def __post_init__(self):
        if not 1 <= self.max_pixels <= MOST_PIXELS:
            raise UserError(
                f"config.source.max_pixels={self.max_pixels}: must be from 1 to {MOST_PIXELS}, "
                "beyond which Pillow warns of a decompression bomb"
            )

    @abc.abstractmethod
    def label_names(self, split: str) -> tuple[str, ...]:
        """Returns the names of the classes of a split; none for images without labels."""


def check_class(cls: type, file: str) -> None:
    """Raises UserError for a source that lacks a method."""
    if missing := sorted(cls.__abstractmethods__):
        raise UserError(
            f"{file}: the class {cls.__name__} is a source and lacks the method {missing[0]!r}"
        )
