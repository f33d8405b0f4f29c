"""Runs and text in a bucket, a stand-in for which runs here: as on a disk, whatever comes between;
and what a bucket lacks.
"""

import json
import os
import signal
import subprocess
import threading
import time

import jax
import numpy as np
import pytest

from tests.conftest import build_gpt
from tests.programs import ENV, call, command
from tests.test_hosts import config_file, finish, losses, start
from tests.training.test_loop import final_state, lines
from transformer_jax import convert
from transformer_jax.config import Preempted, RunError, UserError
from transformer_jax.data.sources import documents
from transformer_jax.data.sources import pairs as sources
from transformer_jax.runs import lease
from transformer_jax.runs.open import open_run
from transformer_jax.runs.resolve import make_task
from transformer_jax.runs.train import train
from transformer_jax.storage import buckets, key_values, stream
from transformer_jax.storage.mirror import Mirror
from transformer_jax.training import loop

SHORT = dict(
    train__num_steps=8,
    train__log_every=1,
    train__eval_every=8,
    checkpoint__every=2,
    checkpoint__best_metric="",
)


@pytest.fixture
def fast(gcs, monkeypatch):
    """A stand-in whose listings come in one piece, leases that end soon, and processes that look
    like another machine's.
    """
    monkeypatch.setattr(gcs, "page", 1000)
    monkeypatch.setattr(lease, "RENEWAL", 0.1)
    monkeypatch.setattr(lease, "SILENCE", 0.6)
    return gcs


def fail(line):
    raise AssertionError(line)


def elsewhere(monkeypatch):
    monkeypatch.setattr(lease, "_place", lambda: None)


def test_a_path_in_a_bucket_is_as_pathlib_has_it(gcs):
    folder = buckets.path("gs://bucket/a")
    assert (
        str(folder / "b" / "c.txt") == "gs://bucket/a/b/c.txt"
        and folder.absolute() == folder.expanduser() == folder
    )
    for name in ("b/c.txt", "b/d/e", "f", "g h/ö"):
        (folder / name).write_text(name)
    gcs.put("a/empty/", b""), gcs.put("ab", b"")
    assert [path.name for path in folder.iterdir()] == ["b", "f", "g h"] and (
        folder / "g h/ö"
    ).read_text() == "g h/ö"
    assert (
        (folder / "f").is_file()
        and not (folder / "f").is_dir()
        and (folder / "b").is_dir()
        and not (folder / "b").is_file()
        and not (folder / "a").exists()
    )
    names = lambda pattern: [str(path.relative_to(folder)) for path in folder.glob(pattern)]
    assert (
        names("b/*") == ["b/c.txt", "b/d"]
        and names("?") == ["b", "f"]
        and names("*/*.txt") == ["b/c.txt"]
        and names("**/[ce]*") == ["b/c.txt", "b/d/e"]
    )
    assert sorted(map(str, folder.rglob("*"))) == [
        f"gs://bucket/a/{name}" for name in ("b", "b/c.txt", "b/d", "b/d/e", "f", "g h", "g h/ö")
    ]
    with pytest.raises(FileExistsError):
        (folder / "b").mkdir()
    (folder / "b").rename(folder / "moved")
    assert (
        names("moved/**/*") == ["moved/c.txt", "moved/d", "moved/d/e"]
        and not (folder / "b").exists()
    )
    folder.rmtree()
    assert set(gcs.objects) == {"ab"}
    for missing in (folder.rmtree, (folder / "f").read_bytes, (folder / "f").open):
        with pytest.raises(FileNotFoundError, match="^gs://bucket/a.*: no such"):
            missing()
    for wrong in ("gs://", "what://bucket/a"):
        with pytest.raises(UserError, match="neither a path nor gs://BUCKET/NAME"):
            buckets.path(wrong)


def test_what_says_that_a_checkpoint_is_whole_goes_first_and_comes_last(gcs):
    for name in (
        "run/4/a",
        "run/4/commit_success.txt",
        "run/4/params/commit_success.txt",
        "run/4/params/z",
    ):
        gcs.put(name, b"")
    gcs.writes = 1
    with pytest.raises(PermissionError):
        buckets.path("gs://bucket/run/4").rmtree()
    assert set(gcs.objects) == {"run/4/a", "run/4/params/commit_success.txt", "run/4/params/z"}
    gcs.writes = float("inf")
    gcs.put("run/4/commit_success.txt", b"")
    buckets.path("gs://bucket/run/4").rename("gs://bucket/run/damaged")
    assert gcs.uploads[-1] == "run/damaged/commit_success.txt" and len(gcs.objects) == 4


