"""Runs in a bucket equal runs on a disk, after kills, stops, refused requests and damage."""

import json
import os
import signal
import subprocess
import time

import jax
import numpy as np
import pytest

from tests.conftest import build_gpt
from tests.programs import ENV, call, command
from tests.test_hosts import config_file, finish, losses, start
from tests.training.test_loop import final_state, lines
from transformer_jax import convert
from transformer_jax.config import Preempted, UserError
from transformer_jax.runs.open import open_run
from transformer_jax.runs.spec import make_task
from transformer_jax.runs.train import train
from transformer_jax.storage import buckets, key_values
from transformer_jax.training import trainer

SHORT = dict(
    train__num_steps=8,
    train__log_every=1,
    train__eval_every=8,
    checkpoint__every=2,
    checkpoint__best_metric="",
)
FILES = {"config.json", "tokenizer", "checkpoints", "metrics.jsonl", "tensorboard", "curves.png"}


def reporter_with_sigterm(updates):
    """A Reporter that sends SIGTERM after so many updates."""

    class Signalling(trainer.Reporter):
        left = updates

        def step(self):
            super().step()
            self.left -= 1
            if not self.left:
                os.kill(os.getpid(), signal.SIGTERM)

    return Signalling


def killed_in_the_second_save(config, folder, bucket, server):
    """Starts the run gs://bucket/run, and kills it while it saves step 4."""
    flags = (f"--config={config_file(config, folder)}", "--workdir=gs://bucket/run")
    env = {**ENV, **server.environment, "JAX_NUM_CPU_DEVICES": "8"}
    process = subprocess.Popen(
        command("train_gpt", *flags), stderr=subprocess.PIPE, text=True, env=env
    )
    while not any(name.startswith("run/checkpoints/4/params/") for name in list(bucket.objects)):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.005)
    process.kill()
    process.communicate()


def committed_steps(bucket):
    names = [name for name in bucket.objects if name.endswith("commit_success.txt")]
    return {int(name.split("/")[2]) for name in names if name.count("/") == 3}


def assert_equal_runs(config, bucket_run, disk_run):
    """Asserts that two runs have the same state, metrics and parameters."""
    program = trainer.Program.of(config, make_task(config))
    actual = final_state(bucket_run, config, program, 8)
    jax.tree.map(np.testing.assert_array_equal, actual, final_state(disk_run, config, program, 8))
    assert lines(bucket_run) == lines(disk_run)
    _, params = open_run(str(bucket_run))
    _, expected = open_run(disk_run)
    jax.tree.map(np.testing.assert_array_equal, params, expected)


