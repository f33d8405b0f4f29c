"""Rows of words in their contexts: windows, single sentences, and counts of pairs."""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from transformer_jax.data import masking, store, texts
from transformer_jax.data.rows import Row, generator, padded, philox_key

# --------------------------------------------------------------------------------------------------
# Rows of single sentences, with noise words that each epoch draws anew.


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
        self._starts = masking.cumulative(stored.array("sentences"))

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
class Sentences(texts.OneComponent):
    """The rows of the splits of a text. Its keys are those of `config.task`."""

    length: int
    noise: int
    vocab_size: int

    def component(self, split: str, tokenizer) -> SentenceRows:
        """Returns the rows of a split. The counts are those of the training text."""
        data = self.config.data

        def tokenised(name: str) -> store.Store:
            return masking.tokenised(self.text(name), data, tokenizer, name)

        train = tokenised("train")
        counts = texts.count_tokens(train, data, self.vocab_size, "train")
        stored = train if split == "train" else tokenised(split)
        return SentenceRows(stored, self, word_counts(counts, tokenizer.special), self.key(split))


# --------------------------------------------------------------------------------------------------
# Noise words of negative sampling, and subsampling of frequent words (Mikolov et al. 2013).

_POWER = 0.75  # of the counts, in the distribution of noise words