def test_text_in_a_bucket_is_the_text_on_a_disk(gcs, tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "READ_SIZE", 16)
    texts = {
        "one.txt": "",
        "two.txt": "x" * 16,
        "three.txt": "ä line\n\nanother\r\n" * 9,
        "more.jsonl": '{"text": "grüße"}\n',
    }
    (tmp_path / "text").mkdir()
    for name, text in texts.items():
        (tmp_path / "text" / name).write_text(text, newline="")
        gcs.put(f"text/{name}", text.encode())
    for name in texts:
        here, there = f"{tmp_path}/text/{name}", f"gs://bucket/text/{name}"
        assert list(sources.text_lines(there)) == list(sources.text_lines(here)) and sources.sha256(
            there
        ) == sources.sha256(here)
    found = documents.TextFiles(
        tuple(
            documents.paths(
                "config.data.train_files", "gs://bucket/text/t*.txt, gs://bucket/text/more.jsonl"
            )
        ),
        "blank_line",
        "text",
    )
    assert found.files == tuple(
        f"gs://bucket/text/{name}" for name in ("three.txt", "two.txt", "more.jsonl")
    )
    assert list(found)[0] == "ä line" and list(found)[-1] == "grüße"
    digest = sources.sha256("gs://bucket/text/two.txt")
    gcs.put("text/two.txt", b"y" * 16)
    assert sources.sha256("gs://bucket/text/two.txt") != digest
    reading = sources.text_lines("gs://bucket/text/three.txt")
    next(reading)
    gcs.put("text/three.txt", texts["three.txt"].encode())
    with pytest.raises(OSError, match="gs://bucket/text/three.txt: changed while it was read"):
        list(reading)
    for names, message in (
        ("gs://bucket/text/none", "gs://bucket/text/none: no such file"),
        ("gs://bucket/text/one.*", "gs://bucket/text/one.txt: the file is empty"),
    ):
        with pytest.raises(UserError, match=f"config.data.train_files={message}"):
            documents.paths("config.data.train_files", names)


def test_a_lease_is_renewed_given_back_and_refused_to_others(fast, monkeypatch):
    lock = buckets.path("gs://bucket/run/.lock")
    with lease.held(lock, "--workdir=W", fail):
        elsewhere(monkeypatch)
        # a renewal that was done and not answered is none of another's
        fast.lossy = lambda number: number % 7 == 0
        with pytest.raises(
            UserError,
            match=r"^--workdir=W: another run is at work there, process \d+ on .*; and has just renewed its lock",
        ):
            with lease.held(lock, "--workdir=W", fail):
                pass
        time.sleep(1)
        fast.lossy = lambda number: False
        assert "run/.lock" in fast.objects
    assert not fast.objects


def test_a_dead_runs_lease_is_taken_over_and_a_run_that_lost_its_own_is_told(fast, monkeypatch):
    lock, told = buckets.path("gs://bucket/run/.lock"), threading.Event()
    child = subprocess.Popen(["true"])
    child.wait()
    fast.put(
        "run/.lock",
        json.dumps({"host": "here", "process": child.pid, "place": lease._place()}).encode(),
    )
    began = time.monotonic()
    with lease.held(lock, "--workdir=W", fail):  # the system says that it is dead
        assert time.monotonic() - began < 0.5
    for left in (b"", json.dumps({"host": "there", "process": 1, "place": "another"}).encode()):
        fast.put("run/.lock", left)
        began = time.monotonic()
        with lease.held(lock, "--workdir=W", lambda line: told.set()):
            assert time.monotonic() - began > 0.6
    with lease.held(lock, "--workdir=W", lambda line: told.set()):
        fast.put("run/.lock", b"another's")
        assert told.wait(2)
    assert fast.objects["run/.lock"] == b"another's"


