"""Language-model rows: windows of a text kept as one stream of tokens, each document ended by
`eos_id`.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from transformer_jax.config import UserError
from transformer_jax.data import store
from transformer_jax.data.rows import Row
from transformer_jax.pictures.progress import say, track

_BLOCK = 2**21  # characters tokenised together


class Windows:
    """Rows of L tokens and the tokens that follow them. An epoch cuts the text in windows that
    begin at an offset of its own.

    Keys, int32 (L,): tokens, labels, weights (1), and with `mask_documents` positions and
    segment_ids. The offset is drawn from (seed, phase, component, epoch).
    """

    def __init__(
        self, stored: store.Store, length: int, mask_documents: bool, key: tuple[int, int, int]
    ):
        self.store, self.length, self.mask_documents, self.key = stored, length, mask_documents, key
        self.size = stored.meta["tokens"]
        if self.size <= length:
            raise UserError(
                f"the text has {self.size:,} tokens: fewer than the {length} of a row and the one behind it"
            )

    def __len__(self) -> int:
        return max(self.size // self.length - 1, 1)

    def rows(self, numbers: Sequence[tuple[int, int]]) -> list[Row]:
        starts = [number * self.length + self._offset(epoch) for number, epoch in numbers]
        spans = self.store.read([(start, start + self.length + 1) for start in starts])
        return [
            _row(
                span[:-1],
                span[1:],
                np.ones(self.length),
                self.store.meta["eos_id"] if self.mask_documents else None,
            )
            for span in spans
        ]

    def _offset(self, epoch: int) -> int:
        room = min(self.length, self.size - self.length)  # a text of less than two windows has less
        return int(
            np.random.Generator(
                np.random.Philox(np.random.SeedSequence((*self.key, epoch)))
            ).integers(room)
        )


class SlidingWindows:
    """Rows that predict every token of the text once, the first from `eos_id`: each predicts
    `stride` more, the positions before being context.

    Keys as Windows'; weights is 1 where a label counts.
    """

    def __init__(self, stored: store.Store, length: int, stride: int, mask_documents: bool):
        self.store, self.length, self.stride, self.mask_documents = (
            stored,
            length,
            stride,
            mask_documents,
        )
        self.size = stored.meta["tokens"]

    def __len__(self) -> int:
        return 1 + max(-(-(self.size - self.length) // self.stride), 0)

    def rows(self, numbers: Sequence[tuple[int, int]]) -> list[Row]:
        eos_id, found = self.store.meta["eos_id"], []
        starts = [number * self.stride for number, _ in numbers]  # of the labels
        spans = self.store.read(
            [(max(start - 1, 0), min(start + self.length, self.size)) for start in starts]
        )
        for start, span in zip(starts, spans):
            if start == 0:
                span = np.concatenate([[eos_id], span])
            padding = self.length + 1 - len(span)
            weights = np.arange(self.length) >= (0 if start == 0 else self.length - self.stride)
            weights[self.length - padding :] = False
            span = np.pad(span, (0, padding))
            found.append(
                _row(span[:-1], span[1:], weights, eos_id if self.mask_documents else None)
            )
        return found


def _row(tokens: np.ndarray, labels: np.ndarray, weights: np.ndarray, eos_id: int | None) -> Row:
    """`eos_id`: what keeps documents apart; None: they are not kept apart."""
    row = {"tokens": tokens, "labels": labels, "weights": weights}
    # the end of a document begins the next one: that is where its first token is predicted from
    if eos_id is not None:
        begins = tokens == eos_id
        begins[0] = True
        places = np.arange(len(tokens))
        row |= {
            "positions": places - np.maximum.accumulate(np.where(begins, places, 0)),
            "segment_ids": np.cumsum(begins),
        }
    return {name: values.astype(np.int32) for name, values in row.items()}


def tokenised(text, data, tokenizer, name: str) -> store.Store:
    """The token store of a text (documents with a fingerprint): built, gone on with, or opened if
    it is whole.

    Its meta data count tokens (ends included), documents, and the text's bytes and characters.
    """
    key = {"text": text.fingerprint(), "tokenizer": tokenizer.fingerprint()}

    def fill(writer: store.Writer) -> dict:
        counts = writer.restart or {"tokens": 0, "documents": 0, "bytes": 0, "characters": 0}
        there = itertools.islice(text, counts["documents"], None)
        for block in blocks(track(there, f"tokenising {name} (documents)")):
            encoded = [
                np.array([*ids, tokenizer.eos_id], np.uint32) for ids in tokenizer.encode(block)
            ]
            writer.append(np.concatenate(encoded))
            added = {
                "tokens": sum(map(len, encoded)),
                "documents": len(block),
                "bytes": sum(len(t.encode()) for t in block),
                "characters": sum(map(len, block)),
            }
            counts = {what: counts[what] + added[what] for what in counts}
            writer.mark(counts)
        if not counts["documents"]:
            raise UserError(f"config.data: the {name} text has no document that is not empty")
        return {**counts, "eos_id": tokenizer.eos_id}

    stored = store.build(data.cache, f"text-{name}", key, tokenizer.vocab_size, fill, data.rebuild)
    meta = stored.meta
    say(
        f"{name}: {meta['documents']:,} documents, {meta['tokens']:,} tokens, {meta['bytes'] / meta['tokens']:.2f} bytes a token"
    )
    return stored


def blocks(texts: Iterable[str]) -> Iterator[list[str]]:
    """The texts in lists of about _BLOCK characters."""
    block, size = [], 0
    for text in texts:
        block.append(text)
        size += len(text)
        if size >= _BLOCK:
            yield block
            block, size = [], 0
    if block:
        yield block
