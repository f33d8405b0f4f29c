"""The part of a fine-tuning task that each kind of task defines: examples, rows, head, scores."""

import abc

import jax
import numpy as np

from transformer_jax.config import named_class
from transformer_jax.data.rows import Row
from transformer_jax.finetuning.predictions import Unlabelled

# A language model that is fine-tuned learns three new tokens: start, delimiter and extract
# (Radford et al. 2018, section 3.3).
_MARKS_OF_CAUSAL = 3


class Definition(abc.ABC):
    """The methods that a subclass of FineTuning defines."""

    takes_model = True
    fine_tunes = True
    evaluates_rows = False  # the loss is measured with the scores
    summarises = True  # whether the head reads one vector a row, not one a token
    source_only = False  # whether only the encoder of an encoder-decoder is used
    two_texts = False  # whether a row holds two texts
    marks_texts = True  # whether marks stand around the texts in a causal model's rows
    rows_of_example = 1
    empty_details = {}  # the details of a prediction for an empty line
    long_lines = ("truncate", "skip", "refuse")  # ways to treat too long a line; default first

    @property
    def num_global(self) -> int:
        """The first tokens of a row that are global, in a model that has such: [CLS], or none."""
        return int(self.summarises)

    @classmethod
    def new_tokens(cls, config, earlier) -> int:
        """As that of a task: the marks of a causal model's rows, where it has none yet."""
        kind = named_class("model", config.model.name).kind
        needs_marks = kind == "causal" and cls.marks_texts and not earlier.has_head
        return _MARKS_OF_CAUSAL if needs_marks else 0

    @abc.abstractmethod
    def read(self, split: str):
        """Returns the records of a split, re-iterable and with a fingerprint().

        Returns None where the run has no such split.
        """

    @abc.abstractmethod
    def examples(self, records) -> list:
        """Returns the examples: texts as token ids, labels as numbers.

        Raises UserError with file and line for a wrong record.
        """

    def count(self, split: str) -> int:
        """Returns the number of labelled examples of a split."""
        return sum(1 for _ in self.read(split))

    @abc.abstractmethod
    def row(self, example) -> Row:
        """Returns the arrays of an example, padded to the longest length."""

    @abc.abstractmethod
    def num_tokens(self, example) -> int:
        """Returns the number of tokens of an example's longest row, without padding."""

    @abc.abstractmethod
    def shapes(self, length: int) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of an example's arrays, for rows of `length` tokens."""

    @abc.abstractmethod
    def head(self):
        """Returns the Linen module on the encoder."""

    @abc.abstractmethod
    def objective(self, outputs, batch) -> tuple[jax.Array, jax.Array, dict]:
        """Returns (summed loss, its count as int32, further metrics)."""

    @abc.abstractmethod
    def scores(self, examples, outputs) -> dict[str, float]:
        """Returns the scores of a split from the head's outputs, an array for each example."""

    def details(self, examples, outputs) -> dict[str, dict]:
        """Returns further results of `evaluate` for JSON, from the arguments of `scores`."""
        return {}

    @abc.abstractmethod
    def prediction(self, examples: list, outputs: list[np.ndarray]) -> tuple[str, dict]:
        """Returns the prediction for a line from its examples: a text, and details for JSON."""

    @abc.abstractmethod
    def unlabelled(self, lines: list[tuple[int, str]]) -> list[Unlabelled]:
        """Returns the examples of numbered lines, without labels.

        Raises UserError for a line of another form.
        """