def test_a_mirror_sends_what_has_changed_and_writes_over_no_other_run(gcs):
    gcs.put("run/metrics.jsonl", b"before\n")
    mirror = Mirror(buckets.path("gs://bucket/run"), "metrics.jsonl", "none")
    (mirror.local / "tensorboard").mkdir()
    for name, content in (("metrics.jsonl", "before\nnow\n"), ("tensorboard/events", "1")):
        (mirror.local / name).write_text(content)
    for _ in range(2):
        mirror.send()
    assert (
        gcs.uploads == ["run/metrics.jsonl", "run/tensorboard/events"]
        and gcs.objects["run/metrics.jsonl"] == b"before\nnow\n"
    )
    gcs.put("run/metrics.jsonl", b"another's\n")
    (mirror.local / "metrics.jsonl").write_text("before\nnow\nlater\n")
    with pytest.raises(
        RunError, match="^gs://bucket/run/metrics.jsonl: another run has written this file"
    ):
        mirror.send()
    mirror.close()
    assert gcs.objects["run/metrics.jsonl"] == b"another's\n" and not mirror.local.exists()


@pytest.fixture
def signalled(monkeypatch):
    """signalled(n): SIGTERM comes at the nth step."""

    def at(steps):
        class Signalling(loop.Reporter):
            left = steps

            def step(self):
                super().step()
                self.left -= 1
                if not self.left:
                    os.kill(os.getpid(), signal.SIGTERM)

        monkeypatch.setattr(loop, "Reporter", Signalling)

    return at


