"""Token stores: round trips, sizes, one build for equal keys, buckets."""

import json
import pathlib

import numpy as np
import pytest

from tests.data.stores import OFFSETS, TOKENS, build, contents, fill, refuse, start
from transformer_jax.config import UserError
from transformer_jax.data import store

pytestmark = pytest.mark.usefixtures("small_shards")


def visible(cache):
    return sorted(p.name for p in cache.iterdir() if not p.name.startswith("."))


@pytest.mark.parametrize(
    "where",
    [
        "{}",
        "file://{}",
        "{}/with space/größer",
        "memory://{}",
        "gs://bucket",
        "gs://bucket/some/prefix/",
    ],
)
def test_round_trip_over_several_shards(tmp_path, gcs, where):
    stored = build(where.format(tmp_path))
    if isinstance(stored.path, pathlib.Path):
        # 150 tokens in shards of 64
        assert len(list((stored.path / "00000" / "tokens" / "c").iterdir())) == 3
    for opened in (stored, store.Store(stored.path)):
        assert opened.meta["note"] == "größer"
        np.testing.assert_array_equal(opened.array("offsets"), OFFSETS)
        spans = [(0, 150), (0, 0), (63, 65), (149, 150), (10, 140), (64, 128)]
        for (begin, end), read in zip(spans, opened.read(spans), strict=True):
            np.testing.assert_array_equal(read, TOKENS[begin:end])


def test_spans_cross_parts_and_empty_parts(tmp_path):
    sizes = [70, 0, 1, 0, 130, 0]

    def fill(writer, part):
        first = sum(sizes[:part])
        writer.append(np.arange(first, first + sizes[part]))
        writer.array("part", np.full(sizes[part], part, np.uint8))
        return {}

    stored = build(tmp_path, fill=fill, parts=range(6))
    spans = [(0, 201), (69, 71), (70, 71), (71, 71), (70, 201), (201, 201), (0, 0), (200, 201)]
    for (begin, end), read in zip(spans, stored.read(spans), strict=True):
        np.testing.assert_array_equal(read, np.arange(begin, end))
    np.testing.assert_array_equal(stored.array("part"), np.repeat(range(6), sizes))
    assert stored.array("part").dtype == np.uint8


@pytest.mark.parametrize("size", [0, 63, 64, 65, 128, 129])
def test_sizes_about_the_edges_of_a_shard(tmp_path, size):
    stored = build(tmp_path, fill=lambda writer, part: writer.append(TOKENS[:size]) or {})
    np.testing.assert_array_equal(stored.read([(0, size)])[0], TOKENS[:size])


@pytest.mark.parametrize("vocab_size, dtype", [(2**16, np.uint16), (2**16 + 1, np.uint32)])
def test_tokens_are_as_narrow_as_the_vocabulary_allows(tmp_path, vocab_size, dtype):
    last = np.array([0, vocab_size - 1])
    (read,) = build(
        tmp_path, vocab_size=vocab_size, fill=lambda writer, part: writer.append(last) or {}
    ).read([(0, 2)])
    assert read.dtype == dtype
    np.testing.assert_array_equal(read, last)


def test_the_key_decides_the_folder_and_a_store_is_built_once(cache):
    first = build(cache)
    assert build(cache, fill=refuse).path == first.path
    assert build(cache, key="other").path != first.path


def test_a_failed_build_leaves_no_store_and_is_cleared_by_the_next(tmp_path):
    def fail(writer, part):
        fill(writer, part)
        writer.array("more", OFFSETS)
        raise UserError("no text")

    reference = build(tmp_path / "whole").path
    with pytest.raises(UserError, match="no text"):
        build(tmp_path, fill=fail)
    (half,) = tmp_path.glob("pairs-*")
    assert contents(half) and not (half / "store.json").exists()
    with pytest.raises(store.DamagedStore):
        store.Store(half)
    assert contents(build(tmp_path).path) == contents(reference)


def test_two_processes_that_want_the_same_store_build_it_once(tmp_path):
    code = """
        def fill(writer, part):
            with open(cache + "/builds", "a") as log:
                log.write("built\\n")
            time.sleep(0.5)  # the other one comes meanwhile
            writer.append(TOKENS)
            return {}
        print("ready", flush=True)
        while not os.path.exists(cache + "/go"):
            time.sleep(0.01)
        content = store.Content(lambda: [0], fill, lambda parts: {}, "pairs")
        print(store.build(cache, "pairs", {"key": "k"}, 97, content).read([(0, 150)])[0].tolist())
        """
    both = [start(tmp_path, code) for _ in range(2)]
    assert [process.stdout.readline() for process in both] == ["ready\n"] * 2
    (tmp_path / "go").touch()
    assert [json.loads(process.communicate()[0]) for process in both] == [TOKENS.tolist()] * 2
    assert (tmp_path / "builds").read_text() == "built\n"
    assert len([name for name in visible(tmp_path) if name.startswith("pairs-")]) == 1


def test_a_forbidden_bucket_costs_one_line(gcs):
    gcs.forbidden = True
    with pytest.raises(
        UserError, match="^gs://bucket/cache/pairs-[0-9a-f]*: PERMISSION_DENIED: no access$"
    ):
        build("gs://bucket/cache", fill=refuse)


def test_a_bucket_that_can_not_be_written_is_known_before_the_work(gcs):
    gcs.writes = 0
    with pytest.raises(UserError, match="no access"):
        build("gs://bucket/cache", fill=refuse)


def test_a_bucket_that_does_not_answer_costs_one_line(monkeypatch):
    monkeypatch.setattr(store, "_TIMEOUT", 0.2)
    monkeypatch.setenv("TENSORSTORE_GCS_HTTP_URL", "http://127.0.0.1:9")
    with pytest.raises(UserError, match="^gs://elsewhere/pairs-[0-9a-f]*: no answer within"):
        build("gs://elsewhere", fill=refuse)


@pytest.mark.parametrize("cache", ["what://bucket/a", "gs://B"])
def test_a_wrong_address_costs_one_line(cache):
    with pytest.raises(UserError, match=f"^{cache}/pairs"):
        build(cache, fill=refuse)


def test_a_folder_that_can_not_be_made_costs_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file"):
        build(tmp_path / "file", fill=refuse)
