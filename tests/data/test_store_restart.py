"""An interrupted build of a token store continues from its last mark."""

import itertools
import random
import signal
import time

import numpy as np
import pytest

from tests.data.stores import (
    TOKENS,
    build,
    change,
    contents,
    flip,
    folder_of,
    marking,
    refuse,
    start,
)
from transformer_jax.config import UserError
from transformer_jax.data import store
from transformer_jax.data.store import tokens

pytestmark = pytest.mark.usefixtures("small_shards")


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
        # The block that was being written may be repeated.
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
        # The block whose mark was being written may be repeated.
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
    # One at the beginning, and one for each of the 4 full shards of 300 tokens.
    assert written.count("restart") == 5
    others = [name for name in written if name != "restart"]
    assert len(others) == len(set(others)) and others[-1] == "store.json"


def test_a_write_that_was_killed_does_not_spoil_the_next(tmp_path):
    reference = build(tmp_path / "whole").path
    half = tmp_path / reference.name
    half.mkdir()
    # TensorStore writes to this file, then renames it.
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
