"""Tiny runs of the three families as real commands, and their expected results."""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import signal
import subprocess
import time

import jax
import numpy as np

from tests.conftest import build_bert, build_config, build_gpt
from tests.programs import ENV, command
from transformer_jax.runs.spec import make_task
from transformer_jax.training.checkpoint import Checkpoints
from transformer_jax.training.step import Program

FAMILIES = {
    "gpt": ("train_gpt", build_gpt),
    "bert": ("train_bert", build_bert),
    "wmt": ("train_wmt", build_config),
}
EVERY = dict(train__log_every=3, train__eval_every=4, checkpoint__every=2, checkpoint__keep=2)


@dataclasses.dataclass(frozen=True)
class Run:
    """An experiment in `folder`: its data, its config file, and any number of workdirs.

    `changes` are overrides of the config.
    """

    family: str
    folder: pathlib.Path
    num_steps: int
    changes: dict = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def config(self):
        """The config. It has dropout, and frequent checkpoints, so that faults meet saves."""
        changes = {**EVERY, "model__dropout": 0.1, **self.changes}
        config = FAMILIES[self.family][1](self.folder, train__num_steps=self.num_steps, **changes)
        (self.folder / "config.py").write_text(
            "from transformer_jax.config import experiment\n\n\n"
            f"def get_config():\n    return experiment(**{config.to_dict()!r})\n"
        )
        return config

    def command(self, workdir, *flags):
        assert self.config  # which writes the file
        return command(
            FAMILIES[self.family][0],
            f"--config={self.folder}/config.py",
            f"--workdir={workdir}",
            *flags,
        )

    def call(self, workdir, *flags, launcher=()):
        """Runs the command to its end, with the program `launcher` in front of it, if any."""
        return subprocess.run(
            [*launcher, *self.command(workdir, *flags)],
            capture_output=True,
            encoding="utf-8",
            env=ENV,
            timeout=900,
        )

    @functools.cached_property
    def reference(self) -> pathlib.Path:
        """The workdir of the uninterrupted run, with all its checkpoints."""
        done = self.call(self.folder / "reference", "--config.checkpoint.keep=1000")
        assert done.returncode == 0, done.stderr
        return self.folder / "reference"

    @functools.cached_property
    def task(self):
        return make_task(self.config, self.folder / "reference")

    @functools.cached_property
    def program(self) -> Program:
        return Program.of(self.config, self.task, jax.devices()[:1])

    def checkpoints(self, workdir) -> Checkpoints:
        return Checkpoints(workdir / "checkpoints", self.config.checkpoint, read_only=True)

    def steps(self, workdir) -> list[int]:
        return self.checkpoints(workdir).steps()

    def state(self, workdir, step):
        """(state, totals) of a checkpoint."""
        return jax.device_get(self.checkpoints(workdir).restore(self.program.state, step))

    def assert_same(self, workdir, step) -> None:
        """Asserts that a checkpoint equals that of the uninterrupted run, bit for bit.

        It compares parameters, optimizer, step, sums and totals.
        """
        expected = self.state(self.reference, step)
        jax.tree.map(np.testing.assert_array_equal, self.state(workdir, step), expected)

    def assert_ended(self, workdir) -> None:
        """Asserts that the last state and the lines are those of the uninterrupted run."""
        self.assert_same(workdir, self.num_steps)
        assert lines(workdir) == lines(self.reference)

    def finish(self, workdir, *flags, launcher=()) -> None:
        """Runs the command again; asserts that the run ends as the uninterrupted one does."""
        done = self.call(workdir, *flags, launcher=launcher)
        assert done.returncode == 0, done.stderr
        self.assert_ended(workdir)


def lines(workdir):
    """The lines of metrics.jsonl without the measured times."""
    timed = ("train/tokens_per_second", "train/mfu")
    return [
        {k: v for k, v in line.items() if not k.startswith("seconds/") and k not in timed}
        for line in map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    ]


class Process:
    """A running command whose stderr goes to a file. The end of the context kills it."""

    def __init__(self, command, log: pathlib.Path):
        self.log = log
        with log.open("w") as out:
            self.running = subprocess.Popen(command, stderr=out, stdout=subprocess.DEVNULL, env=ENV)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.running.kill()
        self.running.wait()

    def wait_for(self, condition, seconds=120) -> bool:
        """Waits for the condition, without a pause. Returns False if the command ends first."""
        end = time.monotonic() + seconds
        while not condition():
            if self.running.poll() is not None:
                return False
            assert time.monotonic() < end, self.log.read_text()
        return True

    def wait_for_update(self) -> bool:
        """Waits for the end of the first update. Returns False if the command ends first."""

        def has_updated():
            time.sleep(0.005)
            return "first step after" in self.log.read_text()

        return self.wait_for(has_updated)

    @contextlib.contextmanager
    def paused(self):
        """In the context, the process makes no step, and keeps what it holds."""
        os.kill(self.running.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.running.pid, signal.SIGCONT)

    def end(self, number=signal.SIGKILL) -> int:
        """Sends a signal, and returns the exit status."""
        os.kill(self.running.pid, number)
        return self.running.wait(timeout=120)


def assert_refused(done, code, *words) -> None:
    """Asserts the exit code, and that the error is one line with the words, and no traceback."""
    last = done.stderr.strip().splitlines()[-1]
    is_one_line = last.startswith("error: ") and "Traceback" not in done.stderr
    assert done.returncode == code and is_one_line, (done.returncode, done.stderr)
    assert all(word in last for word in words), done.stderr
