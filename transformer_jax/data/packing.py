"""Packing of several short pairs or texts into a row, and the rows of encoder-decoders."""

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
# Packing of several short pairs or texts into a row, planned once and kept in a token store.

# Rows that may still take a pair. Beyond them, the fullest row is closed.
_NUM_OPEN = 500
_NO_ROOM = np.int32(2**31 - 1)


def plan(
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    source_length: int,
    target_length: int,
    key: tuple[int, ...],
) -> list[list[int]]:
    """Returns the pair numbers of each row, so that both sides of a row fit their lengths.

    The pairs are taken in an order drawn from `key`, and each goes to the open row in which it
    leaves the least room (best fit). Rows therefore mix lengths as the data does. Each pair must
    fit a row alone.
    """
    order = np.random.Generator(np.random.Philox(key)).permutation(len(source_lengths))
    rows: list[list[int]] = []
    open_rows: list[list[int]] = [[]] * _NUM_OPEN
    # Free positions of the open rows: sources, targets, and both together.
    source_room, target_room, room = np.zeros((3, _NUM_OPEN), np.int32)
    for pair, source, target in zip(
        order.tolist(), source_lengths[order].tolist(), target_lengths[order].tolist()
    ):
        fits = (source_room >= source) & (target_room >= target)
        slot = int(np.where(fits, room, _NO_ROOM).argmin())
        if not fits[slot]:
            # The pair fits no open row: a new one replaces the fullest.
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
    """Returns the text numbers of each row, as `plan` does for pairs. Each text must fit alone."""
    return plan(lengths, np.zeros_like(lengths), length, 0, key)


class Sequences:
    """The tokens of many texts, as one flat array."""

    def __init__(self):
        self._tokens = []
        self._lengths = []

    def append(self, sequences: list[Sequence[int]]) -> None:
        self._tokens.append(np.fromiter(itertools.chain.from_iterable(sequences), np.uint32))
        self._lengths.append(np.array([len(ids) for ids in sequences], np.int64))

    def join(self) -> None:
        """Ends the appending."""
        self.tokens = np.concatenate([np.zeros(0, np.uint32), *self._tokens])
        self.lengths = np.concatenate([np.zeros(0, np.int64), *self._lengths])
        self._starts = starts(self.lengths)
        del self._tokens, self._lengths

    def sequence(self, number: int) -> np.ndarray:
        start = self._starts[number]
        return self.tokens[start : start + self.lengths[number]]


def starts(lengths: np.ndarray) -> np.ndarray:
    """Returns the first position of each segment."""
    return np.cumsum(lengths) - lengths


def write(writer: store.Writer, rows: Iterable[Sequence[np.ndarray]]) -> None:
    """Writes rows, each given as its sequences. The array "rows" has the first token of each."""
    first_tokens = [0]
    for sequences in rows:
        writer.append(np.concatenate(sequences))
        first_tokens.append(writer.size)
    writer.array("rows", np.array(first_tokens, np.uint32))


class StoredRows:
    """The rows of a token store whose parts `write` has written. `part["rows"]` is their number."""

    def __init__(self, stored: store.Store):
        self._store = stored
        self._numbering = store.Numbering(part["rows"] for part in stored.parts)
        # The first token of each row of a part, then the number of tokens: 4 bytes a row, of the
        # parts that were read.
        self._first_tokens: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self._numbering)

    def read(self, numbers: Sequence[int]) -> list[np.ndarray]:
        """Returns the tokens of these rows, read in parallel."""
        return self._store.read([self._span(number) for number in numbers])

    def _span(self, number: int) -> tuple[int, int]:
        """Returns the tokens of a row, counted from the first token of the store."""
        part, index = self._numbering.locate(number)
        if part not in self._first_tokens:
            self._first_tokens[part] = self._store.part_array(part, "rows")
        start, stop = self._first_tokens[part][index : index + 2].tolist()
        first = self._store.values.starts[part]
        return first + start, first + stop


# --------------------------------------------------------------------------------------------------
# Packed translation rows: each holds several sentence pairs.

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
        self._rows = StoredRows(stored)

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
    first = starts(lengths)
    side = {
        name: padded(tokens, size),
        f"{name}_positions": padded(np.arange(len(tokens)) - np.repeat(first, lengths), size),
        f"{name}_segment_ids": padded(np.repeat(np.arange(1, len(lengths) + 1), lengths), size),
    }
    return side, first


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
    """Returns the encoded sources and targets, and the numbers of empty and of over-long pairs.

    Each sentence is framed: it ends with the end token. `limits` are the lengths of a row's two
    sides. A longer text is cut where `cuts` is true; else its pair is left out.
    """
    source_limit, target_limit = limits
    source, target = Sequences(), Sequences()
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


# --------------------------------------------------------------------------------------------------
# The rows of encoder-decoders: packed pairs of texts that `config.data` names.


@dataclasses.dataclass(frozen=True)
class PairRows:
    """Rows of several sentence pairs: `source_length` and `target_length` tokens."""

    config: ConfigDict
    source_length: int
    target_length: int
    cuts: ClassVar[bool] = False  # whether longer texts are cut; false: such pairs are left out

    def text(self, split: str):
        """Returns the pairs of a split; None where `config.data` names none.

        Raises UserError where there are no training pairs.
        """
        of_split = pairs.open_pairs(self.config.data, split)
        if of_split is None and split == "train":
            raise UserError(
                "config.data.train_source and train_target are missing: the training text"
            )
        return of_split

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
        """Returns the pairs of a split as the model reads them."""
        return self.text(split)


@dataclasses.dataclass(frozen=True)
class ColumnRows(PairRows):
    """Rows of several sources and targets, which are columns of a table, or built-in."""

    columns: tuple[str, str]
    prefix: str
    lead_sentences: int
    cuts = True

    def text(self, split: str) -> pairs.LeadPairs | None:
        """Returns the pairs of a split, without the prefix; None where there are none."""
        data = self.config.data
        return pairs.open_column_pairs(data, split, self.columns, self.lead_sentences)

    def training_text(self):
        return self._written("train")

    def _written(self, split: str):
        text = self.text(split)
        return pairs.Prefixed(text, self.prefix) if self.prefix else text


# --------------------------------------------------------------------------------------------------
# Packed pairs with masked targets, for an encoder that writes (Dong et al. 2019, section 2.5).


class MaskedTargets:
    """Rows of several pairs, whose targets each epoch masks anew.

    The keys are those of `PackedPairs`. "labels" are the targets, and "target" is the same with
    masks; no start is in front of a target. Further keys, int32 (P,): masked_positions in the
    target, masked_labels, masked_weights. `key` is (seed, phase, component).
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
        masked = self.mask(row["labels"][filled], random)
        target = padded(masked.pop("tokens"), len(filled))
        return row | masked | {"target": target}


@dataclasses.dataclass(frozen=True)
class MaskedColumnRows(ColumnRows):
    """Rows of columns of a table, with masks on a share of each target's tokens."""

    mask_share: float

    @property
    def max_predictions(self) -> int:
        """The most predicted tokens of a row."""
        return max(round(self.mask_share * self.target_length), 1)

    def _packed(self, tokenizer, split: str) -> MaskedTargets:
        shared = tokenizer.source
        special = shared.special.copy()
        special[shared.eos_id] = False  # a model learns to end its outputs
        mask = masking.Masking(
            shared.mask_id,
            special,
            shared.continues,
            self.max_predictions,
            selected=self.mask_share,
        )
        key = (self.config.data.seed, 0, ("train", "valid", "test").index(split))
        return MaskedTargets(super()._packed(tokenizer, split), mask, key)
