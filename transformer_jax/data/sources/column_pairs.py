"""Sources and targets of text to text: columns of tables and TFDS sets, and built-in summaries."""

import dataclasses
from collections.abc import Iterator
from typing import Protocol

from transformer_jax.config import UserError
from transformer_jax.data import sentences
from transformer_jax.data.sources import tables
from transformer_jax.data.sources.python_functions import PythonFunctions

Pair = tuple[str, str]
_BUILT_IN = {"functions": PythonFunctions}


class LeadPairs(Protocol):
    """Pairs (source, target), a line each, whose baseline is the beginning of the source."""

    def __iter__(self) -> Iterator[Pair]: ...
    def fingerprint(self) -> dict: ...
    def parts(self) -> list: ...
    def lead(self, source: str) -> str:
        """Returns the baseline's output for a source."""


@dataclasses.dataclass(frozen=True)
class ColumnPairs:
    """Two columns of a table. Spaces and line ends in a text become one space each."""

    table: tables.Table | tables.TfdsTable
    lead_sentences: int

    def fingerprint(self) -> dict:
        return self.table.fingerprint()

    def parts(self) -> list["ColumnPairs"]:
        return [self]

    def __iter__(self) -> Iterator[Pair]:
        for record in self.table:
            source, target = (" ".join(value.split()) for value in record.values)
            yield source, target

    def lead(self, source: str) -> str:
        """Returns the first sentences of a source."""
        return " ".join(sentences.split(source, "punctuation")[: self.lead_sentences])


@dataclasses.dataclass(frozen=True)
class Prefixed:
    """Pairs with a text in front of each source that is not empty (Raffel et al. 2020, 2.4)."""

    pairs: LeadPairs
    prefix: str

    def fingerprint(self) -> dict:
        return self.pairs.fingerprint() | {"prefix": self.prefix}

    def parts(self) -> list["Prefixed"]:
        return [Prefixed(part, self.prefix) for part in self.pairs.parts()]

    def __iter__(self) -> Iterator[Pair]:
        return ((self.prefix + source if source else "", target) for source, target in self.pairs)


def of_split(data, split: str, columns: Pair, lead_sentences: int) -> LeadPairs | None:
    """Returns the pairs of a split that `config.data` names; None where it names none.

    Raises UserError where files or features do not exist, or where two sources are named.
    """
    if data.corpus and (data.train_files or data.tfds_name):
        other = "train_files" if data.train_files else "tfds_name"
        raise UserError(
            f"config.data.corpus={data.corpus} and config.data.{other}: name one source of examples"
        )
    # Users may evaluate on their own files whatever the run was trained on.
    if data.corpus and (split == "train" or not data[f"{split}_files"]):
        if data.corpus not in _BUILT_IN:
            raise UserError(
                f"config.data.corpus={data.corpus}: holds no sources and targets; "
                f"must be one of {', '.join(_BUILT_IN)}"
            )
        return _BUILT_IN[data.corpus](split)
    table = tables.of_split(data, split, columns)
    return table and ColumnPairs(table, lead_sentences)
