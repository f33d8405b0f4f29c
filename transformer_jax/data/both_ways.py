"""Rows of a text for two language models, one of which reads it from its end to its beginning."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from transformer_jax.data import windows
from transformer_jax.data.mixed_texts import MixedTexts
from transformer_jax.data.rows import Component, EvalRows, Row, TrainRows
from transformer_jax.data.store import Store


@dataclasses.dataclass(frozen=True)
class Reversed:
    """A stored text in reverse order: as in the text itself, an end follows each document.

    The text has an end behind each document, so in reverse the ends would precede them. The last
    end therefore moves to the other side.
    """

    store: Store

    @property
    def meta(self) -> dict:
        return self.store.meta

    def read(self, spans: Sequence[tuple[int, int]]) -> list[np.ndarray]:
        """Returns the tokens [start, stop) of each span."""
        size = self.meta["tokens"]
        # Token p in this order is number size - 2 - p of the text, and the last one is the end.
        of_text = [(max(size - 1 - stop, 0), size - 1 - start) for start, stop in spans]
        end = [self.meta["eos_id"]]
        return [
            np.concatenate([tokens[::-1], end]) if stop == size else tokens[::-1]
            for tokens, (_, stop) in zip(self.store.read(of_text), spans)
        ]


@dataclasses.dataclass(frozen=True)
class BothWays:
    """Rows of both orders. The last axis of labels, weights and restarts is the order.

    `forward` and `backward` are rows of `windows`. `characters` (V, C) are those of the words, and
    the tokens of a row are (L, 2, C). Row n + 1 of each order continues row n, so the backward row
    n is from another place of the text than the forward row n.
    """

    forward: Component
    backward: Component
    characters: np.ndarray

    def __len__(self) -> int:
        return len(self.forward)

    @property
    def store(self) -> Store:
        return self.forward.store

    def rows(self, numbers: Sequence[tuple[int, int]]) -> list[Row]:
        pairs = zip(self.forward.rows(numbers), self.backward.rows(numbers))
        return [self._row(*pair) for pair in pairs]

    def _row(self, forward: Row, backward: Row) -> Row:
        row = {name: np.stack([forward[name], backward[name]], axis=-1) for name in forward}
        return row | {"tokens": self.characters[row["tokens"]].astype(np.int32)}


@dataclasses.dataclass(frozen=True)
class BothWaysTexts(MixedTexts):
    """Rows of `length` words in each order. The rows of an update continue those before it."""

    length: int
    max_characters: int

    def train(self, tokenizer) -> TrainRows:
        """Returns the training rows. The first call tokenises the texts."""
        data = self.config.data

        def component(text, name: str, number: int) -> BothWays:
            tokens = windows.tokenised(text, data, tokenizer, name)
            key = (data.seed, 0, number)

            def of(stored):
                return windows.Windows(stored, self.length, data.mask_documents, key, restarts=True)

            return self._both(of, tokens, tokenizer)

        return self.train_rows(component, "stream")

    def evaluation(self, tokenizer, split: str) -> EvalRows:
        """Returns rows that predict each token of a split once in each order."""
        data = self.config.data
        tokens = windows.tokenised(self.text(split), data, tokenizer, split)

        def of(stored):
            return windows.SlidingWindows(
                stored, self.length, self.length, data.mask_documents, restarts=True
            )

        return EvalRows(self._both(of, tokens, tokenizer), order="stream")

    def _both(self, of, tokens: Store, tokenizer) -> BothWays:
        """Returns the rows of a text from those of each order, `of(store)`."""
        characters = tokenizer.spelled(self.max_characters).table
        return BothWays(of(tokens), of(Reversed(tokens)), characters)
