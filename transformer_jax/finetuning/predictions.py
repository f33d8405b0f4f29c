"""Predictions for lines of text: their form, and the examples that lines hold."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from transformer_jax.data.long_lines import LongLines


class Asked(NamedTuple):
    """A line of text without a label."""

    examples: list
    long: bool  # whether it is longer than a row


class Prediction(NamedTuple):
    text: str  # the label, the tags, the answer ...
    details: dict  # JSON-able: the same with its probabilities


def examples_of(lines: Iterable[str], asked: Callable, treatment: LongLines) -> list[list]:
    """The examples of each line; none of an empty or skipped one.

    `asked(numbered lines)` gives an Asked for each.
    """
    numbered = list(enumerate(lines, 1))
    written = [line for line in numbered if line[1].strip()]
    found = {}
    with treatment:
        for (number, _), line in zip(written, asked(written)):
            if line.long:
                treatment.add(number)
            if not (line.long and treatment.way == "skip"):
                found[number] = line.examples
    return [found.get(number, []) for number, _ in numbered]
