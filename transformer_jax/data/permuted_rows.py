"""The rows of permutation language models (XLNet, Yang et al. 2019, sections 2.3 to 2.5)."""

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np

from transformer_jax.config import UserError
from transformer_jax.data import rows, store, texts
from transformer_jax.data.rows import Row, padded
from transformer_jax.data.texts import MixedTexts

_ONE_IN = 6  # K in the paper: one of K tokens is predicted
_MAX_SPAN = 5  # the longest span of consecutive predicted tokens, as in the paper
# The minimum number of rows in an evaluation without memory. A smaller text is read several times,
# each time with other factorization orders, so that the random draws add less noise to the result.
_MIN_EVAL_ROWS = 2_000


def num_targets(length: int) -> int:
    """Returns the maximum number of predicted tokens in a row."""
    return -(-length // _ONE_IN)


def span_targets(length: int, random: np.random.Generator) -> np.ndarray:
    """Returns the ascending positions of random spans, which are one in K positions.

    The row is divided into parts of n K tokens, with n drawn from 1 to 5, and each part contains
    one span of n tokens at a random position.
    """
    spans = []
    start = 0
    while start < length:
        # A short rest of the row gets a shorter span. The spans then never have more tokens in
        # total than `num_targets`, the size of the padded arrays.
        size = min(int(random.integers(1, _MAX_SPAN + 1)), num_targets(length - start))
        part = min(size * _ONE_IN, length - start)
        first = start + int(random.integers(part - size + 1))
        spans.append(np.arange(first, first + size))
        start += part
    return np.concatenate(spans)


def random_ranks(
    permuted: np.ndarray, length: int, remembered: int, random: np.random.Generator
) -> np.ndarray:
    """Returns the rank of each position (length,), which defines a factorization order.

    The first `remembered` positions form one part and the others a second part. In each part, the
    `permuted` positions have ranks in random order, above the common rank of the other positions.
    All ranks of the first part are lower, so it does not attend to the second part. This is needed
    because its hidden states become the memory of the next row, which predicts the tokens that
    follow it.
    """
    ranks = np.zeros(length, np.int32)
    lowest = 0
    # Without memory, `remembered` is 0, and the set leaves a single part.
    for start, end in itertools.pairwise(sorted({0, remembered, length})):
        own = permuted[(start <= permuted) & (permuted < end)]
        ranks[start:end] = lowest
        ranks[own] = lowest + 1 + random.permutation(len(own))
        lowest += len(own) + 1
    return ranks


@dataclasses.dataclass(frozen=True)
class PermutedWindows:
    """Rows of L tokens: R tokens of the text as one stream, followed by A [SEP] B [SEP] [CLS].

    A follows the first R tokens. In half of the rows, B follows A; in the others, it comes from a
    random position of the text. Row n + 1 starts R tokens after row n, or L - 3 tokens if R is 0.
    The offset of all rows depends on `key` (seed, phase, component) and the epoch; everything else
    depends on the row number, too.

    Special tokens are not predicted, but [SEP], [SEP] and [CLS] have ranks among those of the
    targets, so that they are not visible to all other tokens.

    Keys, int32: tokens, token_types, ranks (L,), target_positions, target_weights (P,), and, if R
    is not 0, restarts (1,), which is 0.

    Raises UserError if the text is shorter than a row.
    """

    stored: store.Store
    length: int
    remembered: int  # R
    key: tuple[int, int, int]
    special: np.ndarray  # (V,) bool
    ids: tuple[int, int]  # of [CLS] and [SEP]

    def __post_init__(self):
        if self._size < self._span:
            raise UserError(
                f"the text has {self._size:,} tokens: a row needs {self._span:,} "
                f"(config.task.length={self.length}); give more text or shorter rows"
            )

    def __len__(self) -> int:
        return max((self._size - self._span + 1) // self._stride, 1)

    @property
    def _size(self) -> int:
        return self.stored.meta["tokens"]

    @property
    def _span(self) -> int:
        """The number of tokens in a row that come from the text."""
        return self.length - 3

    @property
    def _stride(self) -> int:
        return self.remembered or self._span

    def rows(self, numbers: Sequence[tuple[int, int]]) -> list[Row]:
        key = rows.philox_key(self.key)
        randoms = [rows.generator(key, number, epoch) for number, epoch in numbers]
        spans = [
            span
            for (number, epoch), random in zip(numbers, randoms)
            for span in self._spans(number * self._stride + self._offset(epoch), random)
        ]
        parts = iter(self.stored.read(spans))
        return [self._row(next(parts), next(parts), random) for random in randoms]

    def _offset(self, epoch: int) -> int:
        seed = np.random.SeedSequence((*self.key, epoch))
        # A text that is little longer than a row leaves room for fewer offsets.
        num_offsets = min(self._stride, self._size - self._span + 1)
        return int(np.random.Generator(np.random.Philox(seed)).integers(num_offsets))

    def _spans(self, start: int, random: np.random.Generator) -> list[tuple[int, int]]:
        """Returns the span before the first [SEP] of the row at `start`, and the span of B."""
        # A has at least one token beyond the R remembered ones, so that no special token enters the
        # memory.
        end = start + int(random.integers(self.remembered + 1, self._span))
        size = start + self._span - end
        follows = random.random() < 0.5
        second = end if follows else int(random.integers(self._size - size + 1))
        return [(start, end), (second, second + size)]

    def _row(self, first: np.ndarray, second: np.ndarray, random: np.random.Generator) -> Row:
        cls_id, sep_id = self.ids
        tokens = np.concatenate([first, [sep_id], second, [sep_id, cls_id]]).astype(np.int32)
        types = np.repeat([0, 1, 2], [len(first) + 1, len(second) + 1, 1])
        targets = span_targets(self.length, random)
        # As in the published code, special tokens are never targets: they are structure and not
        # text.
        targets = targets[~self.special[tokens[targets]]]
        special_positions = [len(first), self.length - 2, self.length - 1]
        permuted = np.union1d(targets, special_positions)
        most = num_targets(self.length)
        row = {
            "tokens": tokens,
            "token_types": types.astype(np.int32),
            "ranks": random_ranks(permuted, self.length, self.remembered, random),
            "target_positions": padded(targets, most),
            "target_weights": padded(np.ones(len(targets)), most),
        }
        # Never 1 here, because the memory goes on across documents. The batch sets it at the start
        # of a stream.
        return row | ({"restarts": np.zeros(1, np.int32)} if self.remembered else {})


@dataclasses.dataclass(frozen=True)
class PermutedRows(MixedTexts):
    """Rows of `length` tokens, of which the first `remembered` enter the memory of the next row.

    With a memory, rows are in streams: each row of an update continues the same row of the previous
    update.
    """

    length: int
    remembered: int

    def train(self, tokenizer) -> rows.TrainRows:
        """Returns the training rows. The first call tokenizes the texts."""

        def component(text, name: str, number: int) -> PermutedWindows:
            return self._component(text, name, number, tokenizer)

        return self.train_rows(component, "stream" if self.remembered else "shuffled")

    def evaluation(self, tokenizer, split: str) -> rows.EvalRows:
        """Returns the rows of a split: streams with a memory, otherwise at least 2,000 rows."""
        number = ("valid", "test").index(split)
        # Another phase than in training, whose first component also has the number 0: with equal
        # keys, both would draw the same numbers.
        component = self._component(self.text(split), split, number, tokenizer, phase=1)
        if self.remembered:
            return rows.EvalRows(component, order="stream")
        return rows.EvalRows(component, math.ceil(_MIN_EVAL_ROWS / len(component)))

    def _component(self, text, name, number, tokenizer, phase=0) -> PermutedWindows:
        return PermutedWindows(
            texts.tokenised(text, self.config.data, tokenizer, name),
            self.length,
            self.remembered,
            (self.config.data.seed, phase, number),
            tokenizer.special,
            (tokenizer.cls_id, tokenizer.sep_id),
        )
