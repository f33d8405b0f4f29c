"""Rows of masked language models that are single texts: windows, and RoBERTa's full sentences."""

import abc
from collections.abc import Iterator, Sequence

import numpy as np

from transformer_jax.data import masking, store, windows
from transformer_jax.data.rows import Row, generator, padded, philox_key
from transformer_jax.data.sentence_pairs import cumulative, inside


class MaskedTexts(abc.ABC):
    """Rows [CLS] text [SEP] of at most L tokens, with masks that each epoch draws anew.

    `key` is (seed, phase, component), `ids` are those of [CLS] and [SEP].

    Keys, int32: tokens, token_types, segment_ids (L,), masked_positions, masked_labels,
    masked_weights (P,).
    """

    def __init__(
        self,
        stored: store.Store,
        length: int,
        mask: masking.Masking,
        key: tuple[int, int, int],
        ids: tuple[int, int],
    ):
        self.store = stored
        self.length = length
        self.mask = mask
        self.key = key
        self._philox_key = philox_key(key)
        self.cls_id, self.sep_id = ids

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def _texts(self, numbers: Sequence[tuple[int, int]]) -> list[np.ndarray]:
        """Returns the tokens between [CLS] and the last [SEP] of each row."""

    def rows(self, numbers: Sequence[tuple[int, int]]) -> list[Row]:
        return [
            self._row(text, generator(self._philox_key, number, epoch))
            for (number, epoch), text in zip(numbers, self._texts(numbers))
        ]

    def _row(self, text: np.ndarray, random: np.random.Generator) -> Row:
        tokens = np.concatenate([[self.cls_id], text, [self.sep_id]])
        row = self.mask(tokens, random)
        return row | {
            "tokens": padded(row["tokens"], self.length),
            "token_types": padded((), self.length),
            "segment_ids": padded(np.ones(len(tokens)), self.length),
        }


class MaskedWindows(MaskedTexts):
    """Windows of L - 2 tokens of the text as one stream, in which [SEP] ends each document."""

    def __init__(self, stored: store.Store, length: int, mask: masking.Masking, key, ids):
        super().__init__(stored, length, mask, key, ids)
        self.windows = windows.Windows(stored, length - 2, False, key)

    def __len__(self) -> int:
        return len(self.windows)

    def _texts(self, numbers):
        return [window["tokens"] for window in self.windows.rows(numbers)]


class FullSentences(MaskedTexts):
    """As many whole sentences as fit, in order and across documents (Liu et al. 2019, section 4.2).

    [SEP] stands between two documents of a row. A sentence that is longer than a row is cut. Each
    epoch has the same rows, with other masks.
    """

    def __init__(self, stored: store.Store, length: int, mask: masking.Masking, key, ids):
        super().__init__(stored, length, mask, key, ids)
        sentences = cumulative(stored.array("sentences"))
        # The first token of each document, then the number of tokens.
        self._documents = sentences[cumulative(stored.array("documents"))]
        # The first token of each row, then the number of tokens.
        starts = _row_starts(_pieces(sentences, length - 2), self._documents, length - 2)
        self._starts = np.fromiter(starts, sentences.dtype)

    def __len__(self) -> int:
        return len(self._starts) - 1

    def _texts(self, numbers):
        spans = [self._starts[number : number + 2] for number, _ in numbers]
        return [
            np.insert(tokens, inside(self._documents, span), self.sep_id)
            for tokens, span in zip(self.store.read(spans), spans)
        ]


def _pieces(sentences: np.ndarray, most: int) -> np.ndarray:
    """Returns the first token of each piece of a sentence, then the number of tokens.

    `sentences` are the first tokens of sentences, and the number of tokens. A piece is a sentence,
    or `most` tokens of a longer one, or the rest of it.
    """
    counts = (np.diff(sentences) + (most - 1)) // most  # of each sentence, 1 or more
    places = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.append(np.repeat(sentences[:-1], counts) + most * places, sentences[-1])


def _row_starts(pieces: np.ndarray, documents: np.ndarray, most: int) -> Iterator[int]:
    """Yields the first token of each row of at most `most` tokens, then the number of tokens."""
    # A row of pieces of two documents has one separator, and so on.
    separators = np.searchsorted(documents, pieces[:-1], "right")
    ends = pieces[1:] + separators
    first = 0
    while first < len(ends):
        yield pieces.item(first)
        begin = pieces.item(first) + separators.item(first)
        first = int(np.searchsorted(ends, begin + most, "right"))
    yield pieces.item(-1)
