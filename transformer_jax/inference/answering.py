"""Outputs beside references: the scores of a run on a set, and the comparison of two runs."""

import abc
from collections.abc import Sequence
from typing import NamedTuple

from transformer_jax.config import UserError
from transformer_jax.scores import bootstrap
from transformer_jax.scores.bootstrap import Measure


class Answers(NamedTuple):
    """The texts of a set and a run's outputs for them."""

    sources: list[str]
    references: list[str]
    outputs: list[str]


class Answering(abc.ABC):
    """A task whose outputs are scored text by text, so that two runs can be compared."""

    @property
    @abc.abstractmethod
    def measures(self) -> Sequence[Measure]:
        """The measures of the scores."""

    @abc.abstractmethod
    def answers(self, params, split: str) -> Answers:
        """Returns the outputs for a split. Raises UserError where the run has no such split."""

    def scored(self, outputs: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        """Returns all scores of the outputs."""
        scores = {}
        for measure in self.measures:
            scores |= bootstrap.scores(measure, measure.statistics(outputs, references))
        return scores

    def intervals(
        self, outputs: Sequence[str], references: Sequence[str]
    ) -> dict[str, tuple[float, float]]:
        """Returns the 95 % interval of each score, by the bootstrap."""
        intervals = {}
        for measure in self.measures:
            intervals |= bootstrap.intervals(measure, measure.statistics(outputs, references))
        return intervals


def comparison(measures: Sequence[Measure], answers: Answers, others: Answers) -> dict[str, dict]:
    """Returns the paired bootstrap of each score of two runs, see `bootstrap.comparison`.

    Raises UserError where they answered other sources, or where the references differ.
    """
    for noun, first, second in (
        ("sources", answers.sources, others.sources),
        ("references", answers.references, others.references),
    ):
        if first != second:
            raise UserError(
                f"--against: the {noun} of the two runs differ; give both the same set, by "
                "--config.data.test_files and the like"
            )
    compared = {}
    for measure in measures:
        first, second = (
            measure.statistics(each.outputs, each.references) for each in (answers, others)
        )
        compared |= bootstrap.comparison(measure, first, second)
    return compared
