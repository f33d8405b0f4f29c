"""Packing of several short pairs or texts into one row, and the rows of encoder-decoder models."""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import ClassVar

import numpy as np
from ml_collections import ConfigDict

from transformer_jax.config import UserError
from transformer_jax.data import masking, rows, store, texts, tokenizers
from transformer_jax.data.rows import Row, generator, padded, philox_key
from transformer_jax.data.sources import pairs
from transformer_jax.pictures.progress import say

# --------------------------------------------------------------------------------------------------
# Packing of several short pairs or texts into one row, because most of a row with a single sentence
# would be padding. It is planned once and kept in a token store: planning at training time would
# need the lengths of all texts in every process.

# The number of rows that may still receive a pair. When a further row is opened, the fullest of
# them is closed. The bound keeps the cost of placing a pair constant.
_NUM_OPEN = 500
_NO_ROOM = np.int32(2**31 - 1)


def plan(
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    source_length: int,
    target_length: int,
    key: tuple[int, ...],
) -> list[list[int]]:
    """Returns the numbers of the pairs in each row, so that both sides fit in the row.

    The pairs are processed in an order drawn from `key`, and each is placed in the open row in
    which it leaves the least room (best fit). Each pair must fit in a row of its own.
    """
    # The order is random, not by length as in best-fit decreasing. Sorted pairs would pack more
    # tightly, but a row would then hold pairs of similar lengths, while batches should mix lengths
    # in the proportions of the data.
    order = np.random.Generator(np.random.Philox(key)).permutation(len(source_lengths))
    rows: list[list[int]] = []
    open_rows: list[list[int]] = [[]] * _NUM_OPEN
    # Free positions of the open rows: in sources, in targets, and in both together. The initial
    # rows have none, so the first pairs replace them.
    source_room, target_room, room = np.zeros((3, _NUM_OPEN), np.int32)
    for pair, source, target in zip(
        order.tolist(), source_lengths[order].tolist(), target_lengths[order].tolist()
    ):
        fits = (source_room >= source) & (target_room >= target)
        # All open rows are compared. A heap or a sorted list would not find the best one, because a
        # pair must fit on both sides, and the rows with the least room in total may lack it on one.
        slot = int(np.where(fits, room, _NO_ROOM).argmin())
        if not fits[slot]:
            # The pair fits in no open row, so a new row replaces the fullest one.
            slot = int(room.argmin())
            source_room[slot] = source_length
            target_room[slot] = target_length
            room[slot] = source_length + target_length
            open_rows[slot] = []
            rows.append(open_rows[slot])
        open_rows[slot].append(pair)
        source_room[slot] -= source
        target_room[slot] -= target
        room[slot] -= source + target
    return rows


def plan_texts(lengths: np.ndarray, length: int, key: tuple[int, ...]) -> list[list[int]]:
    """Returns the numbers of the texts in each row, as `plan` does for pairs."""
    # Targets of length 0 fit everywhere, so that texts need no planner of their own.
    return plan(lengths, np.zeros_like(lengths), length, 0, key)


class Sequences:
    """The token sequences of many texts, stored as one flat array."""

    def __init__(self):
        self._tokens = []
        self._lengths = []

    def append(self, sequences: list[Sequence[int]]) -> None:
        # Arrays of 4 bytes a token: a list would take 8 for each reference alone.
        self._tokens.append(np.fromiter(itertools.chain.from_iterable(sequences), np.uint32))
        self._lengths.append(np.array([len(ids) for ids in sequences], np.int64))

    def join(self) -> None:
        """Concatenates all sequences. Must be called once, after the last `append`."""
        # The empty arrays make this work without any text, too.
        self.tokens = np.concatenate([np.zeros(0, np.uint32), *self._tokens])
        self.lengths = np.concatenate([np.zeros(0, np.int64), *self._lengths])
        self._starts = starts(self.lengths)
        # These are a second copy of all tokens of the part.
        del self._tokens, self._lengths

    def sequence(self, number: int) -> np.ndarray:
        start = self._starts[number]
        return self.tokens[start : start + self.lengths[number]]


