"""Rows of single sentences, with noise words that each epoch draws anew."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from transformer_jax.data import sentence_pairs, single_text, store, token_counts
from transformer_jax.data.noise_words import NoiseWords, word_counts
from transformer_jax.data.rows import Row, generator, padded, philox_key


class SentenceRows:
    """Rows [CLS] sentence [SEP] of at most L tokens. A longer sentence is cut at its end.

    Keys, int32: tokens, segment_ids, weights (L,), 1 for known words; noise (K,).
    """

    def __init__(
        self,
        stored: store.Store,
        config: "Sentences",
        counts: Int[np.ndarray, " V"],
        key: tuple[int, int, int],
    ):
        self.store = stored
        self.config = config
        self._key = philox_key(key)
        self._noise = NoiseWords.of(counts)
        self._is_word = counts > 0
        self._starts = sentence_pairs.cumulative(stored.array("sentences"))

    def __len__(self) -> int:
        return len(self._starts) - 1

    def rows(self, numbers: Sequence[tuple[int, int]]) -> list[Row]:
        spans = []
        for number, _ in numbers:
            first, last = self._starts[number : number + 2].tolist()
            spans.append((first, min(last, first + self.config.length - 2)))
        return [
            self._row(tokens, generator(self._key, number, epoch))
            for tokens, (number, epoch) in zip(self.store.read(spans), numbers)
        ]

    def _row(self, sentence: np.ndarray, random: np.random.Generator) -> Row:
        meta, length = self.store.meta, self.config.length
        tokens = np.concatenate([[meta["cls_id"]], sentence, [meta["sep_id"]]])
        return {
            "tokens": padded(tokens, length),
            "segment_ids": padded(np.ones(len(tokens)), length),
            "weights": padded(self._is_word[tokens], length),
            "noise": self._noise.draw(random, (self.config.noise,)),
        }


@dataclasses.dataclass(frozen=True)
class Sentences(single_text.OneComponent):
    """The rows of the splits of a text. Its keys are those of `config.task`."""

    length: int
    noise: int
    vocab_size: int

    def component(self, split: str, tokenizer) -> SentenceRows:
        """Returns the rows of a split. The counts are those of the training text."""
        data = self.config.data

        def tokenised(name: str) -> store.Store:
            return sentence_pairs.tokenised(self.text(name), data, tokenizer, name)

        train = tokenised("train")
        counts = token_counts.of_store(train, data, self.vocab_size, "train")
        stored = train if split == "train" else tokenised(split)
        return SentenceRows(stored, self, word_counts(counts, tokenizer.special), self.key(split))
