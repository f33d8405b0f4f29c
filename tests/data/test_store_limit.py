"""The size of a cache on a disk: the least recently used stores go, and none that is in use."""

import os

import numpy as np
import pytest

from tests.data.stores import TOKENS, build, contents, refuse, start
from transformer_jax.config import UserError
from transformer_jax.data import store

pytestmark = pytest.mark.usefixtures("small_shards")
VARIABLE = "TRANSFORMER_JAX_STORES_GB"


def names(cache):
    return {path.name for path in cache.iterdir() if not path.name.startswith(".")}


def test_the_least_recently_used_stores_are_removed_and_built_again(tmp_path, monkeypatch, capsys):
    folders = [build(tmp_path, key).path for key in "abcd"]
    store.cached_files(str(tmp_path), "tokenizer", {}, lambda: {"vocab": b"x"})
    (tokenizer,) = names(tmp_path) - {folder.name for folder in folders}
    (tmp_path / "text-0123456789abcdef").mkdir()
    (tmp_path / "digests").mkdir()
    of_others = {"text-0123456789abcdef", "digests"}
    for seconds, name in enumerate([folders[3].name, folders[0].name, tokenizer, folders[2].name]):
        os.utime(tmp_path / f".{name}.used", (seconds, seconds))
    before = contents(folders[0])
    size = sum(map(len, before.values()))
    # Opened just now, although it was built before the others.
    build(tmp_path, "b", fill=refuse)
    capsys.readouterr()
    # It has room for three and the tokenizer.
    monkeypatch.setenv(VARIABLE, str(3.9 * size / 1e9))
    latest = build(tmp_path, "e").path
    remaining = {tokenizer, folders[1].name, folders[2].name, latest.name}
    assert names(tmp_path) == remaining | of_others
    [line] = [line for line in capsys.readouterr().err.splitlines() if "removed" in line]
    assert f"{VARIABLE}=" in line and f": {folders[3].name}, {folders[0].name} (" in line
    assert contents(build(tmp_path, "a").path) == before


def test_no_store_is_removed_that_another_process_has_open_or_builds(tmp_path, monkeypatch):
    opened, idle = build(tmp_path, "opened").path, build(tmp_path, "idle").path
    code = f"""
        from tests.data.stores import build
        stored = store.Store({str(opened)!r})
        def fill(writer, part):
            print("building", flush=True)
            time.sleep(600)
        build(cache, "built", fill=fill)
        """
    process = start(tmp_path, code)
    try:
        assert process.stdout.readline() == "building\n"
        (built,) = names(tmp_path) - {opened.name, idle.name}
        monkeypatch.setenv(VARIABLE, "0")
        own = build(tmp_path, "own")
        assert names(tmp_path) == {opened.name, built, own.path.name}
        np.testing.assert_array_equal(own.read([(0, 150)])[0], TOKENS)
    finally:
        process.kill()
        process.communicate()
    # A process that has died holds nothing.
    store.keep_small(tmp_path)
    assert names(tmp_path) == {own.path.name}
    path = own.path
    del own
    store.keep_small(tmp_path)
    assert not path.exists() and not names(tmp_path)


def test_without_a_limit_nothing_is_removed_and_a_wrong_one_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, "inf")
    build(tmp_path, "a")
    build(tmp_path, "b")
    assert len(names(tmp_path)) == 2
    for wrong in ("much", "-1", "nan"):
        monkeypatch.setenv(VARIABLE, wrong)
        with pytest.raises(UserError, match=f"{VARIABLE}={wrong}: must be a number of GB"):
            build(tmp_path, wrong)
