"""BERT's rows: two stretches of sentences, of which the second follows the first or comes from
another document, with tokens masked.
"""

import itertools
from collections.abc import Sequence

import numpy as np

from transformer_jax.config import UserError
from transformer_jax.data import masking, sentences, store, windows
from transformer_jax.data.rows import Row, padded
from transformer_jax.pictures.progress import say, track


class SentencePairs:
    """Rows [CLS] A [SEP] B [SEP]. The spans of sentences they are made from are fixed; all else is
    drawn in `rows`, anew each epoch.

    Keys, int32: tokens, token_types, segment_ids (L,), masked_positions, masked_labels,
    masked_weights (P,), follows (): 1 where B follows A, which is so in half of the rows. One row
    in ten is shorter (short_seq_prob of the published create_pretraining_data.py). The randomness
    of a row is that of `key` (seed, phase, component), its number and the epoch.
    """

    def __init__(
        self, stored: store.Store, length: int, mask: masking.Masking, key: tuple[int, int, int]
    ):
        self.store, self.length, self.mask, self.meta = stored, length, mask, stored.meta
        seed, phase, component = key
        self._key = np.array([seed, phase << 32 | component], np.uint64)
        # of the sentences, in tokens
        self._starts = np.concatenate([[0], np.cumsum(stored.array("sentences"))])
        # their first sentences
        self._documents = np.concatenate([[0], np.cumsum(stored.array("documents"))])
        self._spans = _spans(self._starts, self._documents, length - 3)
        if len(self._documents) < 3 or not len(self._spans):
            raise UserError(
                "pairs of sentences need two documents, and one of them two sentences (documents end with a blank line; "
                "config.data.sentences says what ends a sentence)"
            )

    def __len__(self) -> int:
        return len(self._spans)

    def rows(self, numbers: Sequence[tuple[int, int]]) -> list[Row]:
        plans = [self._plan(number, epoch) for number, epoch in numbers]
        texts = self.store.read([span for *spans, _, _ in plans for span in spans])
        return [
            self._row(texts[2 * i], texts[2 * i + 1], follows, random)
            for i, (_, _, follows, random) in enumerate(plans)
        ]

    def _plan(self, number: int, epoch: int):
        """(tokens of A, tokens of B, whether B follows A, the generator to go on with)."""
        random = np.random.Generator(np.random.Philox(key=self._key, counter=[0, 0, number, epoch]))
        first, last, document = self._spans[number]
        middle = random.integers(first + 1, last)
        follows = random.random() < 0.5
        if follows:
            second = self._starts[middle], self._starts[last]
        else:
            other = random.integers(len(self._documents) - 2)
            other += other >= document
            begin = self._starts[
                random.integers(self._documents[other], self._documents[other + 1])
            ]
            second = begin, min(begin + self.length, self._starts[self._documents[other + 1]])
        return (self._starts[first], self._starts[middle]), second, follows, random

    def _row(
        self, first: np.ndarray, second: np.ndarray, follows: bool, random: np.random.Generator
    ) -> Row:
        most = self.length - 3
        if random.random() < 0.1:
            most = random.integers(2, most + 1)
        for_first, for_second = masking.cut(len(first), len(second), most, random)
        first, second, sep = first[for_first], second[for_second], [self.meta["sep_id"]]
        tokens = np.concatenate([[self.meta["cls_id"]], first, sep, second, sep]).astype(np.int64)
        row = self.mask(tokens, random)
        whole = {
            "tokens": row["tokens"],
            "token_types": np.arange(len(tokens)) >= len(first) + 2,
            "segment_ids": np.ones(len(tokens)),
        }
        return (
            row
            | {name: padded(values, self.length) for name, values in whole.items()}
            | {"follows": np.int32(follows)}
        )