@dataclasses.dataclass(frozen=True)
class NoiseWords:
    """Words drawn in proportion to their counts to the power of 3/4 (section 2.2)."""

    cumulative: Float[np.ndarray, " V"]  # the sums of the weights

    @classmethod
    def of(cls, counts: Int[np.ndarray, " V"]) -> "NoiseWords":
        return cls(np.cumsum(counts.astype(np.float64) ** _POWER))

    def draw(self, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Returns the ids of words that are drawn with replacement, int32 of this shape."""
        places = random.random(shape) * self.cumulative[-1]
        return np.searchsorted(self.cumulative, places, side="right").astype(np.int32)


def keep_probabilities(counts: Int[np.ndarray, " V"], sample: float) -> Float[np.ndarray, " V"]:
    """Returns the probability that an occurrence of each word stays in the text.

    It is (sqrt(f / s) + 1) s / f of a word with the share f of the text, as in the published code.
    The paper's equation 5 has sqrt(s / f). s is `sample`; 0: all words stay.
    """
    if not sample:
        return (counts > 0).astype(np.float64)
    share = counts / (sample * max(counts.sum(), 1))
    probability = (np.sqrt(share) + 1) / np.maximum(share, 1e-12)
    return np.where(counts > 0, np.minimum(probability, 1), 0.0)


def word_counts(counts: Int[np.ndarray, " V"], special: np.ndarray) -> Int[np.ndarray, " V"]:
    """Returns the counts of the tokens of a vocabulary, 0 for those that are special."""
    counts = counts.copy()
    counts[: len(special)][special] = 0
    return counts


# --------------------------------------------------------------------------------------------------
# Rows of word vectors: words of a text, with windows and noise words drawn anew each epoch.


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
class WordTexts(texts.OneComponent):
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
        train = texts.tokenised(self.text("train"), data, tokenizer, "train")
        counts = texts.count_tokens(train, data, self.vocab_size, "train")
        stored = train
        if split != "train":
            stored = texts.tokenised(self.text(split), data, tokenizer, split)
        counts = word_counts(counts, tokenizer.special)
        tokens = train.meta["tokens"]
        return WordWindows(stored, self, counts, self.key(split), train_tokens=tokens)


# --------------------------------------------------------------------------------------------------
# How often words occur near each other, and rows of these counts (Pennington et al. 2014).

_TOGETHER = 2**20  # tokens counted at once


@dataclasses.dataclass(frozen=True)
class Entries:
    """Pairs of words and their counts, by increasing key = first word * vocabulary + second."""

    keys: Int[np.ndarray, " N"]
    counts: Float[np.ndarray, " N"]

    @classmethod
    def summed(cls, keys: np.ndarray, counts: np.ndarray) -> "Entries":
        """Returns each key once, with the sum of its counts."""
        unique, places = np.unique(keys, return_inverse=True)
        return cls(unique, np.bincount(places, counts, len(unique)))

    @classmethod
    def joined(cls, parts: Sequence["Entries"]) -> "Entries":
        keys = np.concatenate([part.keys for part in parts])
        return cls.summed(keys, np.concatenate([part.counts for part in parts]))


def count_pairs(
    stored: store.Store, data, is_word: np.ndarray, window: int, name: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns (words, other words, counts) of a store, each (N,), for every pair that occurs.

    Words within `window` of each other, in one document, add 1 / distance (section 3.1). Tokens
    that are no word (V,) are left out first. The store is counted once; the cache has the counts.
    """
    content = store.Content(
        parts=lambda: range(len(stored.parts)),
        fill=functools.partial(_fill, stored=stored, is_word=is_word, window=window),
        whole=lambda parts: {"parts": len(parts)},
        title=f"counting pairs of words of {name}",
    )
    key = {
        "store": str(stored.path).rpartition("/")[2],
        "window": window,
        "vocab_size": len(is_word),
    }
    counted = store.build(
        data.cache, f"pairs-{name}", key, len(is_word), content, rebuild=data.rebuild
    )
    keys, counts = counted.array("keys"), counted.array("counts")
    first, second = np.divmod(keys, len(is_word))
    # A pair counts for both of its words.
    both = Entries.summed(
        np.concatenate([keys, second * len(is_word) + first]), np.concatenate([counts, counts])
    )
    first, second = np.divmod(both.keys, len(is_word))
    return first.astype(np.int32), second.astype(np.int32), both.counts.astype(np.float32)


def _fill(
    writer: store.Writer, part: int, stored: store.Store, is_word: np.ndarray, window: int
) -> dict:
    """Writes the counts of a part, each pair in the order of the text."""
    begin, end = stored.values.starts[part : part + 2]
    ids, texts = np.zeros(0, np.int64), np.zeros(0, np.int64)
    entries = Entries(np.zeros(0, np.int64), np.zeros(0))
    num_texts = 0
    for start in range(begin, end, _TOGETHER):
        (tokens,) = stored.read([(start, min(start + _TOGETHER, end))])
        of_tokens = np.cumsum(tokens == stored.meta["eos_id"]) + num_texts
        num_texts = of_tokens[-1]
        words = is_word[tokens]
        earlier = len(ids)  # the last words of the tokens before
        ids = np.concatenate([ids, tokens[words].astype(np.int64)])
        texts = np.concatenate([texts, of_tokens[words]])
        entries = Entries.joined([entries, _near(ids, texts, earlier, len(is_word), window)])
        ids, texts = ids[-window:], texts[-window:]
    writer.array("keys", entries.keys)
    writer.array("counts", entries.counts)
    return {}


def _near(ids: np.ndarray, texts: np.ndarray, earlier: int, size: int, window: int) -> Entries:
    """Returns the counts of pairs whose second word is none of the first `earlier` words."""
    keys, counts = [], []
    for distance in range(1, min(window, len(ids) - 1) + 1):
        same = texts[distance:] == texts[:-distance]
        same[: max(earlier - distance, 0)] = False
        keys.append((ids[:-distance] * size + ids[distance:])[same])
        counts.append(np.full(len(keys[-1]), 1 / distance))
    if not keys:
        return Entries(np.zeros(0, np.int64), np.zeros(0))
    return Entries.summed(np.concatenate(keys), np.concatenate(counts))


class PairRows:
    """Rows of `length` pairs of words, in one random order for all epochs.

    Keys, (length,): first and second, int32; counts, float32, 0 in the places that are left over.
    """

    def __init__(self, entries: tuple[np.ndarray, ...], length: int, seed: int):
        self.length = length
        order = np.random.default_rng(seed).permutation(len(entries[0]))
        names = ("first", "second", "counts")
        self._entries = {name: values[order] for name, values in zip(names, entries)}

    def __len__(self) -> int:
        return -(-len(self._entries["first"]) // self.length)

    def rows(self, numbers: Sequence[tuple[int, int]]) -> list[Row]:
        return [self._row(number * self.length) for number, _ in numbers]

    def _row(self, begin: int) -> Row:
        row = {}
        for name, values in self._entries.items():
            values = values[begin : begin + self.length]
            row[name] = np.pad(values, (0, self.length - len(values)))
        return row


@dataclasses.dataclass(frozen=True)
class WordPairs(texts.OneComponent):
    """The rows of the splits of a text. Its keys are those of `config.task`."""

    length: int
    window: int
    vocab_size: int

    def component(self, split: str, tokenizer) -> PairRows:
        """Returns the rows of a split. Its counts are scaled to the size of the training text."""
        data = self.config.data
        stored = texts.tokenised(self.text(split), data, tokenizer, split)
        counts = texts.count_tokens(stored, data, self.vocab_size, split)
        is_word = word_counts(counts, tokenizer.special) > 0
        first, second, counts = count_pairs(stored, data, is_word, self.window, split)
        if split != "train":
            train = texts.tokenised(self.text("train"), data, tokenizer, "train")
            counts = counts * np.float32(train.meta["tokens"] / stored.meta["tokens"])
        return PairRows((first, second, counts), self.length, data.seed)
