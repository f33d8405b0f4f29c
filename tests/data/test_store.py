import itertools
import json
import pathlib
import random
import re
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

from transformer_jax.config import UserError
from transformer_jax.data import store
from transformer_jax.data.store import columns, files, tokens

ROOT = pathlib.Path(__file__).parents[2]
TOKENS = np.arange(150) * 7 % 97
OFFSETS = np.array([0, 5, 30, 100, 150])


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(columns, "_SHARD_BYTES", 128)  # 64 tokens
    monkeypatch.setattr(columns, "_CHUNK_BYTES", 32)


@pytest.fixture(params=["disk", "bucket"])
def cache(request, tmp_path):
    if request.param == "bucket":
        request.getfixturevalue("gcs")
    return "gs://bucket/some/cache" if request.param == "bucket" else str(tmp_path)


def fill(writer):
    for start, stop in zip(OFFSETS, OFFSETS[1:]):
        writer.append(TOKENS[start:stop])
    writer.array("offsets", OFFSETS)
    return {"note": "größer"}


def build(cache, key="k", vocab_size=97, fill=fill, rebuild=False):
    return store.build(str(cache), "pairs", {"key": key}, vocab_size, fill, rebuild=rebuild)


def refuse(*_):
    raise AssertionError("made twice")


def visible(cache):
    return sorted(p.name for p in cache.iterdir() if not p.name.startswith("."))


def folder_of(name, cache, gcs):
    """The one folder of that name in the cache."""
    if "://" not in cache:
        (found,) = pathlib.Path(cache).glob(f"{name}-*")
    else:
        (found,) = {
            "gs://bucket/" + re.match(f".*/{name}-[0-9a-f]*", file)[0]
            for file in gcs.objects
            if f"/{name}-" in file
        }
    return found


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def start(cache, code):
    """A process that runs `code` after the small shards, TOKENS and `cache` are set up."""
    setup = f"""
        import os, sys, time
        import numpy as np
        from transformer_jax.data import store
        from transformer_jax.data.store import columns, tokens
        columns._SHARD_BYTES, columns._CHUNK_BYTES = 128, 32
        TOKENS, cache = np.array({TOKENS.tolist()}), {str(cache)!r}
        """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(setup) + textwrap.dedent(code)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


# a store


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
        assert len(list((stored.path / "tokens" / "c").iterdir())) == 3
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
    (read,) = build(
        tmp_path, vocab_size=vocab_size, fill=lambda writer: writer.append(last) or {}
    ).read([(0, 2)])
    assert read.dtype == dtype
    np.testing.assert_array_equal(read, last)


def test_the_key_decides_the_folder_and_a_store_is_built_once(cache):
    first = build(cache)
    assert build(cache, fill=refuse).path == first.path
    assert build(cache, key="other").path != first.path


def test_a_failed_build_leaves_no_store_and_is_cleared_by_the_next(tmp_path):
    def fail(writer):
        fill(writer)
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


# going on after a kill


def marking(blocks, done):
    """A `fill` of blocks of 10 tokens, a mark after each; notes in `done` which it does."""

    def fill(writer):
        for block in range(writer.restart["next"] if writer.restart else 0, blocks):
            done.append(block)
            writer.append(TOKENS[:10] + block)
            writer.array("ends", [writer.size])
            writer.mark({"next": block + 1})
        writer.array("blocks", range(blocks))
        return {"blocks": blocks}

    return fill


