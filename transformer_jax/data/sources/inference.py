"""Labelled examples: the built-in inference pairs, or tables. The pairs are running text, too."""

import dataclasses
from collections.abc import Iterator, Sequence

from transformer_jax.config import UserError
from transformer_jax.data.sources import tables

CORPUS = "inference"
COLUMNS = ("premise", "hypothesis", "label")
_HELD_OUT = 1000  # pairs of the validation and test splits
_DOCUMENTS = 30_000  # pairs of the training text; a third of them is entailed


@dataclasses.dataclass(frozen=True)
class InferencePairs:
    """Premises and hypotheses of the built-in grammar, labelled by construction.

    `columns` are those to read, of COLUMNS. See data/grammar/inference.py.
    """

    split: str
    size: int
    columns: tuple[str, ...]

    def fingerprint(self) -> dict:
        # Imported here because the lexicon takes time to read.
        from transformer_jax.data.grammar import inference

        return {
            CORPUS: inference.VERSION,
            "split": self.split,
            "size": self.size,
            "columns": list(self.columns),
        }

    def __iter__(self) -> Iterator[tables.Record]:
        from transformer_jax.data.grammar import inference

        places = [COLUMNS.index(column) for column in self.columns]
        for index in range(self.size):
            pair = inference.pair(0, self.split, index)
            where = f"config.data.corpus={CORPUS} {self.split} pair {index}"
            yield tables.Record(where, tuple(pair[place] for place in places))


@dataclasses.dataclass(frozen=True)
class EntailedPairs:
    """Documents of two sentences, a line each: a premise and a hypothesis that it entails."""

    split: str

    def fingerprint(self) -> dict:
        return self._pairs.fingerprint() | {"entailed": True}

    def parts(self) -> list["EntailedPairs"]:
        return [self]

    @property
    def _pairs(self) -> InferencePairs:
        size = _DOCUMENTS if self.split == "train" else _HELD_OUT
        return InferencePairs(self.split, size, COLUMNS)

    def __iter__(self) -> Iterator[str]:
        for premise, hypothesis, label in (record.values for record in self._pairs):
            if label == "entailment":
                yield f"{premise}\n{hypothesis}"


def of_split(
    data, split: str, columns: Sequence[str], skip: bool = False
) -> InferencePairs | tables.Table | tables.TfdsTable | None:
    """Returns the examples of a split that `config.data` names; None where it names none.

    `skip` is that of `tables.Table`. Raises UserError where files or columns do not exist, or where
    two sources are named.
    """
    if data.corpus and (data.train_files or data.tfds_name):
        other = "train_files" if data.train_files else "tfds_name"
        raise UserError(
            f"config.data.corpus={data.corpus} and config.data.{other}: name one source of examples"
        )
    # Users may evaluate on their own files whatever the run was trained on.
    if not data.corpus or (split != "train" and data[f"{split}_files"]):
        return tables.of_split(data, split, columns, skip)
    if data.corpus != CORPUS:
        raise UserError(
            f"config.data.corpus={data.corpus}: holds no labelled examples; only {CORPUS} does"
        )
    if missing := [column for column in columns if column not in COLUMNS]:
        raise UserError(
            f"config.data.corpus={CORPUS}: no column {missing[0]!r}; it has {', '.join(COLUMNS)}"
        )
    size = data.corpus_size if split == "train" else _HELD_OUT
    return InferencePairs(split, size, tuple(columns))
