"""Translation runs on the command line that are refused, or stopped by a signal."""

import json
import signal
import subprocess

import pytest

from tests.programs import ENV, call, command, here, refused, translation_flags


@pytest.fixture(scope="module")
def overrides(tmp_path_factory):
    """Returns the flags of a tiny run on files."""
    return translation_flags(tmp_path_factory.mktemp("cli"))


@pytest.mark.parametrize(
    "extra, words",
    [
        (["--config.train.num_stps=5"], ["config.train.num_stps", "did you mean train.num_steps"]),
        (["--config.model.num_heads=3"], ["config.model.num_heads=3"]),
        (["--config.mesh.tensor=3"], ["config.mesh.tensor=3"]),
        (["--config.train.batch=lots"], ["config.train.batch='lots'"]),
        (
            ["--config.data.train_source=/no/such.txt"],
            ["config.data.train_source=/no/such.txt", "no such file"],
        ),
        (["--config.data.tfds_name=x/y"], ["name one source"]),
        (["--profile=5:3"], ["--profile=5:3", "FROM:TO"]),
        (["--config.train.num_steps"], ["needs a value"]),
        (["--cfg=1"], ["cfg"]),
        (
            ["--config.checkpoint.every=0"],
            ["config.checkpoint.every=0", "at least 1, or a fraction of"],
        ),
        (
            ["--config.decode.max_extra=200"],
            ["config.decode.max_extra=200", "config.model.max_length"],
        ),
        (["--config.mesh.rules=('embed','fsdp')"], ["config.mesh.rules"]),
        (["--config.mesh.rules=(1,)"], ["config.mesh.rules", "logical axis"]),
        (["--config.task.bleu_lines=-1"], ["config.task.bleu_lines=-1"]),
        (["--config.task.source_length=3"], ["no pair is left"]),
    ],
)
def test_a_wrong_run_is_refused_and_writes_nothing(overrides, tmp_path, extra, words):
    refused(here("train_wmt", *overrides, f"--workdir={tmp_path / 'run'}", *extra), *words)
    assert not (tmp_path / "run").exists()


@pytest.mark.full
def test_a_workdir_that_is_a_file_or_in_use_is_refused(overrides, tmp_path):
    (tmp_path / "file").write_text("")
    refused(
        here("train_wmt", *overrides, f"--workdir={tmp_path / 'file'}"),
        str(tmp_path / "file"),
        "can't be written",
    )
    from transformer_jax.runs import train

    with train.held(tmp_path / "run"):
        refused(
            here("train_wmt", *overrides, f"--workdir={tmp_path / 'run'}"),
            "another run is at work there",
        )


@pytest.mark.full
def test_a_run_starts_after_a_killed_start(overrides, tmp_path):
    (tmp_path / "run" / "tokenizer").mkdir(parents=True)
    # With an empty PATH, there is no git, which a run does not need.
    done = call(
        "train_wmt",
        *overrides,
        f"--workdir={tmp_path / 'run'}",
        "--config.train.num_steps=2",
        PATH="",
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.full
def test_bad_data_is_named_with_its_line(overrides, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"fine\nbad \xff\nfine\n")
    (tmp_path / "b.txt").write_text("eins\nzwei\n")
    files = [
        f"--config.data.train_source={tmp_path / 'a.txt'}",
        f"--config.data.train_target={tmp_path / 'b.txt'}",
    ]
    refused(
        here("train_wmt", *overrides, f"--workdir={tmp_path / 'run'}", *files),
        "a.txt:2",
        "not UTF-8",
    )
    (tmp_path / "a.txt").write_text("one\n")
    refused(
        here("train_wmt", *overrides, f"--workdir={tmp_path / 'run'}", *files),
        "a.txt has 1 lines",
        "b.txt has more",
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.full
def test_a_run_that_sigterm_stopped_resumes_with_equal_results(overrides, tmp_path):
    flags = [
        *overrides,
        "--config.train.num_steps=60",
        "--config.checkpoint.every=60",
        "--config.train.eval_every=60",
        "--config.model.dropout=0.1",
    ]
    straight = call("train_wmt", *flags, f"--workdir={tmp_path / 'straight'}")
    assert straight.returncode == 0, straight.stderr
    process = subprocess.Popen(
        command("train_wmt", *flags, f"--workdir={tmp_path / 'stopped'}"),
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env=ENV,
    )
    for line in process.stderr:
        if line.startswith("step 2/"):
            process.send_signal(signal.SIGTERM)
            break
    rest = process.stderr.read()
    assert process.wait() == 75, rest
    assert "state saved" in rest
    assert call("train_wmt", *flags, f"--workdir={tmp_path / 'stopped'}").returncode == 0
    final = [
        json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[-1])
        for name in ("straight", "stopped")
    ]
    assert final[0] == final[1] and final[0]["step"] == 60
