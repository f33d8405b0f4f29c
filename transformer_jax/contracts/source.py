"""The contract of data sources that are not text: records of bytes and numbers.

Each kind of data is a file with one subclass of `Source`, in records/, in corpora/sources/, or in
the folder sources/ of a family. `config.source.name` is the name of the file, and the fields of the
class are the keys of `config.source`.
"""

import abc
import dataclasses
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

from ml_collections import ConfigDict

from transformer_jax.config import Range, UserError
from transformer_jax.data import store
from transformer_jax.data.images import MOST_PIXELS
from transformer_jax.data.sources.text_files import matching_files
from transformer_jax.data.store import Record


@dataclasses.dataclass
class Source(abc.ABC):
    """The records of each split, "train", "valid" or "test".

    Two sources with equal keys must give equal records, because records are cached by these keys.
    """

    # Raised when the same files and keys give other records than before, so that records of an
    # earlier version in a cache are not read.
    version: ClassVar[int] = 1

    data: ConfigDict  # config.data

    @abc.abstractmethod
    def fingerprint(self, split: str) -> Any:
        """Returns a JSON-compatible description of a split's content; None for no such split."""

    @abc.abstractmethod
    def read(self, split: str) -> Iterator[Record]:
        """Yields the records of a split in a fixed order.

        The numbers of all records have the same names.
        """

    def records(self, split: str) -> store.Records | None:
        """Returns the records of a split with random access; None if there is no such split.

        The source is read once, and its records are then kept in `config.data.cache`.
        """
        fingerprint = self.fingerprint(split)
        if fingerprint is None:
            return None
        # The module of a file outside the package is named after a digest of its content, so that
        # an edit of the file invalidates the cache.
        names = [field.name for field in dataclasses.fields(self) if field.name != "data"]
        own_keys = {name: getattr(self, name) for name in names}
        key = {
            "source": type(self).__module__.rpartition(".")[2],
            "keys": own_keys,
            "content": fingerprint,
        }
        # Version 1 adds nothing, so that caches written before there were versions stay valid.
        if self.version > 1:
            key["version"] = self.version
        return store.build_records(
            self.data.cache, "records", key, lambda: self.read(split), rebuild=self.data.rebuild
        )

    def files(self, split: str) -> tuple[str, ...] | None:
        """Returns the files that `config.data.<split>_files` matches; None where it is empty.

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
    """Records of images, with the numbers named in `SHAPE` and the number "label".

    The label is the index of the class in `label_names`. The bytes of a record are an image file,
    or the pixels as uint8 (height, width, channels).
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