class MaskedWindows:
    """Rows [CLS] L - 2 tokens [SEP] of the text as one stream, documents ended by [SEP], tokens
    masked; there is no second text (Liu et al. 2019, full sentences).
    """

    def __init__(
        self,
        stored: store.Store,
        length: int,
        mask: masking.Masking,
        key: tuple[int, int, int],
        ids: tuple[int, int],
    ):
        self.windows, self.length, self.mask, self.ids = (
            windows.Windows(stored, length - 2, False, key),
            length,
            mask,
            ids,
        )
        self._key = np.array([key[0], key[1] << 32 | key[2]], np.uint64)

    def __len__(self) -> int:
        return len(self.windows)

    def rows(self, numbers: Sequence[tuple[int, int]]) -> list[Row]:
        cls_id, sep_id = self.ids
        found = []
        for (number, epoch), window in zip(numbers, self.windows.rows(numbers)):
            random = np.random.Generator(
                np.random.Philox(key=self._key, counter=[0, 0, number, epoch])
            )
            row = self.mask(np.concatenate([[cls_id], window["tokens"], [sep_id]]), random)
            found.append(
                row
                | {
                    "tokens": padded(row["tokens"], self.length),
                    "token_types": padded((), self.length),
                    "segment_ids": padded(np.ones(self.length), self.length),
                }
            )
        return found


def _spans(starts: np.ndarray, documents: np.ndarray, most: int) -> np.ndarray:
    """(first sentence, behind the last, document): stretches of at least two sentences, each ended
    where it reaches `most` tokens.

    A sentence that would be left alone at the end of its document belongs to the stretch before; a
    document of one sentence has none.
    """
    found = []
    for document, (begin, end) in enumerate(itertools.pairwise(documents.tolist())):
        bounds, first = [], begin
        while end - first >= 2:
            last = max(int(np.searchsorted(starts, starts[first] + most)), first + 2)
            first = min(last, end)
            bounds.append(first)
        if bounds:
            bounds[-1] = end
            found += zip([begin, *bounds], bounds, itertools.repeat(document))
    return np.array(found, np.int64).reshape(-1, 3)


def tokenised(text, data, tokenizer, name: str) -> store.Store:
    """The token store of a text's sentences: built, gone on with, or opened if it is whole. Arrays:
    tokens of each sentence, sentences of each document.
    """
    key = {
        "text": text.fingerprint(),
        "tokenizer": tokenizer.fingerprint(),
        "sentences": data.sentences,
    }

    def fill(writer: store.Writer) -> dict:
        counts = writer.restart or {"read": 0, "documents": 0, "sentences": 0, "tokens": 0}
        there = itertools.islice(text, counts["read"], None)
        for block in windows.blocks(track(there, f"tokenising {name} (documents)")):
            parts = [sentences.split(document, data.sentences) for document in block]
            encoded = iter(tokenizer.encode(list(itertools.chain.from_iterable(parts))))
            filled = [
                [ids for ids in itertools.islice(encoded, len(part)) if ids] for part in parts
            ]
            filled = [document for document in filled if document]
            flat = list(itertools.chain.from_iterable(filled))
            writer.append(np.fromiter(itertools.chain.from_iterable(flat), np.uint32))
            writer.array("sentences", np.array([len(ids) for ids in flat], np.int64))
            writer.array("documents", np.array([len(document) for document in filled], np.int64))
            added = {
                "read": len(block),
                "documents": len(filled),
                "sentences": len(flat),
                "tokens": sum(map(len, flat)),
            }
            counts = {what: counts[what] + added[what] for what in counts}
            writer.mark(counts)
        if not counts["documents"]:
            raise UserError(f"config.data: the {name} text has no document that is not empty")
        return {**counts, "cls_id": tokenizer.cls_id, "sep_id": tokenizer.sep_id}

    stored = store.build(
        data.cache, f"sentences-{name}", key, tokenizer.vocab_size, fill, data.rebuild
    )
    say(
        f"{name}: {stored.meta['documents']:,} documents, {stored.meta['sentences']:,} sentences, {stored.meta['tokens']:,} tokens"
    )
    return stored
