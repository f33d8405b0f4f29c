"""Predictions for lines of text: their form, and the examples of the lines."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from transformer_jax.data.long_lines import LongLines


class Unlabelled(NamedTuple):
    """A line of text without a label."""

    examples: list
    long: bool  # whether the line is longer than a row


class Prediction(NamedTuple):
    text: str  # a label, tags, an answer or a number
    details: dict  # for JSON: the same with probabilities


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