def test_a_build_stopped_at_any_write_goes_on_from_its_last_mark(gcs, monkeypatch):
    monkeypatch.setattr(tokens, "_MARK_SECONDS", 0)  # each mark is written
    path = build("gs://bucket/whole", fill=marking(30, [])).path.removeprefix("gs://bucket/whole")
    whole = {name.removeprefix("whole"): content for name, content in gcs.objects.items()}
    assert "restart" not in str(whole.keys())
    for writes in itertools.count():
        gcs.objects.clear(), gcs.generations.clear()
        gcs.writes, first, then = writes, [], []
        try:
            build("gs://bucket/part", fill=marking(30, first))
        except UserError as error:
            assert "gs://bucket/part" + path in str(error) and "no access" in str(error)
        else:
            break
        gcs.writes = float("inf")
        stored = build("gs://bucket/part", fill=marking(30, then))
        assert {
            name.removeprefix("part"): content for name, content in gcs.objects.items()
        } == whole
        # the block at hand may be done again
        assert sorted({*first, *then}) == list(range(30)) and len(first) + len(then) <= 31
    assert writes > 40
    np.testing.assert_array_equal(stored.array("ends"), np.arange(10, 310, 10))
    np.testing.assert_array_equal(
        stored.read([(0, 300)])[0].reshape(30, 10), TOKENS[:10] + np.arange(30)[:, None]
    )


def test_a_build_killed_at_any_moment_goes_on_from_its_last_mark(tmp_path):
    code = """
        tokens._MARK_SECONDS = 0
        def fill(writer):
            for block in range(writer.restart or 0, 400):
                print(block, flush=True)
                writer.append(TOKENS[:10] + block)
                writer.array("ends", [writer.size])
                writer.mark(block + 1)
            return {}
        store.build(cache, "pairs", {"key": "k"}, 600, fill)
        """
    draw, last = random.Random(0), 0
    for blocks in (5, 40, None):
        process = start(tmp_path / "part", code)
        done = [int(process.stdout.readline())]
        # the block whose mark was on its way is done again, or not
        assert done[0] in (last, last + 1)
        if blocks:
            done += [int(process.stdout.readline()) for _ in range(blocks)]
            time.sleep(draw.random() * 0.005)
            process.send_signal(signal.SIGKILL)
        done += map(int, process.communicate()[0].split())
        last = done[-1]
    assert process.returncode == 0 and last == 399

    def fill(writer):
        writer.append(np.concatenate([TOKENS[:10] + block for block in range(400)]))
        writer.array("ends", np.arange(10, 4010, 10))
        return {}

    whole = build(tmp_path / "whole", vocab_size=600, fill=fill).path
    assert contents(tmp_path / "part" / whole.name) == contents(whole)


def test_marks_are_seldom_and_no_shard_is_written_twice(gcs):
    build("gs://bucket", fill=marking(30, []))
    written = [name.split("/", 1)[1] for name in gcs.uploads]
    # one that begins, one for each of 4 whole shards of 300 tokens
    assert written.count("restart") == 5
    others = [name for name in written if name != "restart"]
    assert len(others) == len(set(others)) and others[-1] == "store.json"


def test_a_write_that_was_killed_does_not_spoil_the_next(tmp_path):
    reference = build(tmp_path / "whole").path
    half = tmp_path / reference.name
    half.mkdir()
    # what TensorStore writes to before it renames
    (half / "store.json.__lock").write_bytes(b"x" * 10_000)
    assert contents(build(tmp_path).path) == contents(reference)


def test_a_damaged_restart_is_noticed_and_rebuild_begins_anew(cache, gcs, monkeypatch):
    def fail(writer):
        marking(10, [])(writer)
        raise UserError("no text")

    monkeypatch.setattr(tokens, "_MARK_SECONDS", 0)
    with pytest.raises(UserError, match="no text"):
        build(cache, fill=fail)
    change(folder_of("pairs", cache, gcs), "restart", flip(200), gcs)
    with pytest.raises(
        store.DamagedStore, match="restart: checksum mismatch.*--config.data.rebuild=true"
    ):
        build(cache, fill=refuse)
    done = []
    build(cache, fill=marking(10, done), rebuild=True)
    assert done == list(range(10))


# damage


def flip(place):
    return lambda content: (
        content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        if place >= 0
        else flip(len(content) + place)(content)
    )


