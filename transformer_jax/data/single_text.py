"""The text of a task that reads one: the splits that `config.data` names."""

import dataclasses

from ml_collections import ConfigDict

from transformer_jax.config import UserError
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
