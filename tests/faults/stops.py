"""The time that a stop takes, and runs of two processes on a busy machine."""

import contextlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

from tests.faults.runs import Process, Run
from tests.programs import ENV, command
from transformer_jax.training.stop import CODES

MAX_SECONDS = 10  # from the signal to the beginning of the save
GRACE = 60  # seconds, of the config
_UPDATES = 30


def latency(family: str, folder: pathlib.Path, number: int, draw: random.Random) -> None:
    """Stops a run with updates of about a second, and asserts that it resumes bit-equal."""
    run = _slow(family, folder / family)
    assert run.reference  # which runs it
    workdir = folder / f"{family}-{number}"
    with Process(run.command(workdir), folder / f"{workdir.name}.log") as process:
        assert process.wait_for_update()
        time.sleep(3 * draw.random())
        began = time.monotonic()
        earlier = _entries(workdir)
        process.running.send_signal(number)
        assert process.wait_for(lambda: _entries(workdir) > earlier), process.log.read_text()
        seconds = time.monotonic() - began
        assert process.running.wait(120) == CODES[number], process.log.read_text()
    print(
        f"       {family}: the save began after {seconds:.1f} s, updates of "
        f"{_seconds(run.reference):.2f} s",
        file=sys.stderr,
        flush=True,
    )
    assert seconds < MAX_SECONDS
    run.finish(workdir)


def _slow(family: str, folder: pathlib.Path) -> Run:
    """A run whose batch is so large that an update takes about a second on this machine."""
    changes = {f"{key}_every": _UPDATES for key in ("train__eval", "train__log")}
    changes["checkpoint__every"] = _UPDATES
    changes["model__d_model"] = 256  # an update computes for longer than it reads
    if not (folder / "run" / "config.py").exists():
        pace = Run(family, folder / "pace", _UPDATES, {**changes, "train__batch": 64})
        rows = 8 * max(1, round(64 / 8 / _seconds(pace.reference)))
        (folder / "run").mkdir()
        (folder / "rows").write_text(str(rows))
    rows = int((folder / "rows").read_text())
    return Run(family, folder / "run", _UPDATES, {**changes, "train__batch": rows})


def _seconds(workdir: pathlib.Path) -> float:
    """The seconds of an update, without those of the first."""
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    steps = [0, *(line["step"] for line in lines if "train/loss" in line)]
    last = [line for line in lines if "train/loss" in line][-1]
    updates = steps[-1] - max(steps[-2], 1)
    return (last["seconds/step"] + last["seconds/data"]) / updates


def _entries(workdir: pathlib.Path) -> set[str]:
    """The names of the checkpoints, complete or not."""
    folder = workdir / "checkpoints"
    return set(os.listdir(folder)) if folder.is_dir() else set()


@contextlib.contextmanager
def busy(count: int):
    """In the context, `count` processes compute all the time."""
    command = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def two_processes(workdir: pathlib.Path, draw: random.Random | None = None) -> None:
    """Two processes of two devices train and evaluate to the end.

    With `draw`, they receive SIGTERM at a random moment, and must end within the grace.
    """
    flags = [
        f"--workdir={workdir}",
        "--config=configs/gpt/quickstart.py",
        "--config.train.num_steps=6",
        "--config.train.log_every=2",
        "--config.train.eval_every=6",
        "--config.checkpoint.every=6",
    ]
    env = {**ENV, "DEVICES": "2"}
    env.pop("XLA_FLAGS", None)
    log = workdir.with_suffix(".log")
    with log.open("w") as out:
        running = subprocess.Popen(
            ["launch/local_multihost.sh", "2", *command("train_gpt", *flags)],
            stdout=out,
            stderr=out,
            env=env,
            start_new_session=True,
        )
    try:
        if draw is None:
            assert running.wait(900) == 0, log.read_text()
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.wait(draw.random() * 120)
        running.send_signal(signal.SIGTERM)
        running.wait(GRACE + 30)
    finally:
        subprocess.run(["pkill", "-KILL", "-s", str(running.pid)])  # its own session
