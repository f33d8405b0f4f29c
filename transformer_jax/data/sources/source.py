"""Data that is not text: records of bytes and numbers.

A kind of data is one file of this folder with one subclass of `Source`. `config.source.name` is the
name of the file, and the fields of the class are the keys of `config.source`.
"""

import abc
import dataclasses
from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.config import UserError
from transformer_jax.data import store
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
        # The module of a file outside the package has a name that changes with its content.
        names = [field.name for field in dataclasses.fields(self) if field.name != "data"]
        own_keys = {name: getattr(self, name) for name in names}
        key = {"source": type(self).__module__, "keys": own_keys, "content": fingerprint}
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


def check_class(cls: type, file: str) -> None:
    """Raises UserError for a source that lacks a method."""
    if missing := sorted(cls.__abstractmethods__):
        raise UserError(
            f"{file}: the class {cls.__name__} is a source and lacks the method {missing[0]!r}"
        )
