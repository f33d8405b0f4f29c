"""Rows of prompts, alone or beside rows of texts."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from transformer_jax.data.rows import Row, TrainRows, padded


@dataclasses.dataclass(frozen=True)
class PromptRows:
    """Prompts as ids, each the row of `prompts` (P,) int32 and `prompt_lengths` ()."""

    ids: Sequence[Sequence[int]]
    length: int  # P, at least that of the longest prompt

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, numbers: Sequence[tuple[int, int]]) -> list[Row]:
        return [
            {
                "prompts": padded(np.array(self.ids[number], np.int32), self.length),
                "prompt_lengths": np.int32(len(self.ids[number])),
            }
            for number, _ in numbers
        ]


@dataclasses.dataclass(frozen=True)
class WithTexts:
    """Training rows of prompts, with a row of texts beside each, whose keys begin with "text_"."""

    prompts: TrainRows
    texts: Any  # training rows

    def row_shape(self, step: int) -> int:
        return self.prompts.row_shape(step)

    def size(self, step: int) -> int:
        return self.prompts.size(step)

    def until(self, step: int) -> float:
        return self.prompts.until(step)

    def batch(self, step: int, places: Sequence[int]) -> Row:
        texts = self.texts.batch(step, places).items()
        return self.prompts.batch(step, places) | {f"text_{name}": x for name, x in texts}
