"""Rows for word vectors: windows of words, single sentences, and co-occurrence counts."""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from transformer_jax.config import UserError
from transformer_jax.data import masking, store, texts
from transformer_jax.data.rows import Row, generator, padded, philox_key

# --------------------------------------------------------------------------------------------------
# Rows of single sentences, with noise words that each epoch draws anew. They are drawn with the
# row, so that they depend neither on the batch nor on the mesh.


class SentenceRows:
    """Rows [CLS] sentence [SEP] of at most L tokens. A longer sentence is truncated.

    Keys, int32: tokens, segment_ids, weights (L,), which is 1 for known words; noise (K,).
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
    """Rows of single sentences of a text. The fields are the same as in `config.task`."""

    length: int
    noise: int
    vocab_size: int

    def component(self, split: str, tokenizer) -> SentenceRows:
        """Returns the rows of a split. Noise words follow their counts in the training text."""
        data = self.config.data

        def tokenised(name: str) -> store.Store:
            return masking.tokenised(self.text(name), data, tokenizer, name)

        train = tokenised("train")
        counts = texts.count_tokens(train, data, self.vocab_size, "train")
        stored = train if split == "train" else tokenised(split)
        return SentenceRows(stored, self, word_counts(counts, tokenizer.special), self.key(split))


# --------------------------------------------------------------------------------------------------
# Noise words of negative sampling, and subsampling of frequent words (Mikolov et al. 2013).

_POWER = 0.75  # exponent of the counts: in the paper, better than 0 and 1 (section 2.2)


@dataclasses.dataclass(frozen=True)
class NoiseWords:
    """A distribution over words proportional to their counts to the power of 3/4 (section 2.2)."""

    cumulative: Float[np.ndarray, " V"]  # cumulative sums of the weights

    @classmethod
    def of(cls, counts: Int[np.ndarray, " V"]) -> "NoiseWords":
        # In float64, because a sum over a large vocabulary in float32 would lose the rare words at
        # its end.
        return cls(np.cumsum(counts.astype(np.float64) ** _POWER))

    def draw(self, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Draws word ids with replacement, int32 of this shape, by inverting the distribution."""
        # A binary search for each draw, instead of the table of 10^8 entries of the published code.
        draws = random.random(shape) * self.cumulative[-1]
        return np.searchsorted(self.cumulative, draws, side="right").astype(np.int32)


def keep_probabilities(counts: Int[np.ndarray, " V"], sample: float) -> Float[np.ndarray, " V"]:
    """Returns the probability that subsampling keeps an occurrence of each word.

    For a word whose share of the text is f, and with s = `sample`, it is (sqrt(f / s) + 1) s / f,
    as in the published code; equation 5 of the paper has sqrt(s / f) instead. With `sample` 0, all
    words are kept.
    """
    if not sample:
        return (counts > 0).astype(np.float64)
    share = counts / (sample * max(counts.sum(), 1))
    probability = (np.sqrt(share) + 1) / np.maximum(share, 1e-12)
    return np.where(counts > 0, np.minimum(probability, 1), 0.0)


def word_counts(counts: Int[np.ndarray, " V"], special: np.ndarray) -> Int[np.ndarray, " V"]:
    """Returns the counts, with the counts of special tokens set to 0."""
    counts = counts.copy()
    # The vocabulary of a model may be larger than the tokenizer's, hence the slice.
    counts[: len(special)][special] = 0
    return counts


# --------------------------------------------------------------------------------------------------
# Rows for word2vec: the words of a text, with windows and noise words that each epoch draws anew.
# Pairs of words are not written out, because each word would be in several of them.


