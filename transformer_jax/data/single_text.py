"""The text of a task that reads one: the splits that `config.data` names."""

import abc
import dataclasses

from ml_collections import ConfigDict

from transformer_jax.config import UserError
from transformer_jax.data import rows
from transformer_jax.data.sources import documents


@dataclasses.dataclass(frozen=True)
class SingleText:
    """The splits of a text. A subclass makes rows of them.

    Attributes:
      config: the config of the run.
    """

    config: ConfigDict

    def training_text(self):
        return self.text("train")

    def fingerprint(self) -> dict:
        return {"train": self.text("train").fingerprint()}

    def text(self, split: str):
        """Returns the documents of a split; None where `config.data` names none.

        Raises UserError where there is no training text.
        """
        text = documents.of_split(self.config.data, split)
        if text is None and split == "train":
            raise UserError("config.data.train_files is missing: the training text")
        return text


class OneComponent(SingleText, abc.ABC):
    """The splits of a text, each with rows of one kind and random numbers of its own."""

    @abc.abstractmethod
    def component(self, split: str, tokenizer) -> rows.Component:
        """Returns the rows of a split. The first call tokenises the text."""

    def train(self, tokenizer) -> rows.TrainRows:
        return rows.train_rows([self.component("train", tokenizer)], self.config)

    def evaluation(self, tokenizer, split: str) -> rows.EvalRows:
        return rows.EvalRows(self.component(split, tokenizer))

    def key(self, split: str) -> tuple[int, int, int]:
        """Returns (seed, phase, component) of a split."""
        return self.config.data.seed, 0, ("train", "valid", "test").index(split)
