"""Damaged stores and cached files are reported, and rebuilt on request."""

import numpy as np
import pytest

from tests.data.stores import OFFSETS, TOKENS, build, change, contents, flip, folder_of, refuse
from transformer_jax.config import UserError
from transformer_jax.data import store

pytestmark = pytest.mark.usefixtures("small_shards")


DAMAGES = {
    "flipped token": ("00000/tokens/c/1", flip(20)),
    "flipped shard index": ("00000/tokens/c/1", flip(-10)),
    "flipped offset": ("00000/offsets/c/0", flip(9)),
    "flipped store.json": ("store.json", flip(100)),
    "flipped checksum of store.json": ("store.json", flip(5)),
    "other shape": (
        "00000/offsets/zarr.json",
        lambda content: content.replace(b'"shape":[5]', b'"shape":[4]'),
    ),
    "truncated shard": ("00000/tokens/c/0", lambda content: content[:30]),
    "shard truncated behind a chunk": ("00000/tokens/c/0", lambda content: content[:-72]),
    "empty shard": ("00000/tokens/c/2", lambda content: b""),
    "flipped store.json of the part": ("00000/store.json", flip(90)),
    "missing store.json of the part": ("00000/store.json", lambda content: None),
    "empty store.json": ("store.json", lambda content: b""),
    "missing shard": ("00000/tokens/c/2", lambda content: None),
    "missing zarr.json": ("00000/tokens/zarr.json", lambda content: None),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_noticed_and_named_and_rebuild_mends_it(cache, gcs, damage):
    def read_all(stored):
        return stored.read([(0, 150)])[0], stored.array("offsets")

    path = build(cache).path
    change(path, *DAMAGES[damage], gcs)
    with pytest.raises(store.DamagedStore) as caught:
        read_all(build(cache))
    assert (
        str(caught.value).startswith((f"{path} is damaged", f"{path}/00000 is damaged"))
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
