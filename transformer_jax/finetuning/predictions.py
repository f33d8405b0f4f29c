"""Predictions for lines of text: their form, and the examples of the lines."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

import numpy as np

from transformer_jax.data.long_lines import LongLines


class Unlabelled(NamedTuple):
    """A line of text without a label."""

    examples: list
    long: bool  # whether the line is longer than a row


class Prediction(NamedTuple):
    text: str  # a label, tags, an answer or a number
    details: dict  # for JSON: the same with probabilities


class Reader(Protocol):
    """The form of a line, and the prediction for it: a fine-tuning task, or another use of one."""

    empty_details: dict  # the details of a prediction for an empty line

    def unlabelled(self, lines: list[tuple[int, str]]) -> list[Unlabelled]: ...
    def prediction(self, examples: list, outputs: list[np.ndarray]) -> tuple[str, dict]: ...


def examples_of(lines: Iterable[str], unlabelled: Callable, treatment: LongLines) -> list[list]:
    """Returns the examples of each line. An empty or skipped line has none.

    `unlabelled(numbered lines)` returns an Unlabelled for each line that is not empty.
    """
    numbered = list(enumerate(lines, 1))
    filled = [(number, line) for number, line in numbered if line.strip()]
    examples = {}
    with treatment:
        for (number, _), line in zip(filled, unlabelled(filled)):
            if line.long:
                treatment.add(number)
            if not (line.long and treatment.way == "skip"):
                examples[number] = line.examples
    return [examples.get(number, []) for number, _ in numbered]


def prediction_of(examples: list, outputs: Iterator[np.ndarray], reader: Reader) -> Prediction:
    """Returns the prediction for a line from its examples and the next outputs."""
    if not examples:
        return Prediction("", {"text": "", **reader.empty_details})
    return Prediction(*reader.prediction(examples, [next(outputs) for _ in examples]))
