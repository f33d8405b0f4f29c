"""Packed translation rows: each holds several sentence pairs."""

import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from transformer_jax.config import UserError
from transformer_jax.data import packing, store, tokenizers
from transformer_jax.data.rows import Row, padded
from transformer_jax.pictures.progress import say, track

_PAIRS_PER_BLOCK = 10_000  # tokenised together


class PackedPairs:
    """Rows of several pairs, told apart by segment ids (1, 2, ...; 0 is padding).

    Keys, all int32: source, source_positions, source_segment_ids (S,); target (the decoder's
    inputs, beginning with bos_id), labels (ending with eos_id), target_positions,
    target_segment_ids (T,).
    """

    def __init__(self, stored: store.Store, source_length: int, target_length: int):
        self.store = stored
        self.meta = stored.meta
        self.source_length = source_length
        self.target_length = target_length
        # The ends of sources and targets in turn, beginning with 0.
        self._offsets = stored.array("offsets")
        # The first pair of each row, then the number of pairs.
        self._first_pairs = stored.array("rows")

    def __len__(self) -> int:
        return len(self._first_pairs) - 1

    def rows(self, numbers: Sequence[tuple[int, int]]) -> list[Row]:
        bounds = [
            (2 * self._first_pairs[number], 2 * self._first_pairs[number + 1])
            for number, _ in numbers
        ]
        spans = [(self._offsets[start], self._offsets[stop]) for start, stop in bounds]
        lengths = [np.diff(self._offsets[start : stop + 1]) for start, stop in bounds]
        return [self._row(*both) for both in zip(self.store.read(spans), lengths)]

    def _row(self, tokens: np.ndarray, lengths: np.ndarray) -> Row:
        """`lengths` are those of the row's sources and targets in turn."""
        is_source = np.repeat(np.arange(len(lengths)) % 2 == 0, lengths)
        source = _side("source", tokens[is_source], lengths[::2], self.source_length)
        target = _side("target", tokens[~is_source], lengths[1::2], self.target_length)
        labels = target["target"]
        inputs = np.roll(labels, 1)
        inputs[_starts(lengths[1::2])] = self.meta["bos_id"]
        inputs[target["target_segment_ids"] == 0] = 0
        return {**source, **target, "labels": labels, "target": inputs}


def _starts(lengths: np.ndarray) -> np.ndarray:
    """Returns the first position of each segment."""
    return np.cumsum(lengths) - lengths


def _side(name: str, tokens: np.ndarray, lengths: np.ndarray, size: int) -> Row:
    """Returns the tokens, positions and segment ids of one side of a row, each (size,)."""
    positions = np.arange(lengths.sum()) - np.repeat(_starts(lengths), lengths)
    segment_ids = np.repeat(np.arange(1, len(lengths) + 1), lengths)
    return {
        name: padded(tokens, size),
        f"{name}_positions": padded(positions, size),
        f"{name}_segment_ids": padded(segment_ids, size),
    }


class _EncodedSide:
    """The tokens of all sources, or of all targets, as one flat array."""

    def __init__(self):
        self._tokens = []
        self._lengths = []

    def append(self, sentences: list[list[int]]) -> None:
        self._tokens.append(np.fromiter(itertools.chain.from_iterable(sentences), np.uint32))
        self._lengths.append(np.array([len(ids) for ids in sentences], np.int64))

    def join(self) -> None:
        """Ends the appending."""
        self.tokens = np.concatenate([np.zeros(0, np.uint32), *self._tokens])
        self.lengths = np.concatenate([np.zeros(0, np.int64), *self._lengths])
        self._starts = _starts(self.lengths)
        del self._tokens, self._lengths

    def sentence(self, number: int) -> np.ndarray:
        start = self._starts[number]
        return self.tokens[start : start + self.lengths[number]]


