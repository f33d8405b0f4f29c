"""Code of tasks that train a language model of another run further, on files of their own."""

import abc
import dataclasses
from collections.abc import Iterable
from functools import cached_property
from typing import Any, Protocol

from transformer_jax.config import UserError
from transformer_jax.data import tokenizers
from transformer_jax.inference.causal import CausalUse
from transformer_jax.tasks.base import BaseTask


class Records(Protocol):
    """The records of files."""

    def __iter__(self) -> Iterable[Any]: ...
    def fingerprint(self) -> dict: ...


@dataclasses.dataclass
class Continued(CausalUse, BaseTask):
    """A task with the model and the tokenizer of the run in `config.init_from`."""

    takes_model = True
    begins_with_run = True

    @abc.abstractmethod
    def read(self, split: str) -> Records | None:
        """Returns the records of a split; None where `config.data` names none."""

    @property
    def has_tokenizer(self) -> bool:
        """Whether the tokenizer is known. A run that is only planned needs none."""
        return self.tokenizer_folder is not None or bool(self.config.data.tokenizer_files)

    @cached_property
    def tokenizer(self):
        if not self.has_tokenizer:
            raise UserError("config.init_from is missing: the workdir of the run to train further")
        # No tokenizer is trained, so there is no text for it.
        return tokenizers.of_run(
            self.tokenizer_folder, self.config.data, lambda: (), self.model.vocab_size
        )

    def fingerprint(self) -> dict:
        return {
            "train": self.read("train").fingerprint(),
            "tokenizer": self.tokenizer.fingerprint(),
        }

    def derived(self, name, means):
        return {}
