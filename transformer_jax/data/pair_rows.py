"""The rows of translation: packed sentence pairs that `config.data` names."""

import dataclasses

from ml_collections import ConfigDict

from transformer_jax.config import UserError
from transformer_jax.data import packed_pairs, rows
from transformer_jax.data.sources import pairs


@dataclasses.dataclass(frozen=True)
class PairRows:
    """Rows of several sentence pairs: `source_length` and `target_length` tokens."""

    config: ConfigDict
    source_length: int
    target_length: int

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
            self.text(split),
            self.config.data,
            tokenizer,
            source_length=self.source_length,
            target_length=self.target_length,
            split=split,
        )
