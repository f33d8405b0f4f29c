"""Packed translation rows: every pair once, positions, segments, padding."""

import itertools

import numpy as np
import pytest

from transformer_jax.config import UserError, experiment
from transformer_jax.data import packing
from transformer_jax.data.tokenizers import Tokenizer


class Words(Tokenizer):
    """A tokenizer of numbers in words: "5 7" is [5, 7]."""

    pad_id, unk_id, bos_id, eos_id = range(4)
    vocab_size = 100

    def _encode(self, texts):
        return [[int(word) for word in text.split()] for text in texts]


class Both:
    def __init__(self, source=None, target=None):
        self.source = source or Words(b"")
        self.target = target or self.source

    def fingerprint(self):
        return ["words"]


class Listed(list):
    def fingerprint(self):
        return [*self]

    def parts(self):
        return [[*self]]


class Cut(Listed):
    """Pairs in parts of 70."""

    def parts(self):
        return [self[start : start + 70] for start in range(0, len(self), 70)]


def packed(folder, pairs, source_length=16, target_length=12, text=Listed, pair=None, **keys):
    config = experiment(
        model={"name": "encoder_decoder"},
        task={"name": "translation"},
        data={"cache": str(folder / "cache"), **keys},
    )
    return packing.build(
        text(pairs),
        config.data,
        pair or Both(),
        source_length=source_length,
        target_length=target_length,
        split="train",
    )


def made_up(count, longest_source=15, longest_target=11):
    """Returns different pairs of random words."""
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
    """Returns the tokens of each segment."""
    ids = row[("target" if name == "labels" else name) + "_segment_ids"]
    return [row[name][ids == number].tolist() for number in range(1, ids.max() + 1)]


@pytest.fixture(scope="module", params=[Listed, Cut])
def packed_rows(tmp_path_factory, request):
    """200 pairs and their packed rows, of one part and of several."""
    pairs = made_up(200)
    stored = packed(tmp_path_factory.mktemp("packed"), pairs, text=request.param)
    return pairs, stored, stored.rows([(number, 0) for number in range(len(stored))])


def test_every_pair_comes_back_from_the_rows_exactly_once(packed_rows):
    pairs, stored, read = packed_rows
    decoded = []
    for row in read:
        for source, target, labels in zip(
            segments(row, "source"), segments(row, "target"), segments(row, "labels"), strict=True
        ):
            assert source[-1] == labels[-1] == Words.eos_id
            assert target == [Words.bos_id, *labels[:-1]]
            decoded.append((" ".join(map(str, source[:-1])), " ".join(map(str, labels[:-1]))))
    assert sorted(decoded) == sorted(pairs)
    assert len(stored) < len(pairs) / 1.2  # packed at all
    assert stored.meta["pairs"] == len(pairs) and stored.meta["skipped"] == {"long": 0, "empty": 0}


def test_positions_segments_and_padding(packed_rows):
    _, stored, read = packed_rows
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
    assert padding == pytest.approx(stored.meta["padding"])


def test_rows_are_pure(packed_rows):
    _, stored, read = packed_rows
    for number in (5, 0, len(stored) - 1):
        (row,) = stored.rows([(number, 7)])
        for name, values in read[number].items():
            np.testing.assert_array_equal(row[name], values)


def test_any_id_may_end_a_text(tmp_path):
    pairs = [("50 5 3 50", "5 6"), ("7 3", "3 9 7"), ("50", "8")]
    for source_end, target_end, start in ((0, 0, 99), (4, 50, 0), (0, 1, 1)):
        source, target = Words(b""), Words(b"")
        source.eos_id, target.eos_id, target.bos_id = source_end, target_end, start
        rows = packed(tmp_path / f"{source_end} {target_end}", pairs, pair=Both(source, target))
        (row,) = rows.rows([(0, 0)])
        sides = [segments(row, name) for name in ("source", "target", "labels")]
        assert sorted(zip(*sides)) == sorted(
            ([*a, source_end], [start, *b], [*b, target_end])
            for a, b in ([*map(source.encode, pair)] for pair in pairs)
        )


def test_over_long_and_empty_pairs_are_dropped_counted_and_said(tmp_path, capsys):
    def words(count):
        return " ".join(["9"] * count)

    # With the end token, the first pair fills a row.
    fits = [(words(15), words(11)), (words(1), words(1))]
    stored = packed(
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
    assert stored.meta["pairs"] == 2 and stored.meta["skipped"] == {"long": 2, "empty": 3}
    lengths = sorted(
        (len(s), len(t))
        for row in stored.rows([(n, 0) for n in range(len(stored))])
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
    assert not list((tmp_path / "cache").glob("pairs-*/store.json"))


def test_blocks_tokenise_as_one(tmp_path, monkeypatch):
    pairs = made_up(23)

    def read(folder):
        return packed(folder, pairs).rows([(0, 0), (1, 0), (2, 0)])

    whole = read(tmp_path / "a")
    monkeypatch.setattr(packing, "_PAIRS_PER_BLOCK", 5)
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


class OneRow:
    """A packed row with a source of two tokens and a target of three, in rooms for four."""

    row = {
        "source": np.array([5, 6, 0, 0]),
        "labels": np.array([7, 8, 9, 0]),
        "target_segment_ids": np.array([1, 1, 1, 0]),
    }

    def __len__(self):
        return 1

    def rows(self, numbers):
        return [self.row for _ in numbers]


def test_targets_are_masked_among_their_tokens_alone():
    given = []

    def mask(tokens, random):
        given.append((tokens.tolist(), random.integers(1000)))
        return {"tokens": [4, *tokens[1:]], "masked_positions": [0], "masked_labels": tokens[:1]}

    rows = packing.MaskedTargets(OneRow(), mask, (0, 1, 2)).rows([(0, 0), (1, 0)])
    assert len(rows) == 2
    for row in rows:
        assert row["target"].tolist() == [4, 8, 9, 0]
        assert row["labels"].tolist() == [7, 8, 9, 0]
        assert row["source"].tolist() == [5, 6, 0, 0]
        assert list(row["masked_labels"]) == [7]
    # The padding is not offered, and each epoch draws anew.
    assert [tokens for tokens, _ in given] == [[7, 8, 9]] * 2
    assert given[0][1] != given[1][1]