def starts(lengths: np.ndarray) -> np.ndarray:
    """Returns the start position of each of several consecutive segments."""
    return np.cumsum(lengths) - lengths


def write(writer: store.Writer, rows: Iterable[Sequence[np.ndarray]]) -> None:
    """Writes rows, each given as its sequences.

    The index array "rows" gets the offset of the first token of each row, and the total number of
    tokens as its last entry.
    """
    first_tokens = [0]
    for sequences in rows:
        writer.append(np.concatenate(sequences))
        # Relative to the part, whose size is bounded, so that 4 bytes suffice.
        first_tokens.append(writer.size)
    writer.array("rows", np.array(first_tokens, np.uint32))


class StoredRows:
    """The rows of a token store whose parts were written by `write`.

    The metadata of each part must have the number of its rows under "rows".
    """

    def __init__(self, stored: store.Store):
        self._store = stored
        self._index = store.RowIndex(stored, stored.values.starts)

    def __len__(self) -> int:
        return len(self._index)

    def read(self, numbers: Sequence[int]) -> list[np.ndarray]:
        """Returns the tokens of these rows, read in parallel."""
        return self._store.read([self._index.span(number) for number in numbers])


# --------------------------------------------------------------------------------------------------
# Packed translation rows: each holds several sentence pairs, and segment ids keep them from
# attending to each other.

_PAIRS_PER_BLOCK = 10_000  # tokenized in one call, to bound the memory, see `_encoded`


class PackedPairs:
    """Rows of several pairs, which segment ids distinguish (1, 2, ...; 0 is padding).

    Keys, all int32: source, source_positions, source_segment_ids (S,); target (the decoder's
    inputs, each starting with bos_id), labels (each ending with eos_id), target_positions,
    target_segment_ids (T,).
    """

    def __init__(self, stored: store.Store, source_length: int, target_length: int):
        self.store = stored
        self.meta = stored.meta
        self.source_length = source_length
        self.target_length = target_length
        self._rows = StoredRows(stored)

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self, numbers: Sequence[tuple[int, int]]) -> list[Row]:
        return [*map(self._row, self._rows.read([number for number, _ in numbers]))]

    def _row(self, tokens: np.ndarray) -> Row:
        """Returns the row for stored tokens: alternating sources and targets, each with its eos."""
        ends = self._ends(tokens)
        lengths = ends.copy()
        lengths[1:] -= ends[:-1]
        is_source = np.repeat(np.arange(len(lengths)) % 2 == 0, lengths)
        source = tokens[is_source], lengths[::2]
        target = tokens[~is_source], lengths[1::2]
        sizes = self.source_length, self.target_length
        return assembled(source, target, sizes, self.meta["bos_id"])

    def _ends(self, tokens: np.ndarray) -> np.ndarray:
        """Returns the position after each source and each target of a row.

        The end tokens are found by their ids, because no text encodes to the end token of its own
        side; so the store needs no index of the pairs in a row.
        """
        eos_ids = self.meta.get("source_eos_id", self.meta["eos_id"]), self.meta["eos_id"]
        if eos_ids[0] == eos_ids[1]:
            return np.flatnonzero(tokens == eos_ids[0]) + 1
        # With two vocabularies, the end token of one side may be an ordinary token of the other, so
        # the two sides are searched in turn.
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
    """Returns the row of sources and targets that already have their special tokens.

    Each side is given as its concatenated tokens and the length of each of its segments. `sizes`
    are the lengths (S, T) of a row. The decoder's inputs are the labels shifted by one position,
    where each segment starts with `start_id`.
    """
    source_row, _ = _side("source", *source, sizes[0])
    target_row, starts = _side("target", *target, sizes[1])
    labels = target_row["target"]
    # After rolling the row as a whole, the end token of the previous segment is at each segment's
    # start, where `start_id` replaces it.
    inputs = np.roll(labels, 1)
    inputs[starts] = start_id
    # The end token of the last segment has moved into the padding.
    inputs[target_row["target_segment_ids"] == 0] = 0
    return {**source_row, **target_row, "labels": labels, "target": inputs}


