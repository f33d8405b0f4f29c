"""Exact match: the score of labels and of short answers as text."""

import dataclasses
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class ExactMatch:
    """The share of outputs that equal their references, from 0 to 1."""

    def statistics(self, outputs: Sequence[str], references: Sequence[str]) -> np.ndarray:
        """Returns float64 (N, 1): 1 where the output is right."""
        equal = [
            output.strip() == reference.strip() for output, reference in zip(outputs, references)
        ]
        return np.array(equal, np.float64)[:, None]

    def scores(self, sums: np.ndarray, count: int) -> dict[str, float]:
        return {"exact_match": float(sums[0]) / count}
