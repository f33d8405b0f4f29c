"""Batches of texts for inference: special tokens, padding to few shapes, and the original order."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

# ----------------------------------------------------------------- the special tokens around a text


def text_frame(model: Any, tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the special tokens before and after a text that an encoder reads.

    An Encoder reads [CLS] text [SEP], or text [SEP] [CLS] if it declares `cls_last` (XLNet). A
    SequenceToSequence model reads the text framed as a source, and a Causal one reads it after the
    start token, if the tokenizer puts one there. Raises UserError if the tokenizer lacks these
    tokens.
    """
    if model.kind == "causal":
        return tokenizer.prefix, ()
    if model.kind == "sequence_to_sequence":
        *begin, end = tokenizer.framed([])
        return tuple(begin), (end,)
    user = f"config.model.name={type(model).__name__.lower()!r}"
    cls, sep = tokenizer.required("cls", "sep", user=user)
    return ((), (sep, cls)) if model.cls_last else ((cls,), (sep,))


def with_start(ids: list[int], tokenizer, mask_documents: bool) -> list[int]:
    """Returns the ids with the tokens in front that start a document in training, if any.

    With `config.data.mask_documents`, the end token comes first in each document. The tokens follow
    that the tokenizer puts in front of a text. Without either, the end token is used if there are
    no ids, because a model must read at least one token.
    """
    ids = [*tokenizer.prefix, *ids]
    return [tokenizer.eos_id, *ids] if mask_documents or not ids else ids


def fitted(first: list[int], second: list[int], max_tokens: int) -> tuple[list[int], list[int]]:
    """Returns two texts cut at their ends to `max_tokens` together. The longer one is cut first."""
    # Each text also gets what the other one leaves of its half, so that nothing is cut in vain.
    second_length = min(len(second), max(max_tokens // 2, max_tokens - len(first)))
    return first[: max_tokens - second_length], second[:second_length]


# ------------------------------------ padding to few shapes, and results in the order of the inputs

T = TypeVar("T")


def rounded_up(length: int, multiple: int) -> int:
    """Returns the smallest multiple of `multiple` that is at least `length`.

    Lengths are padded to it, so that few shapes are compiled.
    """
    return -(-int(length) // multiple) * multiple


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yields the items in lists of `size`; the last list may be shorter."""
    items = iter(items)
    while chunk := list(itertools.islice(items, size)):
        yield chunk


def longest_first(lengths: Sequence[int]) -> list[int]:
    """Returns the indices of the items, sorted from the longest item to the shortest."""
    return sorted(range(len(lengths)), key=lambda number: -lengths[number])


def padded(rows: Sequence[Sequence], length: int, num_rows: int | None = None) -> np.ndarray:
    """Returns the rows as an int32 array (num_rows, length, ...), padded with zeros.

    The items of a row are numbers, or arrays of one shape. By default the array has as many rows as
    `rows`.
    """
    shape = next((np.shape(values[0]) for values in rows if len(values)), ())
    # int32, because JAX would convert NumPy's int64 to it anyway, with a copy.
    array = np.zeros((num_rows or len(rows), length, *shape), np.int32)
    for row, values in enumerate(rows):
        array[row, : len(values)] = values
    return array


def in_order(results: Iterable[tuple[int, T]]) -> Iterator[T]:
    """Yields the results in the order of their indices 0, 1, 2, ..., each as soon as possible."""
    # Only results that come too early are kept, so that inputs may be an endless stream.
    waiting, next_number = {}, 0
    for number, result in results:
        waiting[number] = result
        while next_number in waiting:
            yield waiting.pop(next_number)
            next_number += 1