def _side(name: str, tokens: np.ndarray, lengths: np.ndarray, size: int) -> tuple[Row, np.ndarray]:
    """Returns the tokens, positions and segment ids of one side of a row, each (size,).

    The second value is the start position of each segment.
    """
    first = starts(lengths)
    side = {
        name: padded(tokens, size),
        f"{name}_positions": padded(np.arange(len(tokens)) - np.repeat(first, lengths), size),
        f"{name}_segment_ids": padded(np.repeat(np.arange(1, len(lengths) + 1), lengths), size),
    }
    return side, first


@dataclasses.dataclass(frozen=True)
class _Packing:
    """Packs one part of a split. `limits` are the lengths (S, T) of a row."""

    tokenizer: tokenizers.Pair
    limits: tuple[int, int]
    seed: int
    cuts: bool

    def __call__(self, writer: store.Writer, numbered: tuple[int, Iterable]) -> dict:
        """Writes rows of alternating sources and targets, and returns the counts of the part."""
        number, pairs = numbered
        source, target, skipped = _encoded(pairs, self.tokenizer, self.limits, self.cuts)
        # With the number of the part, the plan of a part does not depend on the other parts.
        key = (self.seed, number)
        rows = plan(source.lengths, target.lengths, *self.limits, key)
        sides = source, target
        write(writer, ([side.sequence(i) for i in row for side in sides] for row in rows))
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
    """Returns the packed rows of a split; tokenizes and packs the parts that do not exist yet.

    Each part is packed separately, so that the parts can be built in parallel and the result does
    not depend on the number of workers. A pair that is too long for a row is dropped, unless `cuts`
    is true: then its texts are truncated. Raises UserError if no pair is left.
    """
    limits = source_length, target_length
    key = {
        "text": pairs.fingerprint(),
        "tokenizer": tokenizer.fingerprint(),
        "lengths": limits,
        # The seed decides which pairs share a row.
        "seed": data.seed,
    }
    # The key has the option only where it is used, so that the stores of other tasks, which were
    # built before it existed, are still found.
    if cuts:
        key["cuts"] = True

    def whole(parts: list[dict]) -> dict:
        names = ("pairs", "rows", "empty", "long", "target_tokens")
        num_pairs, num_rows, empty, too_long, num_tokens = texts.sums(parts, names).values()
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
    # Both sides alternate in one array, whose dtype must hold the ids of either.
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
) -> tuple[Sequences, Sequences, dict[str, int]]:
    """Returns the encoded sources and targets, and the numbers of empty and over-long pairs.

    Each sequence ends with its end token. `limits` are the lengths (S, T) of a row. A longer text
    is truncated if `cuts` is true; otherwise its pair is dropped.
    """
    source_limit, target_limit = limits
    source, target = Sequences(), Sequences()
    skipped = {"long": 0, "empty": 0}
    remaining = iter(pairs)
    # In blocks, because the tokenizers' lists of ids take many times the memory of the arrays.
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
    """Truncates an encoded text to `limit` tokens, of which the last is still its end token."""
    return ids if len(ids) <= limit else [*ids[: limit - 1], ids[-1]]


# --------------------------------------------------------------------------------------------------
# The rows of encoder-decoder models: packed pairs from the files that `config.data` names. What the
# tasks do differently is in the subclasses, so that all of them pack in the same way.


