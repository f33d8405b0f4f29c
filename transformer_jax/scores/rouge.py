"""ROUGE (Lin 2004): the scores of summaries, by the library rouge-score."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from transformer_jax.config import UserError

NAMES = ("rouge1", "rouge2", "rougeL", "rougeLsum")


@dataclasses.dataclass(frozen=True)
class Rouge:
    """The mean F1 of words, pairs of words and longest common subsequences, from 0 to 100.

    Words are reduced to their Porter stems. rougeLsum joins the subsequences of all pairs of
    sentences; papers on summaries print it as ROUGE-L.
    """

    sentences: Callable[[str], list[str]]  # splits a text

    def __post_init__(self):
        _ = self._scorer  # a missing library is an error before any text is scored

    @cached_property
    def _scorer(self):
        try:
            from rouge_score import rouge_scorer  # an extra
        except ImportError:
            raise UserError(
                "config.task.scores: rouge needs rouge-score: pip install 'transformer_jax"
                "[summaries]'"
            ) from None
        return rouge_scorer.RougeScorer(NAMES, use_stemmer=True)

    def statistics(self, outputs: Sequence[str], references: Sequence[str]) -> np.ndarray:
        """Returns float64 (N, 4): the F1 of each example."""
        scored = [
            self._scorer.score(self._lines(reference), self._lines(output))
            for output, reference in zip(outputs, references)
        ]
        values = [[example[name].fmeasure for name in NAMES] for example in scored]
        return np.array(values, np.float64).reshape(-1, len(NAMES))

    def _lines(self, text: str) -> str:
        """Returns a text with a sentence a line, as the library reads it."""
        return "\n".join(self.sentences(text))

    def scores(self, sums: np.ndarray, count: int) -> dict[str, float]:
        return dict(zip(NAMES, (100 * sums / count).tolist()))
