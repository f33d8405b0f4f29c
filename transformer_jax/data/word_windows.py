"""Rows of word vectors: words of a text, with windows and noise words drawn anew each epoch."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from transformer_jax.data import single_text, store, token_counts, windows
from transformer_jax.data.noise_words import NoiseWords, keep_probabilities, word_counts
from transformer_jax.data.rows import Row, generator, padded, philox_key


class WordWindows:
    """Rows of at most L words that follow each other in a text.

    Frequent words are subsampled, and unknown ones left out, before windows are taken, as in the
    published code of Mikolov et al. 2013. A row reads as many tokens as have L words on average.

    Keys, int32: tokens (L,), texts (L,), the number of each word's document from 1, 0 of padding;
    windows (L,), from 1 to W; noise (blocks, K).
    """

    def __init__(
        self,
        stored: store.Store,
        config: "WordTexts",
        counts: Int[np.ndarray, " V"],
        key: tuple[int, int, int],
        *,
        train_tokens: int,
    ):
        """`counts` are those of the words among the `train_tokens` of the training text."""
        self.store = stored
        self.config = config
        self._key = philox_key(key)
        self._noise = NoiseWords.of(counts)
        self._keep = keep_probabilities(counts, config.sample)
        share = (self._keep * counts).sum() / train_tokens
        self.span = max(int(config.length / max(share, 1e-6)), config.length)

    def __len__(self) -> int:
        return -(-self.store.meta["tokens"] // self.span)

    def rows(self, numbers: Sequence[tuple[int, int]]) -> list[Row]:
        size = self.store.meta["tokens"]
        starts = [number * self.span for number, _ in numbers]
        spans = self.store.read([(start, min(start + self.span, size)) for start in starts])
        return [
            self._row(span, generator(self._key, number, epoch))
            for span, (number, epoch) in zip(spans, numbers)
        ]

    def _row(self, span: np.ndarray, random: np.random.Generator) -> Row:
        config = self.config
        texts = np.cumsum(span == self.store.meta["eos_id"]) + 1
        stays = np.flatnonzero(random.random(len(span)) < self._keep[span])[: config.length]
        sizes = random.integers(1, config.window + 1, len(stays))
        return {
            "tokens": padded(span[stays], config.length),
            "texts": padded(texts[stays], config.length),
            "windows": padded(sizes, config.length),
            "noise": self._noise.draw(random, (config.length // config.block, config.noise)),
        }


@dataclasses.dataclass(frozen=True)
class WordTexts(single_text.OneComponent):
    """The rows of the splits of a text. Its keys are those of `config.task`."""

    length: int
    block: int
    window: int
    noise: int
    sample: float
    vocab_size: int

    def component(self, split: str, tokenizer) -> WordWindows:
        """Returns the rows of a split. The counts are those of the training text."""
        data = self.config.data
        train = windows.tokenised(self.text("train"), data, tokenizer, "train")
        counts = token_counts.of_store(train, data, self.vocab_size, "train")
        stored = train
        if split != "train":
            stored = windows.tokenised(self.text(split), data, tokenizer, split)
        counts = word_counts(counts, tokenizer.special)
        tokens = train.meta["tokens"]
        return WordWindows(stored, self, counts, self.key(split), train_tokens=tokens)
