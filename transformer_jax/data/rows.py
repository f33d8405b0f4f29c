"""Rows, and their order: which row feeds which update is a pure function of (config, step).

A run is a list of phases. Row j of update s has the position g = (rows of the phase's earlier
updates) + j. In a phase that mixes components, g mod P names a slot of a fixed table, the slot a
component, and c counts the component's slots up to g; otherwise c = g. With R rows in the
component: epoch = c div R, and row number i = index_shuffle(c mod R; seed, phase, component,
epoch). Nothing is replayed: resuming at step s is asking for step s.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from grain.experimental import index_shuffle

from transformer_jax.config import UserError
from transformer_jax.data import packing, store, tokenizers
from transformer_jax.pictures.progress import say, track

Row = dict[str, np.ndarray]
_BLOCK = 10_000  # pairs tokenised together
_STAGES = 8  # of a growing batch: each is another shape to compile


class Component(Protocol):
    """A set of rows. `rows` is pure: equal (number, epoch) give equal rows; it reads them side by
    side.
    """

    def __len__(self) -> int: ...
    def rows(self, numbers: Sequence[tuple[int, int]]) -> list[Row]: ...


@dataclasses.dataclass(frozen=True)
class Phase:
    """`components` are drawn from by whole `weights`; rows per update may grow from `first_batch`
    to `batch` over `ramp_steps` updates.
    """

    components: Sequence[Component]
    batch: int
    num_steps: int | None = None  # updates; None: to the end of the run
    weights: Sequence[int] = (1,)
    first_batch: int = 0  # 0: batch
    ramp_steps: int = 0

    def size(self, step: int) -> int:
        """Rows of update `step` of the phase: _STAGES equal stages from first_batch towards batch,
        in multiples of first_batch.
        """
        if not self.first_batch or step >= self.ramp_steps:
            return self.batch
        grown = (self.batch - self.first_batch) * (step * _STAGES // self.ramp_steps) / _STAGES
        return self.first_batch + int(grown / self.first_batch) * self.first_batch

    @property
    def _starts(self) -> list[int]:
        """The first update of each stage."""
        return (
            [-(-stage * self.ramp_steps // _STAGES) for stage in range(_STAGES + 1)]
            if self.first_batch
            else [0]
        )

    def before(self, step: int) -> int:
        """Rows of the updates before `step`."""
        stops = [*self._starts[1:], step]
        return sum(
            self.size(a) * (min(b, step) - a)
            for a, b in zip(self._starts, stops)
            if a < min(b, step)
        )

    def until(self, step: int) -> float:
        """The end of the stage that `step` is in."""
        return min(
            (start for start in self._starts if start > step),
            default=math.inf if self.num_steps is None else self.num_steps,
        )

    @functools.cached_property
    def slots(self) -> np.ndarray:
        """(P, 2): the component of each slot, and how many of its slots stand before; each
        component spread evenly over the table.
        """
        even = sorted(
            ((place + 0.5) / weight, k, place)
            for k, weight in enumerate(self.weights)
            for place in range(weight)
        )
        return np.array([(k, place) for _, k, place in even])

    def locate(self, position: int) -> tuple[int, int]:
        """(component, how many of its rows stand before) at a position of the phase."""
        turn, slot = divmod(position, len(self.slots))
        component, before = self.slots[slot]
        return int(component), turn * self.weights[component] + int(before)


@dataclasses.dataclass(frozen=True)
class TrainRows:
    """The training rows of a run, by update and place in the update's batch."""

    phases: Sequence[Phase]
    seed: int

    def phase(self, step: int) -> tuple[int, int]:
        """(phase, updates of it before `step`)."""
        for number, phase in enumerate(self.phases):
            if phase.num_steps is None or step < phase.num_steps:
                return number, step
            step -= phase.num_steps
        raise IndexError(f"no phase has update {step} left")

    def size(self, step: int) -> int:
        """Rows of update `step`."""
        number, step = self.phase(step)
        return self.phases[number].size(step)

    def until(self, step: int) -> float:
        """The first update after `step` whose batch may have another shape."""
        number, within = self.phase(step)
        return step - within + self.phases[number].until(within)

    def numbers(self, step: int, places: Sequence[int]) -> list[tuple[int, int, int]]:
        """(component, row number, epoch) of these places of update `step`."""
        number, step = self.phase(step)
        phase = self.phases[number]
        first, found, sizes = (
            phase.before(step),
            [],
            [len(component) for component in phase.components],
        )
        for place in places:
            component, count = phase.locate(first + int(place))
            epoch, index = divmod(count, sizes[component])
            found.append(
                (
                    component,
                    index_shuffle(
                        index,
                        max_index=sizes[component] - 1,
                        seed=_order(self.seed, number, component, epoch),
                        rounds=4,
                    ),
                    epoch,
                )
            )
        return found

    def batch(self, step: int, places: Sequence[int]) -> Row:
        """These places of the batch of update `step`: arrays (len(places), ...)."""
        components, rows = self.phases[self.phase(step)[0]].components, {}
        for component, asked in itertools.groupby(
            sorted(enumerate(self.numbers(step, places)), key=lambda x: x[1][0]),
            key=lambda x: x[1][0],
        ):
            order, numbers = zip(*asked)
            rows |= zip(
                order, components[component].rows([(number, epoch) for _, number, epoch in numbers])
            )
        return {
            name: np.stack([rows[place][name] for place in range(len(places))]) for name in rows[0]
        }


