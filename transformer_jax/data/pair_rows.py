"""The rows of encoder-decoders: packed pairs of texts that `config.data` names."""

import dataclasses
from typing import ClassVar

from ml_collections import ConfigDict

from transformer_jax.config import UserError
from transformer_jax.data import packed_pairs, rows
from transformer_jax.data.sources import column_pairs, pairs


@dataclasses.dataclass(frozen=True)
class PairRows:
    """Rows of several sentence pairs: `source_length` and `target_length` tokens."""

    config: ConfigDict
    source_length: int
    target_length: int
    cuts: ClassVar[bool] = False  # whether longer texts are cut; false: such pairs are left out

    def text(self, split: str):
        """Returns the pairs of a split; None where `config.data` names none.

        Raises UserError where there are no training pairs.
        """
        of_split = pairs.of_split(self.config.data, split)
        if of_split is None and split == "train":
            raise UserError(
                "config.data.train_source and train_target are missing: the training text"
            )
        return of_split

    def training_text(self):
        return self.text("train")

    def fingerprint(self) -> dict:
        return {"train": self.text("train").fingerprint()}

    def train(self, tokenizer) -> rows.TrainRows:
        """Returns the training rows. The first call packs the pairs."""
        return rows.train_rows([self._packed(tokenizer, "train")], self.config)

    def evaluation(self, tokenizer, split: str) -> rows.EvalRows:
        return rows.EvalRows(self._packed(tokenizer, split))

    def _packed(self, tokenizer, split: str) -> packed_pairs.PackedPairs:
        return packed_pairs.build(
            self._written(split),
            self.config.data,
            tokenizer,
            source_length=self.source_length,
            target_length=self.target_length,
            split=split,
            cuts=self.cuts,
        )

    def _written(self, split: str):
        """Returns the pairs of a split as the model reads them."""
        return self.text(split)


@dataclasses.dataclass(frozen=True)
class ColumnRows(PairRows):
    """Rows of several sources and targets, which are columns of a table, or built-in."""

    columns: tuple[str, str]
    prefix: str
    lead_sentences: int
    cuts = True

    def text(self, split: str) -> column_pairs.LeadPairs | None:
        """Returns the pairs of a split, without the prefix; None where there are none."""
        data = self.config.data
        return column_pairs.of_split(data, split, self.columns, self.lead_sentences)

    def training_text(self):
        return self._written("train")

    def _written(self, split: str):
        text = self.text(split)
        return column_pairs.Prefixed(text, self.prefix) if self.prefix else text
