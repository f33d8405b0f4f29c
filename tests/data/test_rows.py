import dataclasses
import itertools
import math

import numpy as np
import pytest

from transformer_jax.config import UserError, experiment
from transformer_jax.data import packed_pairs, rows


@dataclasses.dataclass(frozen=True)
class Numbered:
    """Rows that hold their own number and epoch."""

    size: int

    def __len__(self):
        return self.size

    def rows(self, numbers):
        return [
            {"number": np.array(number), "epoch": np.array(epoch), "one": np.ones(2)}
            for number, epoch in numbers
        ]


def numbers(train, steps, batch):
    """(row number, epoch) of whole batches, in order."""
    return [
        (number, epoch) for step in steps for _, number, epoch in train.numbers(step, range(batch))
    ]


# the order of training rows


@pytest.mark.parametrize("size, batch", [(1, 3), (7, 3), (10, 5), (5, 12), (257, 16)])
def test_every_epoch_is_a_permutation_and_batches_straddle_epochs(size, batch):
    train = rows.TrainRows([rows.Phase([Numbered(size)], batch)], seed=3)
    asked = numbers(train, range(4 * size // batch + 1), batch)
    assert [epoch for _, epoch in asked] == [place // size for place in range(len(asked))]
    for epoch in range(4):
        assert sorted(number for number, _ in asked[epoch * size : (epoch + 1) * size]) == list(
            range(size)
        )


def test_epochs_and_seeds_differ():
    def order(seed):
        train = rows.TrainRows([rows.Phase([Numbered(100)], 100)], seed)
        return [number for number, _ in numbers(train, range(3), 100)]

    first, second, third = (order(0)[100 * epoch : 100 * (epoch + 1)] for epoch in range(3))
    assert first != second != third != first
    assert first != list(range(100))
    assert order(0) == order(0) != order(1)


def test_a_batch_does_not_depend_on_what_was_asked_before_nor_on_how_its_places_are_split():
    train = rows.TrainRows([rows.Phase([Numbered(10)], 4)], seed=0)
    straight = {step: train.batch(step, range(4)) for step in range(8)}
    for step in (5, 0, 7, 2, 5):
        again = rows.TrainRows([rows.Phase([Numbered(10)], 4)], seed=0).batch(step, range(4))
        for places in ([0, 1, 2, 3], [2], [3, 0], np.array([1, 2])):
            part = train.batch(step, places)
            for name, whole in straight[step].items():
                np.testing.assert_array_equal(part[name], whole[np.asarray(places)])
                np.testing.assert_array_equal(again[name], whole)
    assert straight[0]["one"].shape == (4, 2)


def test_phases_follow_each_other_and_begin_anew():
    train = rows.TrainRows(
        [rows.Phase([Numbered(6)], 4, num_steps=3), rows.Phase([Numbered(9)], 3)], seed=0
    )
    assert [train.phase(step) for step in (0, 2, 3, 4, 100)] == [
        (0, 0),
        (0, 2),
        (1, 0),
        (1, 1),
        (1, 97),
    ]
    first, second = numbers(train, range(3), 4), numbers(train, range(3, 9), 3)
    assert [epoch for _, epoch in first] == [0] * 6 + [1] * 6
    assert [epoch for _, epoch in second] == [0] * 9 + [1] * 9
    for asked, size in ((first, 6), (second, 9)):
        for epoch in (0, 1):
            assert sorted(number for number, at in asked if at == epoch) == list(range(size))
    assert [train.until(step) for step in (0, 2, 3, 100)] == [3, 3, math.inf, math.inf]
    same_rows = rows.TrainRows(
        [rows.Phase([Numbered(9)], 3, num_steps=6), rows.Phase([Numbered(9)], 3)], seed=0
    )
    assert numbers(same_rows, range(6), 3) != numbers(same_rows, range(6, 12), 3)


def test_a_mixture_keeps_its_weights_in_every_turn_of_the_table_and_each_component_its_epochs():
    weights, sizes = (60, 22, 8, 8, 3), (50, 7, 9, 200, 4)  # the weights of GPT-3's table 2.2
    train = rows.TrainRows(
        [rows.Phase([Numbered(size) for size in sizes], 13, weights=weights)], seed=1
    )
    asked = [found for step in range(202) for found in train.numbers(step, range(13))]
    for turn in range(26):
        components = [component for component, _, _ in asked[101 * turn : 101 * (turn + 1)]]
        assert [components.count(k) for k in range(5)] == list(weights)
    assert [components[:51].count(k) for k in range(5)] == pytest.approx(
        [w * 51 / 101 for w in weights], abs=1
    )
    for component, size in enumerate(sizes):
        own = [(number, epoch) for k, number, epoch in asked if k == component]
        assert [epoch for _, epoch in own] == [place // size for place in range(len(own))]
        for epoch in range(len(own) // size):
            assert sorted(number for number, at in own if at == epoch) == list(range(size))
    whole, part = train.batch(7, range(13)), train.batch(7, [12, 3, 5])
    assert (whole["number"][[12, 3, 5]] == part["number"]).all()


def test_a_growing_batch_counts_its_rows_in_closed_form():
    phase = rows.Phase([Numbered(10)], 50, first_batch=4, ramp_steps=20)
    sizes = [phase.size(step) for step in range(30)]
    assert (
        sizes[0] == 4
        and sizes[20:] == [50] * 10
        and sizes == sorted(sizes)
        and 5 < len(set(sizes)) <= 9
    )
    assert all(size % 4 == 0 for size in sizes[:20])
    assert [phase.rows_before(step) for step in range(31)] == [
        sum(sizes[:step]) for step in range(31)
    ]
    train = rows.TrainRows([phase], seed=0)
    assert (
        all(sizes[step] == sizes[s] for step in range(20) for s in range(step, train.until(step)))
        and train.until(20) == math.inf
    )
    positions = [
        found for step in range(30) for found in train.numbers(step, range(train.size(step)))
    ]
    assert [epoch for _, _, epoch in positions] == [place // 10 for place in range(len(positions))]


def test_there_is_nothing_after_the_last_phase():
    train = rows.TrainRows([rows.Phase([Numbered(6)], 4, num_steps=3)], seed=0)
    with pytest.raises(IndexError, match="update"):
        train.batch(3, [0])


# evaluation rows


@pytest.mark.parametrize("size, batch", [(1, 4), (7, 3), (6, 3), (3, 8)])
def test_evaluation_sees_every_row_once_in_order_and_pads_with_zeros(size, batch):
    found = rows.EvalRows(Numbered(size))
    assert found.num_batches(batch) == -(-size // batch)
    batches = [found.batch(step, range(batch), batch) for step in range(found.num_batches(batch))]
    together = {name: np.concatenate([b[name] for b in batches]) for name in batches[0]}
    assert together["number"][:size].tolist() == list(range(size))
    assert together["one"].tolist() == [[1, 1]] * size + [[0, 0]] * (len(batches) * batch - size)
    assert not together["number"][size:].any()


@pytest.mark.parametrize("places", [[0], [2], [3], [1, 3], [3, 1, 2, 0], [2, 3]])
def test_evaluation_batches_may_be_read_in_parts(places):
    found = rows.EvalRows(Numbered(6))  # the second batch of 4 has places 0 and 1 filled
    whole, part = found.batch(1, range(4), 4), found.batch(1, places, 4)
    for name in whole:
        np.testing.assert_array_equal(part[name], whole[name][places])


# packed pairs


class Words:
    """A tokenizer of numbers in words: "5 7" is [5, 7]."""

    pad_id, unk_id, bos_id, eos_id = range(4)
    vocab_size = 100

    def encode(self, texts):
        return [[int(word) for word in text.split()] for text in texts]


class Both:
    source = target = Words()

    def fingerprint(self):
        return ["words"]


class Listed(list):
    def fingerprint(self):
        return [*self]


def packed(folder, pairs, source_length=16, target_length=12, **keys):
    config = experiment(
        model={"name": "encoder_decoder"},
        task={"name": "translation"},
        data={"cache": str(folder / "cache"), **keys},
    )
    return packed_pairs.build(
        Listed(pairs),
        config.data,
        Both(),
        source_length=source_length,
        target_length=target_length,
        split="train",
    )


def made_up(count, longest_source=15, longest_target=11):
    """Pairs of random words, no two alike."""
    draw = np.random.default_rng(0)

    def words(longest):
        return draw.integers(4, 100, draw.integers(1, longest + 1)).tolist()

    return [
        (
            " ".join(map(str, [4 + i % 96, 4 + i // 96, *words(longest_source - 2)])),
            " ".join(map(str, words(longest_target))),
        )
        for i in range(count)
    ]


def segments(row, name):
    """The tokens of each segment, told apart by the ids."""
    ids = row[("target" if name == "labels" else name) + "_segment_ids"]
    return [row[name][ids == number].tolist() for number in range(1, ids.max() + 1)]


@pytest.fixture(scope="module")
def some(tmp_path_factory):
    """200 pairs, the packed rows of them."""
    pairs = made_up(200)
    found = packed(tmp_path_factory.mktemp("packed"), pairs)
    return pairs, found, found.rows([(number, 0) for number in range(len(found))])


def test_every_pair_comes_back_from_the_rows_exactly_once(some):
    pairs, found, read = some
    decoded = []
    for row in read:
        for source, target, labels in zip(
            segments(row, "source"), segments(row, "target"), segments(row, "labels"), strict=True
        ):
            assert source[-1] == labels[-1] == Words.eos_id
            assert target == [Words.bos_id, *labels[:-1]]
            decoded.append((" ".join(map(str, source[:-1])), " ".join(map(str, labels[:-1]))))
    assert sorted(decoded) == sorted(pairs)
    assert len(found) < len(pairs) / 1.2  # packed at all
    assert found.meta["pairs"] == len(pairs) and found.meta["skipped"] == {"long": 0, "empty": 0}


def test_positions_segments_and_padding(some):
    _, found, read = some
    for row, (side, size) in itertools.product(read, (("source", 16), ("target", 12))):
        tokens, positions, ids = (
            row[side + ending] for ending in ("", "_positions", "_segment_ids")
        )
        assert all(
            values.dtype == np.int32 and values.shape == (size,)
            for values in (tokens, positions, ids)
        )
        filled = np.count_nonzero(ids)
        assert (
            ids[:filled].all() and set(np.diff(ids[:filled], prepend=0)) <= {0, 1} and ids[0] == 1
        )
        starts = np.flatnonzero(np.diff(ids[:filled], prepend=0))
        expected = np.concatenate([np.arange(size) for size in np.diff([*starts, filled])])
        np.testing.assert_array_equal(positions[:filled], expected)
        for values in (tokens, positions, ids, *([row["labels"]] if side == "target" else [])):
            assert not values[filled:].any()
    padding = np.mean([row["target_segment_ids"] == 0 for row in read])
    assert padding == pytest.approx(found.meta["padding"])


def test_rows_are_pure(some):
    _, found, read = some
    for number in (5, 0, len(found) - 1):
        (row,) = found.rows([(number, 7)])
        for name, values in read[number].items():
            np.testing.assert_array_equal(row[name], values)


def test_over_long_and_empty_pairs_are_dropped_counted_and_said(tmp_path, capsys):
    def words(count):
        return " ".join(["9"] * count)

    # with the end token just as long as a row
    fits = [(words(15), words(11)), (words(1), words(1))]
    found = packed(
        tmp_path,
        [
            *fits,
            (words(16), words(1)),
            (words(1), words(12)),
            ("", words(2)),
            (words(2), ""),
            ("", words(99)),
        ],
    )
    assert found.meta["pairs"] == 2 and found.meta["skipped"] == {"long": 2, "empty": 3}
    lengths = sorted(
        (len(s), len(t))
        for row in found.rows([(n, 0) for n in range(len(found))])
        for s, t in zip(segments(row, "source"), segments(row, "labels"))
    )
    assert lengths == [(2, 2), (16, 12)]
    said = " ".join(capsys.readouterr().err.split())
    assert (
        "train: 2 pairs in 2 rows" in said
        and said.count("dropped 2 over-long, dropped 3 empty") == 1
    )


def test_nothing_left_is_refused_and_leaves_no_store(tmp_path):
    with pytest.raises(UserError, match="no pair is left after dropping 1 empty and 1 over-long"):
        packed(tmp_path, [("", "5"), ("5 " * 16, "5")])
    assert not list((tmp_path / "cache").glob("pairs-*"))


def test_blocks_tokenise_as_one(tmp_path, monkeypatch):
    pairs = made_up(23)

    def read(folder):
        return packed(folder, pairs).rows([(0, 0), (1, 0), (2, 0)])

    whole = read(tmp_path / "a")
    monkeypatch.setattr(packed_pairs, "_PAIRS_PER_BLOCK", 5)
    for row, other in zip(whole, read(tmp_path / "b")):
        for name in row:
            np.testing.assert_array_equal(row[name], other[name])


def test_the_store_depends_on_text_lengths_and_seed_and_is_found_again(tmp_path):
    pairs = made_up(20)
    path = packed(tmp_path, pairs).store.path
    built = path.stat().st_mtime_ns
    assert packed(tmp_path, pairs).store.path == path and path.stat().st_mtime_ns == built
    others = [
        packed(tmp_path, pairs[1:]),
        packed(tmp_path, pairs, source_length=20),
        packed(tmp_path, pairs, target_length=20),
        packed(tmp_path, pairs, seed=1),
    ]
    assert len({path, *(other.store.path for other in others)}) == 5
    packed(tmp_path, pairs, rebuild=True)
    assert path.stat().st_mtime_ns > built