@pytest.mark.full
def test_a_run_in_a_bucket_equals_one_on_a_disk(fast, server, tmp_path, monkeypatch, capsys, drawn):
    """It is killed in a save, stopped by SIGTERM while requests are refused, and damaged."""
    config = build_gpt(tmp_path, **SHORT, data__cache="gs://bucket/cache")
    for split in ("train", "valid"):
        fast.put(f"text/{split}.txt", (tmp_path / f"{split}.txt").read_bytes())
    files = dict(
        data__train_files="gs://bucket/text/train.txt",
        data__valid_files="gs://bucket/text/val*.txt",
    )
    remote = build_gpt(tmp_path, **SHORT, data__cache="gs://bucket/cache", **files)
    scores = train(config, tmp_path / "run")

    killed_in_the_second_save(remote, tmp_path, fast, server)
    committed = committed_steps(fast)
    logged = {json.loads(line)["step"] for line in fast.objects["run/metrics.jsonl"].splitlines()}
    assert committed <= {2, 4} and set(range(1, max(committed) + 1)) <= logged
    assert "run/.lock" in fast.objects

    fast.busy = lambda number: number % 150 == 0
    with monkeypatch.context() as patch, pytest.raises(Preempted):
        patch.setattr(trainer, "Reporter", reporter_with_sigterm(2))
        train(remote, "gs://bucket/run")
    assert train(remote, "gs://bucket/run") == scores
    fast.busy = lambda number: False
    run = buckets.path("gs://bucket/run")
    assert_equal_runs(remote, run, tmp_path / "run")
    names = [name.split("/") for name in fast.objects]
    assert {parts[1] for parts in names if parts[0] == "run"} == FILES
    check_uses(tmp_path, capsys)

    for name in [name for name in fast.objects if name.startswith("run/checkpoints/8/params/")]:
        fast.put(name, fast.objects[name][: len(fast.objects[name]) // 2])
    assert train(remote, "gs://bucket/run") == scores and lines(run) == lines(tmp_path / "run")
    error = capsys.readouterr().err
    assert "gs://bucket/run/checkpoints/8 can't be read" in error
    assert "resuming from step 6" in error
    folders = {path.name.partition("-")[0] for path in (run / "checkpoints").iterdir()}
    assert folders == {"4", "6", "8", "damaged"}


def check_uses(folder, capsys):
    """Evaluates and generates with the run gs://bucket/run, and begins another run from it."""
    task, params = open_run("gs://bucket/run")
    assert task.evaluate(params, "valid")["loss"] > 0
    assert next(iter(task.generate(params, ["the "], max_tokens=3))).text
    capsys.readouterr()
    one_update = {**SHORT, "train__num_steps": 1}
    train(build_gpt(folder, **one_update, init_from="gs://bucket/run"), "gs://bucket/next")
    num_tensors = len(jax.tree.leaves(params))
    expected = f"from gs://bucket/run/checkpoints/8: {num_tensors} tensors restored"
    assert expected in capsys.readouterr().err


def test_a_missing_run_in_a_bucket_is_one_line(fast, server):
    done = call("evaluate", "--workdir=gs://nowhere/run", **server.environment)
    expected = "error: --workdir=gs://nowhere/run: no run here (no config.json)\n"
    assert done.returncode == 2 and done.stderr.endswith(expected)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "workdir, message",
    [
        (
            "gs://nowhere/run",
            "^--workdir: can't be written .gs://nowhere/run/.lock: NOT_FOUND: "
            "The specified bucket does not exist",
        ),
        ("s3://bucket/run", "^s3://bucket/run: a run's folder can be on a disk or in gs://"),
        ("gs://", "^gs://: neither a path"),
    ],
)
def test_a_workdir_that_can_not_be_written_is_refused(fast, tmp_path, workdir, message):
    with pytest.raises(UserError, match=message):
        train(build_gpt(tmp_path, **SHORT), workdir)


def test_a_bucket_without_access_or_answer_is_one_line(fast, tmp_path, monkeypatch):
    config = build_gpt(tmp_path, **SHORT)
    fast.writes = 0
    message = "^--workdir: can't be written .gs://bucket/run/.lock: PERMISSION_DENIED: no access"
    with pytest.raises(UserError, match=message):
        train(config, "gs://bucket/run")
    fast.forbidden = True
    message = "^gs://bucket/run/config.json: PERMISSION_DENIED: no access$"
    with pytest.raises(PermissionError, match=message):
        open_run("gs://bucket/run")
    fast.forbidden = False
    fast.busy = lambda number: True
    monkeypatch.setattr(key_values, "PATIENCE", 0.2)
    message = "^gs://silent/run/config.json: no answer within 0.2 seconds$"
    with pytest.raises(TimeoutError, match=message):
        open_run("gs://silent/run")
    assert not fast.objects


def test_a_converted_checkpoint_in_a_bucket(fast):
    fixture = "tests/fixtures/huggingface/GPT2LMHeadModel"
    convert.from_hf(fixture, "gs://bucket/gpt2")
    assert fast.uploads[-1] == "gpt2/config.json" and open_run("gs://bucket/gpt2")[1]
    with pytest.raises(UserError, match="^gs://bucket/gpt2: exists already"):
        convert.from_hf(fixture, "gs://bucket/gpt2")
    with pytest.raises(UserError, match="^--to_hf=gs://bucket/other: must be a folder on a disk"):
        convert.to_hf("gs://bucket/gpt2", "gs://bucket/other")


@pytest.mark.full
def test_two_processes_at_a_run_in_a_bucket(fast, server, tmp_path):
    no_dropout = {"model__dropout": 0.0, "model__attention_dropout": 0.0}
    length = {"train__num_steps": 6, "train__eval_every": 6}
    # Split over all eight devices, so that each process writes its own parts.
    config = build_gpt(tmp_path, **{**SHORT, **no_dropout, **length}, mesh__fsdp=8)
    flags = (f"--config={config_file(config, tmp_path)}", "--workdir=gs://bucket/run")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setitem(ENV, name, value)
        finish(start(2, ["transformer_jax.train_gpt"], *flags))
    train(config, tmp_path / "run")
    expected = losses(tmp_path / "run")
    assert losses(buckets.path("gs://bucket/run")) == pytest.approx(expected, abs=1e-5)
    assert any("ocdbt.process_1" in name for name in fast.objects)
    assert "run/.lock" not in fast.objects
