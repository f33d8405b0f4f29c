"""A part of the fault-injection suite, on one small run. All of it: python -m tests.faults."""

import random

import pytest

from tests.faults import cases
from tests.faults.kills import kills
from tests.faults.runs import Run, lines

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return Run("gpt", tmp_path_factory.mktemp("faults"), 12)


def test_a_run_that_is_killed_ends_as_an_undisturbed_one(run, tmp_path):
    aims = ["a save", "deleting an old one"]
    activities = [activity for _, activity in kills(run, tmp_path / "run", aims, random.Random(0))]
    assert len(activities) == 2 and activities[0].endswith("a save")


def test_a_run_goes_on_with_half_of_its_devices(tmp_path):
    mesh = {"mesh__fsdp": 2, "mesh__tensor": 2, "train__batch": 8}
    run = Run("gpt", tmp_path / "halved", 60, mesh)
    cases.half_of_the_devices(run, tmp_path / "run", random.Random(0))


def test_two_runs_write_the_same_numbers(run, tmp_path):
    done = run.call(tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert f"no checkpoint in {tmp_path}/run/checkpoints: beginning with step 0" in done.stderr
    run.assert_ended(tmp_path / "run")
    assert "train/loss" in lines(tmp_path / "run")[0]


def test_damage_to_any_file_of_a_checkpoint_is_noticed(run, tmp_path):
    assert cases.damage_is_noticed(run, tmp_path, random.Random(0)) > 60


@pytest.mark.parametrize(
    "name, how",
    [
        ("meta/metadata", cases.FLIPPED),
        ("params/manifest.ocdbt", cases.MISSING),
        ("digests.json", cases.TRUNCATED),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_restored(run, tmp_path, name, how):
    cases.damaged_file(run, tmp_path / "run", name, how, random.Random(0))


def test_with_every_checkpoint_damaged_the_run_does_not_start_again(run, tmp_path):
    cases.all_damaged(run, tmp_path / "run", random.Random(0))


def test_a_full_disk_is_one_line_and_no_older_checkpoint_is_lost(run, tmp_path):
    cases.disk_full(run, tmp_path / "disk")


def test_a_read_only_workdir_is_one_line(run, tmp_path):
    cases.read_only(run, tmp_path / "disk")


def test_an_update_that_is_not_finite_ends_the_run_or_is_skipped(run, tmp_path):
    cases.not_a_number(run, tmp_path)


def test_a_run_that_was_moved_resumes_with_another_clock(run, tmp_path):
    cases.moved(run, tmp_path / "run")


def test_a_damaged_token_store_is_named_and_rebuilt_on_request(run, tmp_path):
    cases.damaged_store(run, tmp_path / "run", cases.FLIPPED, random.Random(0))
