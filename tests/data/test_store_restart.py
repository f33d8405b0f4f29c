"""An interrupted build of a token store goes on with the parts that are missing."""

import itertools
import random
import signal
import time

import numpy as np
import pytest

from tests.data.stores import TOKENS, build, change, contents, counting, flip, folder_of, start
from transformer_jax.config import UserError
from transformer_jax.data import store

pytestmark = pytest.mark.usefixtures("small_shards")


def test_a_build_stopped_at_any_write_goes_on_with_the_missing_parts(gcs):
    parts = range(5)
    path = build("gs://bucket/whole", fill=counting([]), parts=parts).path
    path = path.removeprefix("gs://bucket/whole")
    whole = {name.removeprefix("whole"): content for name, content in gcs.objects.items()}
    assert "building" not in str(whole.keys())
    for writes in itertools.count():
        gcs.objects.clear(), gcs.generations.clear()
        gcs.writes, first, then = writes, [], []
        try:
            build("gs://bucket/part", fill=counting(first), parts=parts)
        except UserError as error:
            assert "gs://bucket/part" + path in str(error) and "no access" in str(error)
        else:
            break
        gcs.writes = float("inf")
        stored = build("gs://bucket/part", fill=counting(then), parts=parts)
        assert {
            name.removeprefix("part"): content for name, content in gcs.objects.items()
        } == whole
        # The part that was being written is repeated.
        assert sorted({*first, *then}) == [*parts] and len(first) + len(then) <= 6
    assert writes > 20
    np.testing.assert_array_equal(
        stored.read([(0, 350)])[0].reshape(5, 70), TOKENS[:70] + np.arange(5)[:, None]
    )
    assert [stored.part_array(part, "ends").tolist() for part in parts] == [
        [part, 70] for part in parts
    ]


@pytest.mark.full
def test_a_build_killed_at_any_moment_goes_on_with_the_missing_parts(tmp_path):
    code = """
        def fill(writer, part):
            print(part, flush=True)
            writer.append(TOKENS[:70] + part)
            writer.array("ends", np.array([part, 70], np.uint32))
            return {"part": part}
        content = store.Content(lambda: range(60), fill, lambda parts: parts[0], "pairs")
        store.build(cache, "pairs", {"key": "k"}, 600, content)
        """
    draw, last = random.Random(0), 0
    for parts in (5, 20, None):
        process = start(tmp_path / "part", code)
        done = [int(process.stdout.readline())]
        # The part that was being written is repeated.
        assert done[0] in (last, last + 1)
        if parts:
            done += [int(process.stdout.readline()) for _ in range(parts)]
            time.sleep(draw.random() * 0.005)
            process.send_signal(signal.SIGKILL)
        done += map(int, process.communicate()[0].split())
        last = done[-1]
    assert process.returncode == 0 and last == 59
    whole = build(tmp_path / "whole", vocab_size=600, fill=counting([]), parts=range(60)).path
    assert contents(tmp_path / "part" / whole.name) == contents(whole)


def test_no_file_is_written_twice(gcs):
    build("gs://bucket", fill=counting([]), parts=range(3))
    written = [name.split("/", 1)[1] for name in gcs.uploads]
    assert len(written) == len(set(written))
    assert written[0] == "building" and written[-1] == "store.json"


def test_what_a_killed_build_left_of_a_part_does_not_spoil_the_next(tmp_path):
    reference = build(tmp_path / "whole").path
    half = tmp_path / reference.name
    (half / "00000").mkdir(parents=True)
    # TensorStore writes to this file, then renames it.
    (half / "store.json.__lock").write_bytes(b"x" * 10_000)
    (half / "00000" / "stale").touch()
    assert contents(build(tmp_path).path) == contents(reference)


def test_a_damaged_part_is_noticed_and_rebuild_begins_anew(cache, gcs):
    def fail(writer, part):
        if part == 2:
            raise UserError("no text")
        return counting([])(writer, part)

    with pytest.raises(UserError, match="no text"):
        build(cache, fill=fail, parts=range(3))
    change(folder_of("pairs", cache, gcs), "00001/store.json", flip(100), gcs)
    with pytest.raises(
        store.DamagedStore, match="store.json: checksum mismatch.*--config.data.rebuild=true"
    ):
        build(cache, fill=counting([]), parts=range(3))
    done = []
    build(cache, fill=counting(done), parts=range(3), rebuild=True)
    assert done == [0, 1, 2]
