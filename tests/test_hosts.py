"""Several processes at one run, joined by gloo: the same losses as one, the same rows whatever
their number, and no waiting for the dead.
"""

import collections
import json
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from tests.conftest import build_bert, build_config, build_gpt
from tests.programs import ENV
from transformer_jax.runs.train import train

SHORT = dict(
    train__num_steps=6,
    train__batch=16,
    train__log_every=1,
    train__eval_every=6,
    checkpoint__every=2,
    model__dropout=0.0,
)
FAMILIES = {
    "gpt": (build_gpt, "train_gpt", dict(model__attention_dropout=0.0, model__num_heads=4)),
    "bert": (build_bert, "train_bert", dict(model__attention_dropout=0.0)),
    "translation": (build_config, "train_wmt", dict(train__accumulation=2)),
}


def config_file(config, folder):
    """The config as a file for the command line."""
    file = folder / "config.py"
    file.write_text(
        f"from transformer_jax.config import experiment\n\n\ndef get_config():\n    return experiment(**{config.to_dict()!r})\n"
    )
    return file


def start(count, program, *flags, devices=4, numbers=None, own=None):
    """`count` processes of `devices` virtual devices each (or only those of the `numbers`), as
    lists of Popen; `own` flags by number.
    """
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    env = {**ENV, "JAX_NUM_CPU_DEVICES": str(devices), "TF_CPP_MIN_LOG_LEVEL": "3"}
    return [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                *program,
                *map(str, flags),
                f"--coordinator=localhost:{port}",
                f"--num_processes={count}",
                f"--process_id={i}",
                *(own or {}).get(i, ()),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )
        for i in (range(count) if numbers is None else numbers)
    ]


def finish(processes, code=0):
    errors = [process.communicate(timeout=240)[1] for process in processes]
    assert [process.returncode for process in processes] == [code] * len(processes), "\n".join(
        errors
    )
    return errors


def losses(workdir, name="train/loss"):
    return {
        line["step"]: line[name]
        for line in map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
        if name in line
    }


@pytest.mark.parametrize(
    "family, count",
    [
        ("gpt", 2),
        *(
            pytest.param(f, n, marks=pytest.mark.slow)
            for f, n in (
                ("bert", 2),
                ("translation", 2),
                ("gpt", 4),
                ("bert", 4),
                ("translation", 4),
            )
        ),
    ],
)
def test_losses_equal_those_of_one_process(family, count, tmp_path):
    build, program, more = FAMILIES[family]
    config = build(tmp_path, **SHORT, **more, mesh__fsdp=2, mesh__tensor=2)
    alone = tmp_path / "alone"
    train(config, alone)
    finish(
        start(
            count,
            [f"transformer_jax.{program}"],
            f"--config={config_file(config, tmp_path)}",
            f"--workdir={tmp_path}/several",
        )
    )
    for name in ("train/loss", "train/grad_norm", "valid/loss"):
        one, several = losses(alone, name), losses(tmp_path / "several", name)
        assert several == pytest.approx(one, abs=1e-5) and len(one) == (
            1 if name == "valid/loss" else 6
        )


@pytest.mark.slow
def test_two_then_one_then_four_processes_read_the_same_rows(tmp_path):
    """Preempted twice, resumed by another number of processes: every row once, by one process, and
    the losses of a run without a seam.
    """
    build, trainer, more = FAMILIES["gpt"]
    config = build(
        tmp_path,
        **{**SHORT, "train__num_steps": 400, "checkpoint__every": 400, "train__eval_every": 400},
        **more,
    )
    log, flags = (
        tmp_path / "rows",
        (f"--config={config_file(config, tmp_path)}", f"--workdir={tmp_path}/run"),
    )
    program = ["tests.hosts_program", log, trainer]
    for count in (2, 1):
        processes = (
            start(count, program, *flags)
            if count > 1
            else [
                subprocess.Popen(
                    [sys.executable, "-m", *map(str, program), *flags],
                    stderr=subprocess.PIPE,
                    text=True,
                    env={**ENV, "JAX_NUM_CPU_DEVICES": "4"},
                )
            ]
        )
        before = len(losses(tmp_path / "run")) if (tmp_path / "run").exists() else 0
        while (
            not (tmp_path / "run/metrics.jsonl").exists()
            or len(losses(tmp_path / "run")) < before + 3
        ):
            assert processes[0].poll() is None, processes[0].communicate()[1]
            time.sleep(0.2)
        processes[-1].send_signal(signal.SIGTERM)  # one is told, all stop
        finish(processes, code=75)
    reached = max(losses(tmp_path / "run"))
    last = reached + 5
    finish(
        start(
            4,
            program,
            *flags,
            f"--config.train.num_steps={last}",
            f"--config.train.eval_every={last}",
            f"--config.checkpoint.every={last}",
            devices=2,
        )
    )
    config.train.num_steps = config.train.eval_every = config.checkpoint.every = last
    train(config, tmp_path / "straight")
    assert losses(tmp_path / "run") == pytest.approx(
        losses(tmp_path / "straight"), abs=1e-5
    ) and set(losses(tmp_path / "run")) == set(range(1, last + 1))
    read = collections.defaultdict(list)
    for process, step, places in map(json.loads, log.read_text().splitlines()):
        read[step].append((process, places))
    for step in range(last):  # what was read ahead and not used is read again after a resume
        *_, newest = _rounds(read[step])
        assert sorted(place for places in newest.values() for place in places) == list(range(16)), (
            step
        )
    assert {len(_rounds(found)[-1]) for found in read.values()} == {1, 2, 4}


