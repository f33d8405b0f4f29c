"""Part of the fault-injection suite, on one small run; the whole: python -m tests.faults."""

import random

import pytest

from tests.faults import cases
from tests.faults.kills import kills
from tests.faults.runs import Run, lines


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return Run("gpt", tmp_path_factory.mktemp("faults"), 12)


def test_killed_in_a_save_and_in_deleting_it_ends_as_if_nothing_had_happened(run, tmp_path):
    fell = [
        where
        for _, where in kills(
            run, tmp_path / "run", ["a save", "deleting an old one"], random.Random(0)
        )
    ]
    assert len(fell) == 2 and fell[0].endswith("a save")


def test_two_processes_write_the_same_numbers(run, tmp_path):
    done = run.call(tmp_path / "run")
    assert (
        done.returncode == 0
        and f"no checkpoint in {tmp_path}/run/checkpoints: beginning with step 0" in done.stderr
    ), done.stderr
    run.ended(tmp_path / "run")
    assert "train/loss" in lines(tmp_path / "run")[0]


def test_whatever_is_hurt_in_a_checkpoint_is_noticed(run, tmp_path):
    assert cases.noticed(run, tmp_path, random.Random(0)) > 60


@pytest.mark.parametrize(
    "name, how",
    [
        ("meta/metadata", cases.FLIPPED),
        ("params/manifest.ocdbt", cases.MISSING),
        ("digests.json", cases.TRUNCATED),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_taken(run, tmp_path, name, how):
    cases.damaged_file(run, tmp_path / "run", name, how, random.Random(0))


def test_with_every_checkpoint_damaged_nothing_begins_anew(run, tmp_path):
    cases.all_damaged(run, tmp_path / "run", random.Random(0))


def test_a_full_disk_costs_one_line_and_no_older_checkpoint(run, tmp_path):
    cases.disk_full(run, tmp_path / "disk")


def test_a_read_only_workdir_costs_one_line(run, tmp_path):
    cases.read_only(run, tmp_path / "disk")


def test_an_update_that_is_no_number_stops_the_run_or_is_skipped(run, tmp_path):
    cases.not_a_number(run, tmp_path)


def test_moved_with_another_clock_it_goes_on(run, tmp_path):
    cases.moved(run, tmp_path / "run")


def test_a_damaged_token_store_is_named_and_rebuilt_on_request(run, tmp_path):
    cases.damaged_store(run, tmp_path / "run", cases.FLIPPED, random.Random(0))
