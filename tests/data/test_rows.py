"""The order of training rows, and the rows of evaluations."""

import dataclasses
import math

import numpy as np
import pytest

from transformer_jax.config import UserError
from transformer_jax.data import rows


@dataclasses.dataclass(frozen=True)
class Numbered:
    """Rows that hold their number and epoch."""

    size: int

    def __len__(self):
        return self.size

    def rows(self, numbers):
        return [
            {"number": np.array(number), "epoch": np.array(epoch), "one": np.ones(2)}
            for number, epoch in numbers
        ]


def numbers(train, steps, batch):
    """Returns (row number, epoch) of whole batches, in order."""
    return [
        (number, epoch) for step in steps for _, number, epoch in train.numbers(step, range(batch))
    ]


@pytest.mark.parametrize("size, batch", [(1, 3), (7, 3), (10, 5), (5, 12), (257, 16)])
def test_every_epoch_is_a_permutation_and_batches_straddle_epochs(size, batch):
    train = rows.TrainRows([rows.Phase([Numbered(size)], batch)], seed=3)
    drawn = numbers(train, range(4 * size // batch + 1), batch)
    assert [epoch for _, epoch in drawn] == [index // size for index in range(len(drawn))]
    for epoch in range(4):
        assert sorted(number for number, _ in drawn[epoch * size : (epoch + 1) * size]) == list(
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


def test_a_batch_does_not_depend_on_earlier_batches_nor_on_how_its_rows_are_split():
    train = rows.TrainRows([rows.Phase([Numbered(10)], 4)], seed=0)
    straight = {step: train.batch(step, range(4)) for step in range(8)}
    for step in (5, 0, 7, 2, 5):
        again = rows.TrainRows([rows.Phase([Numbered(10)], 4)], seed=0).batch(step, range(4))
        for indices in ([0, 1, 2, 3], [2], [3, 0], np.array([1, 2])):
            part = train.batch(step, indices)
            for name, values in straight[step].items():
                np.testing.assert_array_equal(part[name], values[np.asarray(indices)])
                np.testing.assert_array_equal(again[name], values)
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
    for drawn, size in ((first, 6), (second, 9)):
        for epoch in (0, 1):
            assert sorted(number for number, at in drawn if at == epoch) == list(range(size))
    assert [train.until(step) for step in (0, 2, 3, 100)] == [3, 3, math.inf, math.inf]
    same_rows = rows.TrainRows(
        [rows.Phase([Numbered(9)], 3, num_steps=6), rows.Phase([Numbered(9)], 3)], seed=0
    )
    assert numbers(same_rows, range(6), 3) != numbers(same_rows, range(6, 12), 3)


@pytest.mark.full
def test_a_mixture_keeps_its_weights_in_every_turn_of_the_table_and_each_component_its_epochs():
    weights, sizes = (60, 22, 8, 8, 3), (50, 7, 9, 200, 4)  # the weights of GPT-3's table 2.2
    train = rows.TrainRows(
        [rows.Phase([Numbered(size) for size in sizes], 13, weights=weights)], seed=1
    )
    drawn = [number for step in range(202) for number in train.numbers(step, range(13))]
    for turn in range(26):
        components = [component for component, _, _ in drawn[101 * turn : 101 * (turn + 1)]]
        assert [components.count(k) for k in range(5)] == list(weights)
    assert [components[:51].count(k) for k in range(5)] == pytest.approx(
        [w * 51 / 101 for w in weights], abs=1
    )
    for component, size in enumerate(sizes):
        of_component = [(number, epoch) for k, number, epoch in drawn if k == component]
        assert [epoch for _, epoch in of_component] == [
            index // size for index in range(len(of_component))
        ]
        for epoch in range(len(of_component) // size):
            assert sorted(number for number, at in of_component if at == epoch) == list(range(size))
    whole, part = train.batch(7, range(13)), train.batch(7, [12, 3, 5])
    assert (whole["number"][[12, 3, 5]] == part["number"]).all()


def test_components_take_turns_by_their_weights():
    """Each has its share of the updates, in its own epochs, and the last one goes on after them."""
    weights, sizes = (2, 1, 3), (5, 40, 7)
    phase = rows.Phase(
        [Numbered(size) for size in sizes], 4, weights=weights, first_batch=2, ramp_steps=6,
        turn_steps=30,
    )  # fmt: skip
    train = rows.TrainRows([phase], seed=1)
    drawn = [
        number for step in range(40) for number in train.numbers(step, range(train.size(step)))
    ]
    total = phase.rows_before(30)
    turns = [total * start // 6 for start in (0, 2, 3)] + [len(drawn)]
    for component, size in enumerate(sizes):
        own = drawn[turns[component] : turns[component + 1]]
        assert {each for each, _, _ in own} == {component}
        assert [epoch for _, _, epoch in own] == [index // size for index in range(len(own))]
    for step in (0, 3, 12, 30, 40):
        counts = [0, 0, 0]
        for component, _, _ in drawn[: phase.rows_before(step)]:
            counts[component] += 1
        read = [count / size for count, size in zip(counts, sizes)]
        assert phase.epochs_before(step) == pytest.approx(read)


def test_epochs_of_a_mixture_are_those_of_gpt_3():
    """300 billion tokens, by the weights and sizes of table 2.2 of Brown et al. 2020.

    The printed numbers differ, because the weights are rounded and add up to 101 %.
    """
    billions, weights = (410, 19, 12, 55, 3), (60, 22, 8, 8, 3)
    phase = rows.Phase([Numbered(1000 * size) for size in billions], 300, weights=weights)
    epochs = phase.epochs_before(1000)
    assert epochs == pytest.approx([0.44, 3.44, 1.98, 0.43, 2.97], abs=0.01)
    assert epochs == pytest.approx([0.44, 2.9, 1.9, 0.43, 3.4], rel=0.2)
    drawn = rows.TrainRows([phase], seed=1).numbers(999, range(300))
    assert {epoch for component, _, epoch in drawn if component == 1} == {3}


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
        number for step in range(30) for number in train.numbers(step, range(train.size(step)))
    ]
    assert [epoch for _, _, epoch in positions] == [index // 10 for index in range(len(positions))]


def test_there_is_nothing_after_the_last_phase():
    train = rows.TrainRows([rows.Phase([Numbered(6)], 4, num_steps=3)], seed=0)
    with pytest.raises(IndexError, match="update"):
        train.batch(3, [0])


@pytest.mark.parametrize("size, batch", [(1, 4), (7, 3), (6, 3), (3, 8)])
def test_evaluation_sees_every_row_once_in_order_and_pads_with_zeros(size, batch):
    evaluation = rows.EvalRows(Numbered(size))
    assert evaluation.num_batches(batch) == -(-size // batch)
    batches = [
        evaluation.batch(step, range(batch), batch) for step in range(evaluation.num_batches(batch))
    ]
    together = {name: np.concatenate([b[name] for b in batches]) for name in batches[0]}
    assert together["number"][:size].tolist() == list(range(size))
    assert together["one"].tolist() == [[1, 1]] * size + [[0, 0]] * (len(batches) * batch - size)
    assert not together["number"][size:].any()


@pytest.mark.parametrize("indices", [[0], [2], [3], [1, 3], [3, 1, 2, 0], [2, 3]])
def test_evaluation_batches_may_be_read_in_parts(indices):
    evaluation = rows.EvalRows(Numbered(6))  # the second batch of 4 has indices 0 and 1 filled
    whole, part = evaluation.batch(1, range(4), 4), evaluation.batch(1, indices, 4)
    for name in whole:
        np.testing.assert_array_equal(part[name], whole[name][indices])


@dataclasses.dataclass(frozen=True)
class Continued(Numbered):
    """Rows that say where a state begins anew: nowhere by themselves."""

    def rows(self, numbers):
        return [row | {"restarts": np.zeros(2, np.int32)} for row in super().rows(numbers)]


@pytest.mark.parametrize("size, batch", [(12, 4), (14, 4), (5, 5), (9, 1)])
def test_a_phase_in_streams_reads_consecutive_rows_in_each_stream(size, batch):
    train = rows.TrainRows([rows.Phase([Continued(size)], batch, order="stream")], seed=0)
    num_segments = size // batch
    for step in range(2 * num_segments + 1):
        read = train.batch(step, range(batch))
        epoch, segment = divmod(step, num_segments)
        assert read["number"].tolist() == [j * num_segments + segment for j in range(batch)]
        assert set(read["epoch"].tolist()) == {epoch}
        assert read["restarts"].tolist() == [[int(segment == 0), 0]] * batch
        part = train.batch(step, [batch - 1])
        assert part["number"] == read["number"][-1]


def test_a_phase_in_streams_needs_a_row_for_each_stream():
    with pytest.raises(UserError, match="config.train.batch=4: the text has 3 rows, too few"):
        rows.Phase([Numbered(3)], 4, order="stream")


@pytest.mark.parametrize("size, batch", [(10, 4), (3, 8), (8, 1), (9, 3)])
def test_an_evaluation_in_streams_reads_every_row_once_in_order(size, batch):
    evaluated = rows.EvalRows(Numbered(size), order="stream")
    read = [
        evaluated.batch(step, range(batch), batch) for step in range(evaluated.num_batches(batch))
    ]
    streams = np.stack([part["number"] for part in read], axis=1)
    is_row = np.stack([part["one"][:, 0] for part in read], axis=1) == 1
    assert streams[is_row].tolist() == list(range(size))