def _rounds(found):
    """The notes of one update, run by run: {process: places}; a process that appears again belongs
    to a later run.
    """
    rounds = [{}]
    for process, places in found:
        if process in rounds[-1] or sum(map(len, rounds[-1].values())) == 16:
            rounds.append({})
        rounds[-1][process] = places
    return rounds


def test_ctrl_c_to_one_saves_and_ends_all(tmp_path):
    """The parent of each passes it on; the processes stop at the same update, to go on with."""
    build, trainer, more = FAMILIES["gpt"]
    long = {"train__num_steps": 100_000, "train__eval_every": 100_000, "checkpoint__every": 100_000}
    config = build(tmp_path, **{**SHORT, **long}, **more)
    flags = (f"--config={config_file(config, tmp_path)}", f"--workdir={tmp_path}/run")
    processes = start(2, [f"transformer_jax.{trainer}"], *flags, devices=1)
    while not (tmp_path / "run/metrics.jsonl").exists() or not losses(tmp_path / "run"):
        assert processes[0].poll() is None, processes[0].communicate()[1]
        time.sleep(0.2)
    processes[1].send_signal(signal.SIGINT)
    said = [
        re.search(r"stopped at step ([\d,]+), state saved", error)
        for error in finish(processes, code=130)
    ]
    assert said[0][1] == said[1][1]
    assert (tmp_path / "run/checkpoints" / said[0][1].replace(",", "")).is_dir()


@pytest.mark.parametrize("victim", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_a_killed_process_is_named_by_the_others_which_end(victim, tmp_path):
    build, trainer, more = FAMILIES["gpt"]
    config = build(
        tmp_path,
        **{
            **SHORT,
            "train__num_steps": 100_000,
            "checkpoint__every": 100_000,
            "train__eval_every": 100_000,
        },
        **more,
    )
    processes = start(
        2,
        [f"transformer_jax.{trainer}"],
        f"--config={config_file(config, tmp_path)}",
        f"--workdir={tmp_path}/run",
        devices=1,
    )
    while not (tmp_path / "run/metrics.jsonl").exists() or not losses(tmp_path / "run"):
        assert processes[0].poll() is None, processes[0].communicate()[1]
        time.sleep(0.2)
    processes[victim].kill()
    killed, other = time.monotonic(), processes[1 - victim]
    error = other.communicate(timeout=120)[1]
    assert other.returncode == 1 and time.monotonic() - killed < 60
    assert (
        f"process {1 - victim}: process {victim} ({socket.gethostname()})" in error
        and "died or can't be reached" in error
    )


def test_mistakes_of_one_end_all_and_are_told_by_all(tmp_path):
    build, trainer, more = FAMILIES["gpt"]
    config = build(tmp_path, **SHORT, **more)
    flags = (f"--config={config_file(config, tmp_path)}", f"--workdir={tmp_path}/run")
    for error in finish(
        start(
            2, [f"transformer_jax.{trainer}"], *flags, devices=1, own={1: ["--config.train.seed=7"]}
        ),
        code=2,
    ):
        assert (
            f"process 1 ({socket.gethostname()}) does not run the same: config.train.seed: 7 there, 0 on process 0"
            in error
            and "Traceback" not in error
        )
    assert not (tmp_path / "run").exists()


def test_who_does_not_come_is_named(tmp_path):
    flags = ("--config=configs/gpt/quickstart.py", f"--workdir={tmp_path}/run", "--patience=3")
    alone, late = (
        start(3, ["transformer_jax.train_gpt"], *flags, numbers=[0]),
        start(2, ["transformer_jax.train_gpt"], *flags, numbers=[1]),
    )
    assert "process 1, 2 of 3 did not connect to process 0 within 3 s" in finish(alone, code=2)[0]
    error = finish(late, code=2)[0]
    assert "--coordinator=localhost:" in error and "process 0 did not answer" in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--num_processes=2"], "--coordinator and --process_id missing"),
        (
            ["--coordinator=here:1", "--num_processes=2", "--process_id=2"],
            "--process_id=2: must be at least 0",
        ),
    ],
)
def test_flags_that_do_not_fit(flags, message, tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "transformer_jax.train_gpt",
            "--config=configs/gpt/quickstart.py",
            f"--workdir={tmp_path}/run",
            *flags,
        ],
        capture_output=True,
        text=True,
        env=ENV,
    )
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
