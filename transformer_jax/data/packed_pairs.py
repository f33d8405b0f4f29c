"""Packed translation rows: each holds several sentence pairs."""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from transformer_jax.config import UserError
from transformer_jax.data import packing, store, tokenizers, windows
from transformer_jax.data.rows import Row, padded
from transformer_jax.pictures.progress import say

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
        self._rows = packing.StoredRows(stored)

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self, numbers: Sequence[tuple[int, int]]) -> list[Row]:
        return [*map(self._row, self._rows.read([number for number, _ in numbers]))]

    def _row(self, tokens: np.ndarray) -> Row:
        """Returns a row of sources and targets in turn, each with its end token."""
        ends = self._ends(tokens)
        lengths = ends.copy()
        lengths[1:] -= ends[:-1]
        is_source = np.repeat(np.arange(len(lengths)) % 2 == 0, lengths)
        source = tokens[is_source], lengths[::2]
        target = tokens[~is_source], lengths[1::2]
        sizes = self.source_length, self.target_length
        return assembled(source, target, sizes, self.meta["bos_id"])

    def _ends(self, tokens: np.ndarray) -> np.ndarray:
        """Returns the position behind each source and each target of a row.

        No text encodes to the end token of its side.
        """
        eos_ids = self.meta.get("source_eos_id", self.meta["eos_id"]), self.meta["eos_id"]
        if eos_ids[0] == eos_ids[1]:
            return np.flatnonzero(tokens == eos_ids[0]) + 1
        # The end token of one side may be an ordinary one of the other.
        ends = [0]
        while ends[-1] < len(tokens):
            eos_id = eos_ids[(len(ends) - 1) % 2]
            ends.append(ends[-1] + 1 + int(np.argmax(tokens[ends[-1] :] == eos_id)))
        return np.array(ends[1:])


def assembled(
    source: tuple[np.ndarray, np.ndarray],
    target: tuple[np.ndarray, np.ndarray],
    sizes: tuple[int, int],
    start_id: int,
) -> Row:
    """Returns the row of framed sources and targets.

    Each side is its tokens, and the length of each of its segments. `sizes` are the lengths of a
    row's two sides.
    """
    source_row, _ = _side("source", *source, sizes[0])
    target_row, starts = _side("target", *target, sizes[1])
    labels = target_row["target"]
    inputs = np.roll(labels, 1)
    inputs[starts] = start_id
    inputs[target_row["target_segment_ids"] == 0] = 0
    return {**source_row, **target_row, "labels": labels, "target": inputs}


def _side(name: str, tokens: np.ndarray, lengths: np.ndarray, size: int) -> tuple[Row, np.ndarray]:
    """Returns the tokens, positions and segment ids of one side of a row, each (size,).

    The second value is the first position of each segment.
    """
    starts = packing.starts(lengths)
    side = {
        name: padded(tokens, size),
        f"{name}_positions": padded(np.arange(len(tokens)) - np.repeat(starts, lengths), size),
        f"{name}_segment_ids": padded(np.repeat(np.arange(1, len(lengths) + 1), lengths), size),
    }
    return side, starts


@dataclasses.dataclass(frozen=True)
class _Packing:
    """Packs one part of a split. `limits` are the lengths of a row's two sides."""

    tokenizer: tokenizers.Pair
    limits: tuple[int, int]
    seed: int
    cuts: bool

    def __call__(self, writer: store.Writer, numbered: tuple[int, Iterable]) -> dict:
        """Writes the rows of the pairs, source and target in turn, and returns their counts."""
        number, pairs = numbered
        source, target, skipped = _encoded(pairs, self.tokenizer, self.limits, self.cuts)
        key = (self.seed, number)
        rows = packing.plan(source.lengths, target.lengths, *self.limits, key)
        sides = source, target
        packing.write(writer, ([side.sequence(i) for i in row for side in sides] for row in rows))
        counts = {"pairs": len(target.lengths), "rows": len(rows), **skipped}
        return counts | {"target_tokens": int(target.lengths.sum())}


