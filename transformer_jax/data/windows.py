"""Rows of causal language models: windows of a text that is stored as one stream of tokens.

Each document of the stream ends with `eos_id`.
"""

import functools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from jaxtyping import UInt32

from transformer_jax.config import UserError
from transformer_jax.data import store
from transformer_jax.data.rows import Row
from transformer_jax.pictures.progress import say

_CHARACTERS_PER_BLOCK = 2**21  # tokenised together


class Windows:
    """Rows of L tokens and of the tokens that follow each of them.

    An epoch tiles the text with windows from a random offset, which is drawn from (seed, phase,
    component, epoch). Keys, int32 (L,): tokens, labels, weights (1), and with `mask_documents`
    positions and segment_ids. Row n + 1 continues row n. With `restarts`, for models that carry a
    state from row to row, that key takes the place of positions and segment_ids.
    """

    def __init__(
        self,
        stored: store.Store,
        length: int,
        mask_documents: bool,
        key: tuple[int, int, int],
        *,
        restarts: bool = False,
    ):
        self.store = stored
        self.length = length
        self.key = key  # (seed, phase, component)
        self.restarts = restarts
        self.size = stored.meta["tokens"]
        self._separator = stored.meta["eos_id"] if mask_documents else None
        if self.size <= length:
            raise UserError(
                f"the text has {self.size:,} tokens: a row of {length:,} tokens needs one more; "
                "give more text or shorter rows"
            )

    def __len__(self) -> int:
        return max(self.size // self.length - 1, 1)

    def rows(self, numbers: Sequence[tuple[int, int]]) -> list[Row]:
        starts = [number * self.length + self._offset(epoch) for number, epoch in numbers]
        spans = self.store.read([(start, start + self.length + 1) for start in starts])
        weights = np.ones(self.length)
        return [_row(span, weights, self._separator, self.restarts) for span in spans]

    def _offset(self, epoch: int) -> int:
        # A text shorter than two windows leaves less room.
        num_offsets = min(self.length, self.size - self.length)
        seed = np.random.SeedSequence((*self.key, epoch))
        return int(np.random.Generator(np.random.Philox(seed)).integers(num_offsets))


class SlidingWindows:
    """Rows that together predict every token of the text once.

    Each row predicts `stride` more tokens; its earlier tokens are context. The first token is
    predicted from `eos_id`. Keys as those of Windows; weights are 1 for the predicted tokens. Where
    `stride` is `length`, row n + 1 continues row n.
    """

    def __init__(
        self,
        stored: store.Store,
        length: int,
        stride: int,
        mask_documents: bool,
        *,
        restarts: bool = False,
    ):
        self.store = stored
        self.length = length
        self.stride = stride
        self.restarts = restarts
        self.size = stored.meta["tokens"]
        self._separator = stored.meta["eos_id"] if mask_documents else None

    def __len__(self) -> int:
        return 1 + max(-(-(self.size - self.length) // self.stride), 0)

    def rows(self, numbers: Sequence[tuple[int, int]]) -> list[Row]:
        label_starts = [number * self.stride for number, _ in numbers]
        spans = self.store.read(
            [(max(start - 1, 0), min(start + self.length, self.size)) for start in label_starts]
        )
        return [self._window(start, span) for start, span in zip(label_starts, spans)]

    def _window(self, start: int, span: np.ndarray) -> Row:
        """Returns the row whose first label is token `start` of the text."""
        if start == 0:
            span = np.concatenate([[self.store.meta["eos_id"]], span])
        num_context = 0 if start == 0 else self.length - self.stride
        num_labels = len(span) - 1
        weights = np.arange(self.length) >= num_context
        weights[num_labels:] = False
        span = np.pad(span, (0, self.length - num_labels))
        return _row(span, weights, self._separator, self.restarts)


def _row(span: np.ndarray, weights: np.ndarray, separator: int | None, restarts: bool) -> Row:
    """Returns the row of L + 1 tokens. `separator` ends documents that must not see each other.

    With `restarts`, the row has that key, for a model whose state passes from row to row.
    """
    tokens = span[:-1]
    row = {"tokens": tokens, "labels": span[1:], "weights": weights}
    # The end of a document counts to the next one, whose first token it predicts.
    if restarts:
        none = np.zeros(len(tokens))
        row["restarts"] = none if separator is None else tokens == separator
    elif separator is not None:
        is_first = tokens == separator
        is_first[0] = True
        indices = np.arange(len(tokens))
        starts = np.maximum.accumulate(np.where(is_first, indices, 0))
        row |= {"positions": indices - starts, "segment_ids": np.cumsum(is_first)}
    return {name: values.astype(np.int32) for name, values in row.items()}


def tokenised(text, data, tokenizer, name: str) -> store.Store:
    """Returns the token store of a text; builds the parts of it that do not exist.

    `text` has parts, iterables of documents, and a fingerprint. The store's metadata count tokens
    (ends included), documents, bytes and characters.
    """
    key = {"text": text.fingerprint(), "tokenizer": tokenizer.fingerprint()}
    content = store.Content(
        parts=text.parts,
        fill=functools.partial(_fill, tokenizer=tokenizer),
        whole=functools.partial(_whole, name=name, eos_id=tokenizer.eos_id),
        title=f"tokenising {name}",
    )
    stored = store.build(
        data.cache, f"text-{name}", key, tokenizer.vocab_size, content, rebuild=data.rebuild
    )
    meta = stored.meta
    say(
        f"{name}: {meta['documents']:,} documents, {meta['tokens']:,} tokens, "
        f"{meta['bytes'] / meta['tokens']:.2f} bytes a token"
    )
    return stored


def _fill(writer: store.Writer, documents: Iterable[str], tokenizer) -> dict[str, int]:
    """Writes the tokens of a part, and returns its counts."""
    counts = {"documents": 0, "bytes": 0, "characters": 0}
    for block in blocks(documents):
        writer.append(encoded(block, tokenizer))
        counts["documents"] += len(block)
        counts["bytes"] += sum(len(document.encode()) for document in block)
        counts["characters"] += sum(map(len, block))
    return counts


def encoded(documents: list[str], tokenizer) -> UInt32[np.ndarray, " N"]:
    """Returns the tokens of documents, each with its end."""
    ids = tokenizer.encode(documents)
    return np.concatenate([np.array([*each, tokenizer.eos_id], np.uint32) for each in ids])


def _whole(parts: list[dict], name: str, eos_id: int) -> dict[str, int]:
    """Returns the metadata of a store. Raises UserError for a text without documents."""
    counts = sums(parts, ("tokens", "documents", "bytes", "characters"))
    if not counts["documents"]:
        raise UserError(f"config.data: the {name} text has no document that is not empty")
    return {**counts, "eos_id": eos_id}


def sums(parts: list[dict], names: Iterable[str]) -> dict[str, int]:
    """Returns the sums of these counts over all parts."""
    return {name: sum(part[name] for part in parts) for name in names}


def blocks(texts: Iterable[str]) -> Iterator[list[str]]:
    """Yields the texts in lists of about _CHARACTERS_PER_BLOCK characters."""
    block = []
    size = 0
    for text in texts:
        block.append(text)
        size += len(text)
        if size >= _CHARACTERS_PER_BLOCK:
            yield block
            block = []
            size = 0
    if block:
        yield block
