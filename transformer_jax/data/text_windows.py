"""The rows of a causal language model: windows of the texts that `config.data` names."""

import dataclasses
from functools import cached_property

from ml_collections import ConfigDict

from transformer_jax.config import UserError
from transformer_jax.data import rows, windows
from transformer_jax.data.sources import documents


@dataclasses.dataclass(frozen=True)
class TextWindows:
    """Rows of `length` tokens from the splits of a text, and from a mixture of training texts.

    With `carries`, the rows of an update continue those of the update before, as streams.
    """

    config: ConfigDict
    length: int
    carries: bool = False

    def check_streams(self) -> None:
        """Raises UserError for keys that do not go with streams."""
        for key in ("data.mixture", "train.first_batch", "decode.stride"):
            section, _, name = key.partition(".")
            if value := self.config[section][name]:
                raise UserError(
                    f"config.{key}={value}: not with config.task.carry, where each row of a batch "
                    "reads its own part of one text; leave it out"
                )

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

    def train(self, tokenizer) -> rows.TrainRows:
        """Returns the training rows. The first call tokenises the texts."""
        data = self.config.data
        components = []
        for number, (text, _) in enumerate(self.mixture):
            name = "train" if len(self.mixture) == 1 else f"train-{number}"
            tokens = windows.tokenised(text, data, tokenizer, name)
            key = (data.seed, 0, number)
            components.append(
                windows.Windows(
                    tokens, self.length, data.mask_documents, key, restarts=self.carries
                )
            )
        weights = [weight for _, weight in self.mixture]
        order = "stream" if self.carries else "shuffled"
        return rows.train_rows(components, self.config, weights, order)

    def evaluation(self, tokenizer, split: str, stride: int | None = None) -> rows.EvalRows:
        """Returns rows that predict each token of a split once, `stride` more tokens a row.

        The default of `stride` is the length of a row. With `carries` it is always that, because
        the carry has read the tokens before.
        """
        data = self.config.data
        tokens = windows.tokenised(self.text(split), data, tokenizer, split)
        sliding = windows.SlidingWindows(
            tokens,
            self.length,
            self.length if self.carries else stride or self.length,
            data.mask_documents,
            restarts=self.carries,
        )
        return rows.EvalRows(sliding, order="stream" if self.carries else "rows")
