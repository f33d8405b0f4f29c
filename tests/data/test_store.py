import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from transformer_jax.config import UserError
from transformer_jax.data import store

ROOT = pathlib.Path(__file__).parents[2]
TOKENS = np.arange(150) * 7 % 97
OFFSETS = np.array([0, 5, 30, 100, 150])


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(store, "_SHARD", 64)
    monkeypatch.setattr(store, "_CHUNK", 16)


def fill(writer):
    for start, stop in zip(OFFSETS, OFFSETS[1:]):
        writer.append(TOKENS[start:stop])
    writer.array("offsets", OFFSETS)
    return {"note": "größer"}


def build(cache, key="k", vocab_size=97, fill=fill, rebuild=False):
    return store.build(str(cache), "pairs", {"key": key}, vocab_size, fill, rebuild)


def visible(cache):
    return sorted(p.name for p in cache.iterdir() if not p.name.startswith("."))


def halves(cache):
    return list(cache.glob(".*.building"))


def start(cache, code):
    """A process that runs `code` after the small shards, TOKENS and `cache` are set up."""
    setup = f"""
        import os, sys, time
        import numpy as np
        from transformer_jax.data import store
        store._SHARD, store._CHUNK = 64, 16
        TOKENS, cache = np.array({TOKENS.tolist()}), {str(cache)!r}
        """
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(setup) + textwrap.dedent(code)], cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_round_trip_over_several_shards(tmp_path):
    stored = build(tmp_path)
    assert len(list((stored.path / "tokens" / "c").iterdir())) == 3  # 150 tokens in shards of 64
    for opened in (stored, store.Store(stored.path)):
        assert opened.meta == {"note": "größer"}
        np.testing.assert_array_equal(opened.array("offsets"), OFFSETS)
        spans = [(0, 150), (0, 0), (63, 65), (149, 150), (10, 140), (64, 128)]
        for (begin, end), read in zip(spans, opened.read(spans), strict=True):
            np.testing.assert_array_equal(read, TOKENS[begin:end])


@pytest.mark.parametrize("size", [0, 63, 64, 65, 128, 129])
def test_sizes_about_the_edges_of_a_shard(tmp_path, size):
    stored = build(tmp_path, fill=lambda writer: writer.append(TOKENS[:size]) or {})
    np.testing.assert_array_equal(stored.read([(0, size)])[0], TOKENS[:size])


@pytest.mark.parametrize("vocab_size, dtype", [(2**16, np.uint16), (2**16 + 1, np.uint32)])
def test_tokens_are_as_narrow_as_the_vocabulary_allows(tmp_path, vocab_size, dtype):
    last = np.array([0, vocab_size - 1])
    read, = build(tmp_path, vocab_size=vocab_size, fill=lambda writer: writer.append(last) or {}).read([(0, 2)])
    assert read.dtype == dtype
    np.testing.assert_array_equal(read, last)


def test_the_key_decides_the_folder_and_a_store_is_built_once(tmp_path):
    def refuse(writer):
        raise AssertionError("built twice")

    first = build(tmp_path)
    assert build(tmp_path, fill=refuse).path == first.path
    assert build(tmp_path, key="other").path != first.path
    assert len(visible(tmp_path)) == 2


def test_a_failed_build_leaves_no_store(tmp_path):
    def fail(writer):
        fill(writer)
        raise UserError("no text")

    with pytest.raises(UserError, match="no text"):
        build(tmp_path, fill=fail)
    assert visible(tmp_path) == []
    np.testing.assert_array_equal(build(tmp_path).read([(0, 150)])[0], TOKENS)


def test_a_build_killed_in_the_middle_leaves_no_store_and_is_cleared_by_the_next(tmp_path):
    process = start(tmp_path, """
        def fill(writer):
            writer.append(TOKENS)  # two whole shards are written at once
            print("written", flush=True)
            time.sleep(60)
        store.build(cache, "pairs", {"key": "k"}, 97, fill)
        """)
    assert process.stdout.readline() == "written\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    half, = halves(tmp_path)
    assert len(list((half / "tokens" / "c").iterdir())) == 2
    assert visible(tmp_path) == []
    with pytest.raises(store.DamagedStore):
        store.Store(half)
    stale = half / "stale"
    stale.touch()

    stored = build(tmp_path)
    np.testing.assert_array_equal(stored.read([(0, 150)])[0], TOKENS)
    assert not halves(tmp_path) and not (stored.path / "stale").exists()


def test_two_processes_that_want_the_same_store_build_it_once(tmp_path):
    code = """
        def fill(writer):
            with open(cache + "/builds", "a") as log:
                log.write("built\\n")
            time.sleep(0.5)  # the other one comes meanwhile
            writer.append(TOKENS)
            return {}
        print("ready", flush=True)
        while not os.path.exists(cache + "/go"):
            time.sleep(0.01)
        print(store.build(cache, "pairs", {"key": "k"}, 97, fill).read([(0, 150)])[0].tolist())
        """
    both = [start(tmp_path, code) for _ in range(2)]
    assert [process.stdout.readline() for process in both] == ["ready\n"] * 2
    (tmp_path / "go").touch()
    assert [json.loads(process.communicate()[0]) for process in both] == [TOKENS.tolist()] * 2
    assert (tmp_path / "builds").read_text() == "built\n"
    assert len([name for name in visible(tmp_path) if name.startswith("pairs-")]) == 1


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "flipped token": lambda path: flip(path / "tokens/c/1", 20),
    "flipped shard index": lambda path: flip(path / "tokens/c/1", -10),
    "flipped offset": lambda path: flip(path / "offsets/c/0", 9),
    "flipped store.json": lambda path: flip(path / "store.json", 40),
    "flipped checksum of store.json": lambda path: flip(path / "store.json", -5),
    "other shape": lambda path: (path / "offsets/zarr.json").write_text((path / "offsets/zarr.json").read_text().replace('"shape":[5]', '"shape":[4]')),
    "truncated shard": lambda path: os.truncate(path / "tokens/c/0", 30),
    "empty store.json": lambda path: os.truncate(path / "store.json", 0),
    "missing shard": lambda path: (path / "tokens/c/2").unlink(),
    "missing zarr.json": lambda path: (path / "tokens/zarr.json").unlink(),
    "missing store.json": lambda path: (path / "store.json").unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_noticed_and_named_and_rebuild_mends_it(tmp_path, damage):
    def read_all(stored):
        return stored.read([(0, 150)])[0], stored.array("offsets")

    path = build(tmp_path).path
    before = sorted(path.rglob("*"))
    DAMAGES[damage](path)
    with pytest.raises(UserError) as caught:
        read_all(build(tmp_path))
    assert isinstance(caught.value, store.DamagedStore)
    assert str(path) in str(caught.value) and "--config.data.rebuild=true" in str(caught.value)

    for stored in (build(tmp_path, rebuild=True), build(tmp_path)):
        tokens, offsets = read_all(stored)
        np.testing.assert_array_equal(tokens, TOKENS)
        np.testing.assert_array_equal(offsets, OFFSETS)
    assert sorted(path.rglob("*")) == before
