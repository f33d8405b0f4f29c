"""How often words occur near each other, and rows of these counts (Pennington et al. 2014)."""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from transformer_jax.data import single_text, store, token_counts, windows
from transformer_jax.data.noise_words import word_counts
from transformer_jax.data.rows import Row

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


def of_store(
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
class WordPairs(single_text.OneComponent):
    """The rows of the splits of a text. Its keys are those of `config.task`."""

    length: int
    window: int
    vocab_size: int

    def component(self, split: str, tokenizer) -> PairRows:
        """Returns the rows of a split. Its counts are scaled to the size of the training text."""
        data = self.config.data
        stored = windows.tokenised(self.text(split), data, tokenizer, split)
        counts = token_counts.of_store(stored, data, self.vocab_size, split)
        is_word = word_counts(counts, tokenizer.special) > 0
        first, second, counts = of_store(stored, data, is_word, self.window, split)
        if split != "train":
            train = windows.tokenised(self.text("train"), data, tokenizer, "train")
            counts = counts * np.float32(train.meta["tokens"] / stored.meta["tokens"])
        return PairRows((first, second, counts), self.length, data.seed)