DAMAGES = {
    "flipped token": ("tokens/c/1", flip(20)),
    "flipped shard index": ("tokens/c/1", flip(-10)),
    "flipped offset": ("offsets/c/0", flip(9)),
    "flipped store.json": ("store.json", flip(100)),
    "flipped checksum of store.json": ("store.json", flip(5)),
    "other shape": (
        "offsets/zarr.json",
        lambda content: content.replace(b'"shape":[5]', b'"shape":[4]'),
    ),
    "truncated shard": ("tokens/c/0", lambda content: content[:30]),
    "shard truncated behind a chunk": ("tokens/c/0", lambda content: content[:-72]),
    "empty shard": ("tokens/c/2", lambda content: b""),
    "empty store.json": ("store.json", lambda content: b""),
    "missing shard": ("tokens/c/2", lambda content: None),
    "missing zarr.json": ("tokens/zarr.json", lambda content: None),
}


def change(path, file, how, gcs):
    """Puts how(content) in the place of a file's content; None deletes it."""
    if isinstance(path, str):
        name = f"{path.removeprefix('gs://bucket/')}/{file}"
        gcs.put(name, how(gcs.objects[name]))
    elif (content := how((path / file).read_bytes())) is None:
        (path / file).unlink()
    else:
        (path / file).write_bytes(content)


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_noticed_and_named_and_rebuild_mends_it(cache, gcs, damage):
    def read_all(stored):
        return stored.read([(0, 150)])[0], stored.array("offsets")

    path = build(cache).path
    change(path, *DAMAGES[damage], gcs)
    with pytest.raises(store.DamagedStore) as caught:
        read_all(build(cache))
    assert (
        str(caught.value).startswith(f"{path} is damaged")
        and "--config.data.rebuild=true" in str(caught.value)
        and "\n" not in str(caught.value)
    )

    for stored in (build(cache, rebuild=True), build(cache, fill=refuse)):
        tokens, offsets = read_all(stored)
        np.testing.assert_array_equal(tokens, TOKENS)
        np.testing.assert_array_equal(offsets, OFFSETS)


def test_rebuilding_leaves_the_same_files(tmp_path):
    path = build(tmp_path).path
    before = contents(path)
    (path / "stale").touch()
    build(tmp_path, rebuild=True)
    assert contents(path) == before


# cached files


def test_files_are_made_once_and_cached(cache):
    files = {"source.model": b"\x00\xff", "target.model": b""}

    def cached(make=refuse, **key):
        return store.cached_files(cache, "tokenizer", key, make)

    assert cached(lambda: files, size=5) == files
    assert cached(size=5) == files
    assert cached(lambda: {"other": b"1"}, size=6) == {"other": b"1"}


def test_cached_files_are_complete_or_absent(gcs):
    files = {name: name.encode() for name in "abc"}
    for writes in range(6):
        gcs.writes = writes
        with pytest.raises(UserError, match="no access"):
            store.cached_files("gs://bucket", "tokenizer", {}, lambda: files)
        gcs.writes = float("inf")
        assert store.cached_files("gs://bucket", "tokenizer", {}, lambda: files) == files
        gcs.objects.clear()


@pytest.mark.parametrize("damage", [flip(0), lambda content: content[:-1], lambda content: None])
def test_a_damaged_cached_file_is_reported_and_rebuilt(cache, gcs, damage):
    def cached(**flags):
        return store.cached_files(cache, "tokenizer", {}, lambda: {"a.model": b"abc"}, **flags)

    cached()
    change(folder_of("tokenizer", cache, gcs), "a.model", damage, gcs)
    with pytest.raises(
        UserError, match="tokenizer-.* is damaged .*a.model.*--config.data.rebuild=true"
    ):
        cached()
    assert cached(rebuild=True) == cached() == {"a.model": b"abc"}


# buckets that can't be used


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
    monkeypatch.setattr(files, "_TIMEOUT", 0.2)
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