@functools.lru_cache
def _order(*key: int) -> int:
    """The seed of the order in which (seed, phase, component, epoch) visits its rows."""
    return int(np.random.SeedSequence(key).generate_state(1)[0])


def train_rows(components: Sequence[Component], config, weights: Sequence[int] = (1,)) -> TrainRows:
    """A run of one phase, with the batch and its ramp of `config.train`."""
    train = config.train
    return TrainRows(
        [Phase(components, train.batch, None, weights, train.first_batch, train.ramp_steps)],
        config.data.seed,
    )


@dataclasses.dataclass(frozen=True)
class EvalRows:
    """Every row once an epoch, in order; places beyond the last are rows of zeros (weight 0)."""

    component: Component
    epochs: int = 1  # more where rows are drawn anew in each

    def __len__(self) -> int:
        return self.epochs * len(self.component)

    def num_batches(self, batch: int) -> int:
        return -(-len(self) // batch)

    def batch(self, step: int, places: Sequence[int], batch: int) -> Row:
        numbers = [step * batch + int(place) for place in places]
        there = [number < len(self) for number in numbers]
        rows = self.component.rows(
            [
                divmod(number if inside else 0, len(self.component))[::-1]
                for number, inside in zip(numbers, there)
            ]
        )
        return {
            name: np.stack(
                [
                    row[name] if inside else np.zeros_like(row[name])
                    for row, inside in zip(rows, there)
                ]
            )
            for name in rows[0]
        }


class PackedPairs:
    """Packed translation rows: several pairs a row, told apart by segment ids (1, 2, ...; 0 is
    padding).

    Keys, all int32: source, source_positions, source_segment_ids (S,); target (inputs, starting
    with bos_id), labels (ending with eos_id), target_positions, target_segment_ids (T,).
    """

    def __init__(self, stored: store.Store, source_length: int, target_length: int):
        self.store, self.lengths = stored, (source_length, target_length)
        self.meta = stored.meta
        # ends of source and target in turn, beginning with 0
        self._offsets = stored.array("offsets")
        self._first = stored.array("rows")  # first pair of each row, and the number of pairs

    def __len__(self) -> int:
        return len(self._first) - 1

    def rows(self, numbers):
        bounds = [(2 * self._first[i], 2 * self._first[i + 1]) for i, _ in numbers]
        tokens = self.store.read([(self._offsets[a], self._offsets[b]) for a, b in bounds])
        return [
            self._row(t, np.diff(self._offsets[a : b + 1])) for t, (a, b) in zip(tokens, bounds)
        ]

    def _row(self, tokens: np.ndarray, lengths: np.ndarray) -> Row:
        is_source = np.repeat(np.arange(len(lengths)) % 2 == 0, lengths)
        row = {}
        for side, own, pairs in (
            ("source", is_source, lengths[::2]),
            ("target", ~is_source, lengths[1::2]),
        ):
            size = self.lengths[side == "target"]
            starts = np.cumsum(pairs) - pairs
            row[side] = padded(tokens[own], size)
            row[f"{side}_positions"] = padded(
                np.arange(pairs.sum()) - np.repeat(starts, pairs), size
            )
            row[f"{side}_segment_ids"] = padded(
                np.repeat(np.arange(1, len(pairs) + 1), pairs), size
            )
        row["labels"] = row["target"]
        row["target"] = np.roll(row["labels"], 1)
        row["target"][starts] = self.meta["bos_id"]
        row["target"][row["target_segment_ids"] == 0] = 0
        return row


def packed_pairs(
    source, data, tokenizer: tokenizers.Pair, source_length: int, target_length: int, split: str
) -> PackedPairs:
    """Tokenises, packs and stores the pairs of a split, or opens the store if it has been built."""
    key = {
        "text": source.fingerprint(),
        "tokenizer": tokenizer.fingerprint(),
        "lengths": [source_length, target_length],
        "seed": data.seed,
    }
    vocab_size = max(tokenizer.source.vocab_size, tokenizer.target.vocab_size)

    def fill(writer: store.Writer) -> dict:
        sides, lengths, skipped = _tokenised(source, tokenizer, source_length, target_length, split)
        if not len(lengths[0]):
            raise UserError(
                f"config.data.{split}_*: no pair is left after dropping {skipped['empty']} empty "
                f"and {skipped['long']} over-long ones (config.task.source_length={source_length}, target_length={target_length})"
            )
        rows = packing.plan(*lengths, source_length, target_length, data.seed)
        starts = [np.cumsum(n) - n for n in lengths]
        offsets = [0]
        for row in track(rows, f"writing {split} rows", len(rows)):
            for pair in row:
                for side in (0, 1):
                    start, size = starts[side][pair], lengths[side][pair]
                    writer.append(sides[side][start : start + size])
                    offsets.append(offsets[-1] + size)
        writer.array("offsets", np.array(offsets))
        writer.array("rows", np.cumsum([0, *map(len, rows)]))
        return {
            "pairs": len(lengths[0]),
            "skipped": skipped,
            "bos_id": tokenizer.target.bos_id,
            "padding": 1 - float(lengths[1].sum()) / (len(rows) * target_length),
        }

    stored = store.build(data.cache, f"pairs-{split}", key, vocab_size, fill, data.rebuild)
    found = PackedPairs(stored, source_length, target_length)
    skipped = found.meta["skipped"]
    dropped = "".join(
        f", dropped {skipped[k]:,} {what}"
        for k, what in (("long", "over-long"), ("empty", "empty"))
        if skipped[k]
    )
    say(
        f"{split}: {found.meta['pairs']:,} pairs in {len(found):,} rows, {found.meta['padding']:.1%} of target positions are padding{dropped}"
    )
    return found


def _tokenised(source, tokenizer, source_length, target_length, split):
    """Flat tokens of both sides, lengths of both sides (end token included), and what was skipped."""
    sides, lengths, skipped = ([], []), ([], []), {"long": 0, "empty": 0}
    tokenizers_, pairs = (
        (tokenizer.source, tokenizer.target),
        iter(track(source, f"tokenising {split}")),
    )
    while block := list(itertools.islice(pairs, _BLOCK)):
        encoded = list(zip(*(t.encode(list(texts)) for t, texts in zip(tokenizers_, zip(*block)))))
        some = [both for both in encoded if all(both)]
        kept = [
            both for both in some if len(both[0]) < source_length and len(both[1]) < target_length
        ]
        skipped["empty"] += len(encoded) - len(some)
        skipped["long"] += len(some) - len(kept)
        for s, t in enumerate(tokenizers_):
            ended = [both[s] + [t.eos_id] for both in kept]
            sides[s].append(np.fromiter(itertools.chain.from_iterable(ended), np.uint32))
            lengths[s].append(np.array([len(ids) for ids in ended], np.int64))
    return tuple(
        tuple(np.concatenate(parts) if parts else np.zeros(0, np.int64) for parts in both)
        for both in (sides, lengths)
    ) + (skipped,)


def padded(values: np.ndarray, size: int) -> np.ndarray:
    """int32 (size,): the values, then zeros."""
    out = np.zeros(size, np.int32)
    out[: len(values)] = values
    return out