def build(
    pairs,
    data,
    tokenizer: tokenizers.Pair,
    *,
    source_length: int,
    target_length: int,
    split: str,
    cuts: bool = False,
) -> PackedPairs:
    """Returns the packed rows of a split; tokenises and packs its parts that do not exist.

    Each part is packed by itself. A pair that is too long for a row is left out; where `cuts` is
    true, its texts are cut. Raises UserError where no pair is left.
    """
    limits = source_length, target_length
    key = {
        "text": pairs.fingerprint(),
        "tokenizer": tokenizer.fingerprint(),
        "lengths": limits,
        "seed": data.seed,
    }
    if cuts:
        key["cuts"] = True

    def whole(parts: list[dict]) -> dict:
        names = ("pairs", "rows", "empty", "long", "target_tokens")
        num_pairs, num_rows, empty, too_long, num_tokens = windows.sums(parts, names).values()
        if not num_pairs:
            raise UserError(
                f"config.data.{split}_*: no pair is left after dropping {empty} empty "
                f"and {too_long} over-long ones (config.task.source_length={source_length}, "
                f"config.task.target_length={target_length})"
            )
        return {
            "pairs": num_pairs,
            "skipped": {"long": too_long, "empty": empty},
            "bos_id": tokenizer.target.start_id,
            "eos_id": tokenizer.target.eos_id,
            "source_eos_id": tokenizer.source.eos_id,
            "padding": 1 - num_tokens / (num_rows * target_length),
        }

    content = store.Content(
        parts=lambda: [*enumerate(pairs.parts())],
        fill=_Packing(tokenizer, limits, data.seed, cuts),
        whole=whole,
        title=f"packing {split}",
    )
    vocab_size = max(tokenizer.source.vocab_size, tokenizer.target.vocab_size)
    stored = store.build(
        data.cache, f"pairs-{split}", key, vocab_size, content, rebuild=data.rebuild
    )
    packed = PackedPairs(stored, source_length, target_length)
    say(f"{split}: {_summary(packed, cuts)}")
    return packed


def _summary(packed: PackedPairs, cuts: bool) -> str:
    meta = packed.meta
    summary = (
        f"{meta['pairs']:,} pairs in {len(packed):,} rows, "
        f"{meta['padding']:.1%} of target positions are padding"
    )
    for reason, adjective in (("long", "over-long"), ("empty", "empty")):
        if meta["skipped"][reason]:
            verb = "cut" if cuts and reason == "long" else "dropped"
            summary += f", {verb} {meta['skipped'][reason]:,} {adjective}"
    return summary


def _encoded(
    pairs: Iterable[tuple[str, str]],
    tokenizer: tokenizers.Pair,
    limits: tuple[int, int],
    cuts: bool,
) -> tuple[packing.Sequences, packing.Sequences, dict[str, int]]:
    """Returns the encoded sources and targets, and the numbers of empty and of over-long pairs.

    Each sentence is framed: it ends with the end token. `limits` are the lengths of a row's two
    sides. A longer text is cut where `cuts` is true; else its pair is left out.
    """
    source_limit, target_limit = limits
    source, target = packing.Sequences(), packing.Sequences()
    skipped = {"long": 0, "empty": 0}
    remaining = iter(pairs)
    while block := list(itertools.islice(remaining, _PAIRS_PER_BLOCK)):
        sources, targets = map(list, zip(*block))
        encoded = list(zip(tokenizer.source.encode(sources), tokenizer.target.encode(targets)))
        filled = [
            (tokenizer.source.framed(source_ids), tokenizer.target.framed(target_ids))
            for source_ids, target_ids in encoded
            if source_ids and target_ids
        ]
        fitting = [
            (source_ids, target_ids)
            for source_ids, target_ids in filled
            if len(source_ids) <= source_limit and len(target_ids) <= target_limit
        ]
        skipped["empty"] += len(encoded) - len(filled)
        skipped["long"] += len(filled) - len(fitting)
        if cuts:
            fitting = [
                (_cut(source_ids, source_limit), _cut(target_ids, target_limit))
                for source_ids, target_ids in filled
            ]
        source.append([ids for ids, _ in fitting])
        target.append([ids for _, ids in fitting])
    source.join()
    target.join()
    return source, target, skipped


def _cut(ids: list[int], limit: int) -> list[int]:
    """Returns a framed text of at most `limit` tokens, its end included."""
    return ids if len(ids) <= limit else [*ids[: limit - 1], ids[-1]]
