"""The texts of language models and of denoising: the splits of a text, or of a mixture."""

import dataclasses
from collections.abc import Callable
from functools import cached_property
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.config import UserError
from transformer_jax.data import rows
from transformer_jax.data.sources import documents


@dataclasses.dataclass(frozen=True)
class MixedTexts:
    """The texts that `config.data` names. A subclass makes rows of them."""

    config: ConfigDict

    @cached_property
    def mixture(self) -> list:
        """The training texts with their weights."""
        return documents.mixture(self.config.data)

    def training_text(self) -> documents.Concatenation:
        """Returns all training texts, one after the other."""
        return documents.Concatenation(tuple(text for text, _ in self.mixture))

    def text(self, split: str):
        """Returns the documents of a split; None where `config.data` names none."""
        return documents.of_split(self.config.data, split)

    def fingerprint(self) -> dict:
        content = {"train": [text.fingerprint() for text, _ in self.mixture]}
        if len(self.mixture) > 1:
            content["mixture"] = [weight for _, weight in self.mixture]
        return content

    def check_streams(self, user: str) -> None:
        """Raises UserError for keys that do not go with the streams that the key `user` needs."""
        for key in ("data.mixture", "train.first_batch", "decode.stride"):
            section, _, name = key.partition(".")
            if value := self.config[section][name]:
                raise UserError(
                    f"config.{key}={value}: not with {user}, where each row of a batch "
                    "reads its own part of one text; leave it out"
                )

    def train_rows(
        self, component: Callable[[Any, str, int], rows.Component], order: str = "shuffled"
    ) -> rows.TrainRows:
        """Returns the rows of all training texts, from component(text, its name, its number)."""
        texts = [text for text, _ in self.mixture]
        names = ["train"] if len(texts) == 1 else [f"train-{n}" for n in range(len(texts))]
        components = [
            component(text, name, number) for number, (text, name) in enumerate(zip(texts, names))
        ]
        weights = [weight for _, weight in self.mixture]
        return rows.train_rows(components, self.config, weights, order)
