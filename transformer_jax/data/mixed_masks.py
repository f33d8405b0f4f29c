"""Rows of BERT's kind under four masks: the pre-training data of UniLM (Dong et al. 2019)."""

import dataclasses

import numpy as np

from transformer_jax.data import masking, store
from transformer_jax.data.masked_rows import MaskedRows
from transformer_jax.data.rows import Row, padded
from transformer_jax.data.sentence_pairs import Plan, SentencePairs

OBJECTIVES = ("bidirectional", "sequence_to_sequence", "left_to_right", "right_to_left")
_OF_PAIRS = OBJECTIVES[:2]


@dataclasses.dataclass(frozen=True)
class _Mixed(Plan):
    objective: str


class MixedPairs(SentencePairs):
    """Rows that each have one of four objectives, drawn anew in each epoch.

    A bidirectional row is a pair as in `SentencePairs`. The second text of a sequence-to-sequence
    row follows the first. The rows of the other two are one text: [CLS] A [SEP].

    `shares` are those of OBJECTIVES. `types` are the token types of both texts by objective.

    Further keys, int32: ranks (L,): a token sees those of its own rank and of lower ranks; paired
    (): 1 for a bidirectional row.
    """

    def __init__(
        self,
        stored: store.Store,
        length: int,
        mask: masking.Masking,
        key: tuple[int, int, int],
        swaps: bool,
        *,
        shares: tuple[float, ...],
        types: dict[str, tuple[int, int]],
    ):
        super().__init__(stored, length, mask, key, swaps)
        self.shares = np.array(shares) / sum(shares)
        self.types = types

    def _plan(self, number: int, epoch: int) -> _Mixed:
        plan = super()._plan(number, epoch)
        objective = OBJECTIVES[plan.random.choice(len(OBJECTIVES), p=self.shares)]
        mixed = _Mixed(**vars(plan), objective=objective)
        if objective == "bidirectional":
            return mixed
        if not plan.follows and self.swaps:
            return dataclasses.replace(mixed, first=plan.second, second=plan.first, follows=True)
        end = self._starts.item(self._spans[number][1])
        return dataclasses.replace(mixed, second=(plan.first[1], end), follows=True)

    def _row(self, plan: _Mixed, first: np.ndarray, second: np.ndarray) -> Row:
        if plan.objective in _OF_PAIRS:
            row = super()._row(plan, first, second)
        else:
            text = np.concatenate([first, second])[: self._room(plan.random)]
            row = self._masked([text], plan.random) | {"follows": np.int32(1)}
        is_second, filled = row["token_types"] > 0, row["segment_ids"] > 0
        types = np.where(is_second, *reversed(self.types[plan.objective])) * filled
        return row | {
            "token_types": types.astype(np.int32),
            "ranks": padded(ranks(plan.objective, is_second[filled]), self.length),
            "paired": np.int32(plan.objective == "bidirectional"),
        }


def ranks(objective: str, is_second: np.ndarray) -> np.ndarray:
    """Returns the ranks of a row's tokens (N,) (Dong et al. 2019, section 2.3).

    `is_second` (N,) is true for the second text.
    """
    places = np.arange(len(is_second))
    match objective:
        case "sequence_to_sequence":
            return places * is_second
        case "left_to_right":
            return places
        case "right_to_left":
            return places[::-1]
    return np.zeros_like(places)


@dataclasses.dataclass(frozen=True)
class MixedRows(MaskedRows):
    """The rows of all four objectives. `shares` and `types` are those of `MixedPairs`."""

    single = "name=masked_lm with next_sentence=0"

    shares: tuple[float, ...] = ()
    types: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)

    def _pair_rows(self, stored, length, mask, key) -> MixedPairs:
        own = {"shares": self.shares, "types": self.types}
        return MixedPairs(stored, length, mask, key, self.swaps, **own)