class WordWindows:
    """Rows of at most L consecutive words of a text.

    As in the published code of Mikolov et al. 2013, frequent words are subsampled and unknown words
    removed before windows are taken, so that windows reach over removed words. A row reads as many
    tokens of the text as leave L words on average.

    Keys, int32: tokens (L,); texts (L,), the number of each word's document from 1, or 0 for
    padding; windows (L,), from 1 to W; noise (blocks, K).
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
        """`counts` are the word counts of the training text, which has `train_tokens` tokens."""
        self.store = stored
        self.config = config
        self._key = philox_key(key)
        self._noise = NoiseWords.of(counts)
        self._keep = keep_probabilities(counts, config.sample)
        # The expected share of tokens that are kept. Reading length / share tokens fills a row on
        # average, although subsampling removes most tokens of a text.
        share = (self._keep * counts).sum() / train_tokens
        # The maximum keeps the division finite for a text that has hardly any known word.
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
        # From 1, because 0 is padding. Counted before words are dropped, which include the end
        # tokens.
        texts = np.cumsum(span == self.store.meta["eos_id"]) + 1
        kept = np.flatnonzero(random.random(len(span)) < self._keep[span])[: config.length]
        # A random window size for each word weights near context words more than distant ones.
        sizes = random.integers(1, config.window + 1, len(kept))
        return {
            "tokens": padded(span[kept], config.length),
            "texts": padded(texts[kept], config.length),
            "windows": padded(sizes, config.length),
            "noise": self._noise.draw(random, (config.length // config.block, config.noise)),
        }


@dataclasses.dataclass(frozen=True)
class WordTexts(texts.OneComponent):
    """Rows of windows of a text. The fields are the same as in `config.task`."""

    length: int
    block: int
    window: int
    noise: int
    sample: float
    vocab_size: int

    def component(self, split: str, tokenizer) -> WordWindows:
        """Returns the rows of a split. Words are sampled by their counts in the training text."""
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
# Co-occurrence counts of words, and rows of them (GloVe, Pennington et al. 2014). A pair is one
# entry however often it occurs, so training reads the counts and never the text.

_TOGETHER = 2**20  # tokens counted in one call, which makes an entry of each pair in a window


@dataclasses.dataclass(frozen=True)
class Entries:
    """Counts of word pairs, sorted by key = first word * vocabulary size + second word."""

    keys: Int[np.ndarray, " N"]
    counts: Float[np.ndarray, " N"]

    @classmethod
    def summed(cls, keys: np.ndarray, counts: np.ndarray) -> "Entries":
        """Returns entries in which each key occurs once, with the sum of its counts."""
        # Sorting, because a dict of Python's numbers would take many times the memory.
        unique, indices = np.unique(keys, return_inverse=True)
        return cls(unique, np.bincount(indices, counts, len(unique)))

    @classmethod
    def joined(cls, parts: Sequence["Entries"]) -> "Entries":
        keys = np.concatenate([part.keys for part in parts])
        return cls.summed(keys, np.concatenate([part.counts for part in parts]))


def count_pairs(
    stored: store.Store, data, is_word: np.ndarray, window: int, name: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns (words, context words, counts), each (N,), for every pair that occurs in a store.

    Two words of a document within `window` of each other add 1 / distance to their count (section
    3.1). Tokens that are not words, by `is_word` (V,), are removed before. The store is counted
    once, and the counts are cached.
    """
    # Counting is written as the construction of a store, as in `texts.count_tokens`, so that it is
    # done in parallel and cached.
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
    # The stored counts are of ordered pairs. Context is symmetric, so each pair counts for both of
    # its words.
    both = Entries.summed(
        np.concatenate([keys, second * len(is_word) + first]), np.concatenate([counts, counts])
    )
    first, second = np.divmod(both.keys, len(is_word))
    return first.astype(np.int32), second.astype(np.int32), both.counts.astype(np.float32)


