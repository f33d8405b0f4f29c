"""How long a stop takes, and that two processes beside busy ones neither hang nor fail."""

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

MOST = 10  # seconds from the signal to the beginning of the save
GRACE = 60  # seconds, of the config
_UPDATES = 30


def latency(family: str, folder: pathlib.Path, number: int, draw: random.Random) -> None:
    """A run with updates of about a second, none of which it logs, goes on bit-equal."""
    run = _slow(family, folder / family)
    assert run.reference  # what it is compared with
    workdir = folder / f"{family}-{number}"
    with Process(run.command(workdir), folder / f"{workdir.name}.log") as process:
        assert process.begun()
        time.sleep(3 * draw.random())
        began, before = time.monotonic(), _entries(workdir)
        process.running.send_signal(number)
        assert process.wait_for(lambda: _entries(workdir) > before), process.log.read_text()
        seconds = time.monotonic() - began
        assert process.running.wait(120) == CODES[number], process.log.read_text()
    print(
        f"       {family}: the save began after {seconds:.1f} s, updates of "
        f"{_seconds(run.reference):.2f} s",
        file=sys.stderr,
        flush=True,
    )
    assert seconds < MOST
    run.finish(workdir)


def _slow(family: str, folder: pathlib.Path) -> Run:
    """A run with as many rows an update as take about a second here."""
    whole = dict(checkpoint__every=_UPDATES, train__eval_every=_UPDATES, train__log_every=_UPDATES)
    whole["model__d_model"] = 256  # so that computing takes the time, and not reading
    if not (folder / "run" / "config.py").exists():
        few = Run(family, folder / "pace", _UPDATES, {**whole, "train__batch": 64})
        rows = 8 * max(1, round(64 / 8 / _seconds(few.reference)))
        (folder / "run").mkdir()
        (folder / "rows").write_text(str(rows))
    rows = int((folder / "rows").read_text())
    return Run(family, folder / "run", _UPDATES, {**whole, "train__batch": rows})


def _seconds(workdir: pathlib.Path) -> float:
    """Seconds an update, of a run's last lines: those of the first are not in it."""
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    steps = [0, *(line["step"] for line in lines if "train/loss" in line)]
    last = [line for line in lines if "train/loss" in line][-1]
    updates = steps[-1] - max(steps[-2], 1)
    return (last["seconds/step"] + last["seconds/data"]) / updates


def _entries(workdir: pathlib.Path) -> set[str]:
    """Names of the checkpoints, whole or being written."""
    folder = workdir / "checkpoints"
    return set(os.listdir(folder)) if folder.is_dir() else set()


@contextlib.contextmanager
def busy(count: int):
    """So many processes that compute all the time."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def two_processes(workdir: pathlib.Path, draw: random.Random | None = None) -> None:
    """Two processes of two devices train and evaluate to their end, or stop within the grace.

    With `draw`, SIGTERM comes at a random moment after their start.
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
        running.wait(GRACE + 30)  # till all have noticed
    finally:
        subprocess.run(["pkill", "-KILL", "-s", str(running.pid)])  # its session, which is its own
