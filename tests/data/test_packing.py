import numpy as np
import pytest

from transformer_jax.data import packing


def lengths(count, seed=0):
    """Lengths of both sides, similar to those of Multi30k: log-normal with mean 16, correlated."""
    draw = np.random.default_rng(seed)
    source = draw.lognormal(np.log(16) - 0.35**2 / 2, 0.35, count)
    target = source * draw.lognormal(-(0.15**2) / 2, 0.15, count)
    return [np.clip(np.rint(side), 2, 60).astype(np.int64) for side in (source, target)]


@pytest.mark.parametrize("size", [(64, 64), (61, 128), (128, 60)])
def test_every_pair_is_placed_once_and_no_row_overflows(size):
    sides = lengths(1000)
    rows = packing.plan(*sides, *size, key=(0, 0))
    assert sorted(pair for row in rows for pair in row) == list(range(1000))
    for side, limit in zip(sides, size):
        assert max(side[row].sum() for row in rows) <= limit


def test_more_rows_open_than_may_be(monkeypatch):
    monkeypatch.setattr(packing, "_NUM_OPEN", 3)
    sides = lengths(500)
    rows = packing.plan(*sides, 64, 64, key=(0, 0))
    assert sorted(pair for row in rows for pair in row) == list(range(500))
    assert max(side[row].sum() for side in sides for row in rows) <= 64


def test_a_pair_that_fills_a_row_stands_alone():
    assert sorted(packing.plan(np.array([8, 1, 7]), np.array([1, 8, 7]), 8, 8, key=(0, 0))) == [
        [0],
        [1],
        [2],
    ]


def test_the_seed_decides():
    sides = lengths(300)
    first = packing.plan(*sides, 64, 64, key=(1, 0))
    assert packing.plan(*sides, 64, 64, key=(1, 0)) == first
    assert packing.plan(*sides, 64, 64, key=(2, 0)) != first


@pytest.mark.parametrize("size, max_padding", [(128, 0.06), (256, 0.03)])
def test_padding_is_small(size, max_padding):
    source, target = lengths(6000)
    rows = packing.plan(source, target, size, size, key=(0, 0))
    assert 1 - target.sum() / (len(rows) * size) <= max_padding