def _fill(
    writer: store.Writer, part: int, stored: store.Store, is_word: np.ndarray, window: int
) -> dict:
    """Writes the counts of a part, in which a pair has its words in the order of the text."""
    first, end = stored.values.starts[part : part + 2]
    ids, texts = np.zeros(0, np.int64), np.zeros(0, np.int64)
    entries = Entries(np.zeros(0, np.int64), np.zeros(0))
    num_texts = 0
    for start in range(first, end, _TOGETHER):
        (tokens,) = stored.read([(start, min(start + _TOGETHER, end))])
        token_texts = np.cumsum(tokens == stored.meta["eos_id"]) + num_texts
        num_texts = token_texts[-1]
        words = is_word[tokens]
        # The last `window` words of the previous block are kept, so that pairs across the border of
        # two blocks are counted.
        earlier = len(ids)
        ids = np.concatenate([ids, tokens[words].astype(np.int64)])
        texts = np.concatenate([texts, token_texts[words]])
        entries = Entries.joined([entries, _near(ids, texts, earlier, len(is_word), window)])
        ids, texts = ids[-window:], texts[-window:]
    writer.array("keys", entries.keys)
    writer.array("counts", entries.counts)
    return {}


def _near(ids: np.ndarray, texts: np.ndarray, earlier: int, size: int, window: int) -> Entries:
    """Returns the counts of pairs whose second word is after the first `earlier` words.

    The other pairs have been counted with the previous block.
    """
    keys, counts = [], []
    # A loop over distances and not over words: each turn compares the whole block.
    for distance in range(1, min(window, len(ids) - 1) + 1):
        same = texts[distance:] == texts[:-distance]
        same[: max(earlier - distance, 0)] = False
        keys.append((ids[:-distance] * size + ids[distance:])[same])
        counts.append(np.full(len(keys[-1]), 1 / distance))
    if not keys:
        return Entries(np.zeros(0, np.int64), np.zeros(0))
    return Entries.summed(np.concatenate(keys), np.concatenate(counts))


class PairRows:
    """Rows of `length` word pairs, in the same random order in all epochs.

    Keys, (length,): first and second, int32; counts, float32, which is 0 for padding.
    """

    def __init__(self, entries: tuple[np.ndarray, ...], length: int, seed: int):
        self.length = length
        # Shuffled, as in the published code, because the entries are sorted by word.
        order = np.random.default_rng(seed).permutation(len(entries[0]))
        names = ("first", "second", "counts")
        self._entries = {name: values[order] for name, values in zip(names, entries)}

    def __len__(self) -> int:
        return -(-len(self._entries["first"]) // self.length)

    def rows(self, numbers: Sequence[tuple[int, int]]) -> list[Row]:
        return [self._row(number * self.length) for number, _ in numbers]

    def _row(self, start: int) -> Row:
        row = {}
        for name, values in self._entries.items():
            values = values[start : start + self.length]
            # Padding has a count of 0, hence no weight in the loss.
            row[name] = np.pad(values, (0, self.length - len(values)))
        return row


@dataclasses.dataclass(frozen=True)
class WordPairs(texts.OneComponent):
    """Rows of word pairs of a text. The fields are the same as in `config.task`."""

    length: int
    window: int
    vocab_size: int

    def component(self, split: str, tokenizer) -> PairRows:
        """Returns the rows of a split, whose counts are scaled to the size of the training text.

        Without the scaling, the log-counts that the model predicts would be too large for a smaller
        text.
        """
        data = self.config.data
        stored = texts.tokenised(self.text(split), data, tokenizer, split)
        counts = texts.count_tokens(stored, data, self.vocab_size, split)
        is_word = word_counts(counts, tokenizer.special) > 0
        first, second, counts = count_pairs(stored, data, is_word, self.window, split)
        if not len(counts):
            raise UserError(
                f"the {split} text has no two known words in one document within "
                f"config.task.window={self.window} of each other, so there is nothing to count "
                "(config.data.split_on says what ends a document)"
            )
        if split != "train":
            train = texts.tokenised(self.text("train"), data, tokenizer, "train")
            counts = counts * np.float32(train.meta["tokens"] / stored.meta["tokens"])
        return PairRows((first, second, counts), self.length, data.seed)