def test_killed_stopped_and_resumed_in_a_bucket_a_run_equals_one_on_a_disk(
    fast, server, tmp_path, signalled, monkeypatch, capsys, drawn
):
    """Killed in a save, then stopped by SIGTERM, while the server refuses a request now and then,
    then damaged: state, metrics and evaluation; and another run begins from it.
    """
    config = build_gpt(tmp_path, **SHORT, data__cache="gs://bucket/cache")
    for split in ("train", "valid"):
        fast.put(f"text/{split}.txt", (tmp_path / f"{split}.txt").read_bytes())
    there = build_gpt(
        tmp_path,
        **SHORT,
        data__cache="gs://bucket/cache",
        data__train_files="gs://bucket/text/train.txt",
        data__valid_files="gs://bucket/text/val*.txt",
    )
    scores = train(config, tmp_path / "run")
    running = subprocess.Popen(
        command(
            "train_gpt", f"--config={config_file(there, tmp_path)}", "--workdir=gs://bucket/run"
        ),
        stderr=subprocess.PIPE,
        text=True,
        env={**ENV, **server.environment, "JAX_NUM_CPU_DEVICES": "8"},
    )
    while not any(name.startswith("run/checkpoints/4/params/") for name in list(fast.objects)):
        assert running.poll() is None, running.communicate()[1]
        time.sleep(0.005)
    running.kill()
    running.communicate()
    whole = {
        int(name.split("/")[2])
        for name in fast.objects
        if name.count("/") == 3 and name.endswith("commit_success.txt")
    }
    written = {json.loads(line)["step"] for line in fast.objects["run/metrics.jsonl"].splitlines()}
    assert (
        whole <= {2, 4} and set(range(1, max(whole) + 1)) <= written and "run/.lock" in fast.objects
    )

    fast.busy = lambda number: number % 150 == 0
    signalled(2)
    with pytest.raises(Preempted):
        train(there, "gs://bucket/run")
    monkeypatch.setattr(loop, "Reporter", loop.Reporter.__base__)
    assert train(there, "gs://bucket/run") == scores
    fast.busy = lambda number: False
    program = loop.Program.of(there, make_task(there))
    here, folder = tmp_path / "run", buckets.path("gs://bucket/run")
    jax.tree.map(
        np.testing.assert_array_equal,
        final_state(folder, there, program, 8),
        final_state(here, config, program, 8),
    )
    assert lines(folder) == lines(here)
    left = {
        name.removeprefix("run/").partition("/")[0]
        for name in fast.objects
        if name.startswith("run/")
    }
    assert left == {
        "config.json",
        "tokenizer",
        "checkpoints",
        "metrics.jsonl",
        "tensorboard",
        "curves.png",
    }

    (task, params), (_, same) = open_run("gs://bucket/run"), open_run(here)
    jax.tree.map(np.testing.assert_array_equal, params, same)
    assert (
        task.evaluate(params, "valid")["loss"] > 0
        and next(iter(task.generate(params, ["the "], max_tokens=3))).text
    )
    capsys.readouterr()
    train(
        build_gpt(tmp_path, **{**SHORT, "train__num_steps": 1}, init_from="gs://bucket/run"),
        "gs://bucket/begun",
    )
    assert (
        f"from gs://bucket/run/checkpoints/8: {len(jax.tree.leaves(params))} tensors restored"
        in capsys.readouterr().err
    )

    for name in [name for name in fast.objects if name.startswith("run/checkpoints/8/params/")]:
        fast.put(name, fast.objects[name][: len(fast.objects[name]) // 2])
    assert train(there, "gs://bucket/run") == scores and lines(folder) == lines(here)
    error = capsys.readouterr().err
    assert (
        "gs://bucket/run/checkpoints/8 can't be read" in error and "resuming from step 6" in error
    )
    assert {path.name.partition("-")[0] for path in (folder / "checkpoints").iterdir()} == {
        "4",
        "6",
        "8",
        "damaged",
    }


def test_mistakes_cost_one_line(fast, server, tmp_path, monkeypatch):
    config = build_gpt(tmp_path, **SHORT)
    done = call("evaluate", "--workdir=gs://nowhere/run", **server.environment)
    assert (
        done.returncode == 2
        and done.stderr.endswith(
            "error: --workdir=gs://nowhere/run: no run here (no config.json)\n"
        )
        and "Traceback" not in done.stderr
    )
    for folder, message in (
        (
            "gs://nowhere/run",
            "^--workdir: can't be written .gs://nowhere/run/.lock: NOT_FOUND: The specified bucket does not exist",
        ),
        ("s3://bucket/run", "^s3://bucket/run: a run's folder can be on a disk or in gs://"),
        ("gs://", "^gs://: neither a path"),
    ):
        with pytest.raises(UserError, match=message):
            train(config, folder)
    fast.writes = 0
    with pytest.raises(
        UserError,
        match="^--workdir: can't be written .gs://bucket/run/.lock: PERMISSION_DENIED: no access",
    ):
        train(config, "gs://bucket/run")
    fast.forbidden = True
    with pytest.raises(
        PermissionError, match="^gs://bucket/run/config.json: PERMISSION_DENIED: no access$"
    ):
        open_run("gs://bucket/run")
    fast.forbidden, fast.busy = False, lambda number: True
    monkeypatch.setattr(key_values, "PATIENCE", 0.2)
    with pytest.raises(
        TimeoutError, match="^gs://silent/run/config.json: no answer within 0.2 seconds$"
    ):
        open_run("gs://silent/run")
    assert not fast.objects


def test_a_converted_checkpoint_in_a_bucket(fast):
    fixture = "tests/fixtures/huggingface/GPT2LMHeadModel"
    convert.from_hf(fixture, "gs://bucket/gpt2")
    assert fast.uploads[-1] == "gpt2/config.json" and open_run("gs://bucket/gpt2")[1]
    with pytest.raises(UserError, match="^gs://bucket/gpt2: there is something already"):
        convert.from_hf(fixture, "gs://bucket/gpt2")
    with pytest.raises(UserError, match="^--to_hf=gs://bucket/other: must be a folder on a disk"):
        convert.to_hf("gs://bucket/gpt2", "gs://bucket/other")


@pytest.mark.slow
def test_two_processes_at_a_run_in_a_bucket(fast, server, tmp_path):
    config = build_gpt(
        tmp_path,
        **{
            **SHORT,
            "model__dropout": 0.0,
            "model__attention_dropout": 0.0,
            "train__num_steps": 6,
            "train__eval_every": 6,
        },
        mesh__fsdp=2,
    )
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setitem(ENV, name, value)
        finish(
            start(
                2,
                ["transformer_jax.train_gpt"],
                f"--config={config_file(config, tmp_path)}",
                "--workdir=gs://bucket/run",
            )
        )
    train(config, tmp_path / "run")
    assert losses(buckets.path("gs://bucket/run")) == pytest.approx(
        losses(tmp_path / "run"), abs=1e-5
    )
    assert (
        any("ocdbt.process_1" in name for name in fast.objects) and "run/.lock" not in fast.objects
    )