def build(
    pairs,
    data,
    tokenizer: tokenizers.Pair,
    *,
    source_length: int,
    target_length: int,
    split: str,
) -> PackedPairs:
    """Returns the packed rows of a split; tokenises, packs and stores its pairs the first time.

    Raises UserError where all pairs are empty or too long.
    """
    key = {
        "text": pairs.fingerprint(),
        "tokenizer": tokenizer.fingerprint(),
        "lengths": [source_length, target_length],
        "seed": data.seed,
    }
    vocab_size = max(tokenizer.source.vocab_size, tokenizer.target.vocab_size)
    limits = source_length, target_length

    def fill(writer: store.Writer) -> dict:
        source, target, skipped = _encoded(pairs, tokenizer, limits, split)
        if not len(source.lengths):
            raise UserError(
                f"config.data.{split}_*: no pair is left after dropping {skipped['empty']} empty "
                f"and {skipped['long']} over-long ones (config.task.source_length={source_length}, "
                f"config.task.target_length={target_length})"
            )
        rows = packing.plan(source.lengths, target.lengths, *limits, data.seed)
        _write(writer, rows, source, target, f"writing {split} rows")
        return {
            "pairs": len(target.lengths),
            "skipped": skipped,
            "bos_id": tokenizer.target.bos_id,
            "padding": 1 - float(target.lengths.sum()) / (len(rows) * target_length),
        }

    stored = store.build(data.cache, f"pairs-{split}", key, vocab_size, fill, rebuild=data.rebuild)
    packed = PackedPairs(stored, source_length, target_length)
    say(f"{split}: {_summary(packed)}")
    return packed


def _summary(packed: PackedPairs) -> str:
    meta = packed.meta
    summary = (
        f"{meta['pairs']:,} pairs in {len(packed):,} rows, "
        f"{meta['padding']:.1%} of target positions are padding"
    )
    for reason, adjective in (("long", "over-long"), ("empty", "empty")):
        if meta["skipped"][reason]:
            summary += f", dropped {meta['skipped'][reason]:,} {adjective}"
    return summary


def _write(
    writer: store.Writer,
    rows: list[list[int]],
    source: _EncodedSide,
    target: _EncodedSide,
    title: str,
) -> None:
    """Writes the pairs of each row, source and target in turn."""
    offsets = [0]
    for row in track(rows, title, len(rows)):
        for number in row:
            for side in (source, target):
                tokens = side.sentence(number)
                writer.append(tokens)
                offsets.append(offsets[-1] + len(tokens))
    writer.array("offsets", np.array(offsets))
    writer.array("rows", np.cumsum([0, *map(len, rows)]))


def _encoded(
    pairs: Iterable[tuple[str, str]],
    tokenizer: tokenizers.Pair,
    limits: tuple[int, int],
    split: str,
) -> tuple[_EncodedSide, _EncodedSide, dict[str, int]]:
    """Returns the encoded sources and targets, and the number of pairs that were skipped.

    Each sentence ends with the end token. `limits` are the lengths of a row's two sides.
    """
    source_limit, target_limit = limits
    source, target = _EncodedSide(), _EncodedSide()
    skipped = {"long": 0, "empty": 0}
    remaining = iter(track(pairs, f"tokenising {split}"))
    while block := list(itertools.islice(remaining, _PAIRS_PER_BLOCK)):
        sources, targets = map(list, zip(*block))
        encoded = list(zip(tokenizer.source.encode(sources), tokenizer.target.encode(targets)))
        filled = [pair for pair in encoded if all(pair)]
        fitting = [
            (source_ids, target_ids)
            for source_ids, target_ids in filled
            if len(source_ids) < source_limit and len(target_ids) < target_limit
        ]
        skipped["empty"] += len(encoded) - len(filled)
        skipped["long"] += len(filled) - len(fitting)
        source.append([ids + [tokenizer.source.eos_id] for ids, _ in fitting])
        target.append([ids + [tokenizer.target.eos_id] for _, ids in fitting])
    source.join()
    target.join()
    return source, target, skipped