@dataclasses.dataclass(frozen=True)
class PairRows:
    """Rows of several sentence pairs, of `source_length` and `target_length` tokens."""

    config: ConfigDict
    source_length: int
    target_length: int
    cuts: ClassVar[bool] = False  # whether longer texts are truncated; false: pairs are dropped

    def text(self, split: str):
        """Returns the pairs of a split, or None if `config.data` names none.

        Raises UserError if there are no training pairs.
        """
        split_pairs = pairs.open_pairs(self.config.data, split)
        if split_pairs is None and split == "train":
            raise UserError(
                "config.data.train_source and train_target are missing: the training text"
            )
        return split_pairs

    def training_text(self):
        return self.text("train")

    def fingerprint(self) -> dict:
        return {"train": self.text("train").fingerprint()}

    def train(self, tokenizer) -> rows.TrainRows:
        """Returns the training rows. The first call packs the pairs."""
        return rows.train_rows(
            [self._packed(tokenizer, "train")], self.config.train, self.config.data.seed
        )

    def evaluation(self, tokenizer, split: str) -> rows.EvalRows:
        return rows.EvalRows(self._packed(tokenizer, split))

    def _packed(self, tokenizer, split: str) -> PackedPairs:
        return build(
            self._written(split),
            self.config.data,
            tokenizer,
            source_length=self.source_length,
            target_length=self.target_length,
            split=split,
            cuts=self.cuts,
        )

    def _written(self, split: str):
        """Returns the pairs of a split as they are tokenized for the model."""
        return self.text(split)


@dataclasses.dataclass(frozen=True)
class ColumnRows(PairRows):
    """Rows of several sources and targets from two columns of a table, or from a built-in set."""

    columns: tuple[str, str]
    prefix: str
    lead_sentences: int
    cuts = True

    def text(self, split: str) -> pairs.LeadPairs | None:
        """Returns the pairs of a split, without the prefix, or None if there are none."""
        data = self.config.data
        return pairs.open_column_pairs(data, split, self.columns, self.lead_sentences)

    def training_text(self):
        return self._written("train")

    def _written(self, split: str):
        text = self.text(split)
        return pairs.Prefixed(text, self.prefix) if self.prefix else text


# --------------------------------------------------------------------------------------------------
# Packed pairs with masked targets, which fine-tune an encoder to generate (UniLM, Dong et al. 2019,
# section 2.5).


class MaskedTargets:
    """Rows of several pairs, in whose targets each epoch masks other tokens.

    The keys are the same as in `PackedPairs`. "labels" are the targets, and "target" is the targets
    with masked tokens. A target has no start token, because the model predicts the masked tokens
    themselves and not the next ones. Further keys, int32 (P,): masked_positions in the target,
    masked_labels, masked_weights. `key` is (seed, phase, component).
    """

    def __init__(self, packed: PackedPairs, mask: masking.Masking, key: tuple[int, int, int]):
        self.packed = packed
        self.mask = mask
        self._philox_key = philox_key(key)

    def __len__(self) -> int:
        return len(self.packed)

    def rows(self, numbers: Sequence[tuple[int, int]]) -> list[Row]:
        return [
            self._row(row, generator(self._philox_key, *number))
            for number, row in zip(numbers, self.packed.rows(numbers))
        ]

    def _row(self, row: Row, random: np.random.Generator) -> Row:
        filled = row["target_segment_ids"] > 0
        # Without the padding, because the number of masked tokens is a share of all tokens given.
        masked = self.mask(row["labels"][filled], random)
        target = padded(masked.pop("tokens"), len(filled))
        return row | masked | {"target": target}


@dataclasses.dataclass(frozen=True)
class MaskedColumnRows(ColumnRows):
    """Rows from two columns of a table, with a share of the target tokens masked."""

    mask_share: float

    @property
    def max_predictions(self) -> int:
        """The maximum number of predicted tokens in a row."""
        return max(round(self.mask_share * self.target_length), 1)

    def _packed(self, tokenizer, split: str) -> MaskedTargets:
        shared = tokenizer.source
        special = shared.special.copy()
        # The end token may be masked too, because the model must learn to end its output.
        special[shared.eos_id] = False
        mask = masking.Masking(
            shared.mask_id,
            special,
            shared.continues,
            self.max_predictions,
            selected=self.mask_share,
        )
        key = (self.config.data.seed, 0, ("train", "valid", "test").index(split))
        return MaskedTargets(super()._packed(tokenizer, split), mask, key)
