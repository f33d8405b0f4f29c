"""Packed pairs with masked targets, for an encoder that writes (Dong et al. 2019, section 2.5)."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from transformer_jax.data import masking
from transformer_jax.data.packed_pairs import PackedPairs
from transformer_jax.data.pair_rows import ColumnRows
from transformer_jax.data.rows import Row, generator, padded, philox_key


class MaskedTargets:
    """Rows of several pairs, whose targets each epoch masks anew.

    The keys are those of `PackedPairs`. "labels" are the targets, and "target" is the same with
    masks; no start is in front of a target. Further keys, int32 (P,): masked_positions in the
    target, masked_labels, masked_weights. `key` is (seed, phase, component).
    """

    def __init__(self, packed: PackedPairs, mask: masking.Masking, key: tuple[int, int, int]):
        self.packed = packed
        self.mask = mask
        self._philox_key = philox_key(key)

    def __len__(self) -> int:
        return len(self.packed)

    def rows(self, numbers: Sequence[tuple[int, int]]) -> list[Row]:
        return [
            self._row(row, generator(self._philox_key, *number))
            for number, row in zip(numbers, self.packed.rows(numbers))
        ]

    def _row(self, row: Row, random: np.random.Generator) -> Row:
        filled = row["target_segment_ids"] > 0
        masked = self.mask(row["labels"][filled], random)
        target = padded(masked.pop("tokens"), len(filled))
        return row | masked | {"target": target}


@dataclasses.dataclass(frozen=True)
class MaskedColumnRows(ColumnRows):
    """Rows of columns of a table, with masks on a share of each target's tokens."""

    mask_share: float

    @property
    def max_predictions(self) -> int:
        """The most predicted tokens of a row."""
        return max(round(self.mask_share * self.target_length), 1)

    def _packed(self, tokenizer, split: str) -> MaskedTargets:
        shared = tokenizer.source
        special = shared.special.copy()
        special[shared.eos_id] = False  # a model learns to end its outputs
        mask = masking.Masking(
            shared.mask_id,
            special,
            shared.continues,
            self.max_predictions,
            selected=self.mask_share,
        )
        key = (self.config.data.seed, 0, ("train", "valid", "test").index(split))
        return MaskedTargets(super()._packed(tokenizer, split), mask, key)
