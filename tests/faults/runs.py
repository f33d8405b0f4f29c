"""Tiny runs of the three families as real commands, and what they must come to."""

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
from transformer_jax.runs.resolve import make_task
from transformer_jax.training.checkpoint import Checkpoints
from transformer_jax.training.loop import Program

FAMILIES = {
    "gpt": ("train_gpt", build_gpt),
    "bert": ("train_bert", build_bert),
    "wmt": ("train_wmt", build_config),
}
EVERY = dict(train__log_every=3, train__eval_every=4, checkpoint__every=2, checkpoint__keep=2)


@dataclasses.dataclass(frozen=True)
class Run:
    """One experiment in `folder`: its data, its config file, and any number of workdirs of the same
    command.
    """

    family: str
    folder: pathlib.Path
    num_steps: int
    changes: dict = dataclasses.field(default_factory=dict)  # of the config

    @functools.cached_property
    def config(self):
        """With dropout, and with checkpoints so frequent that a fault meets a save."""
        changes = {**EVERY, "model__dropout": 0.1, **self.changes}
        config = FAMILIES[self.family][1](self.folder, train__num_steps=self.num_steps, **changes)
        (self.folder / "config.py").write_text(
            f"from transformer_jax.config import experiment\n\n\ndef get_config():\n    return experiment(**{config.to_dict()!r})\n"
        )
        return config

    def command(self, workdir, *flags):
        assert self.config  # written
        return command(
            FAMILIES[self.family][0],
            f"--config={self.folder}/config.py",
            f"--workdir={workdir}",
            *flags,
        )

    def call(self, workdir, *flags, before=()):
        """The finished command; `before`: a program that starts it."""
        return subprocess.run(
            [*before, *self.command(workdir, *flags)],
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

    def steps(self, workdir) -> list[int]:
        return Checkpoints(workdir / "checkpoints", self.config.checkpoint, read_only=True).steps()

    def state(self, workdir, step):
        return jax.device_get(
            Checkpoints(workdir / "checkpoints", self.config.checkpoint, read_only=True).restore(
                self.program.state, step
            )
        )

    def same(self, workdir, step) -> None:
        """Asserts that a checkpoint equals the uninterrupted run's, bit for bit: parameters,
        optimizer, step, sums and totals.
        """
        jax.tree.map(
            np.testing.assert_array_equal,
            self.state(workdir, step),
            self.state(self.reference, step),
        )

    def ended(self, workdir) -> None:
        """Asserts that the run in `workdir` is what the uninterrupted one is: its last state, and
        all it has written but for timings.
        """
        self.same(workdir, self.num_steps)
        assert lines(workdir) == lines(self.reference)

    def finish(self, workdir, *flags, before=()) -> None:
        """The same command again, to its end; asserts that all is as if nothing had happened."""
        done = self.call(workdir, *flags, before=before)
        assert done.returncode == 0, done.stderr
        self.ended(workdir)


def lines(workdir):
    """What metrics.jsonl says, but for how long things took."""
    found = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [
        {
            k: v
            for k, v in line.items()
            if not k.startswith("seconds/") and k not in ("train/tokens_per_second", "train/mfu")
        }
        for line in found
    ]


class Process:
    """A running command whose stderr goes to a file; used as a context, at whose end nothing is
    left running.
    """

    def __init__(self, command, log: pathlib.Path):
        self.log = log
        with log.open("w") as out:
            self.running = subprocess.Popen(command, stderr=out, stdout=subprocess.DEVNULL, env=ENV)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.running.kill()
        self.running.wait()

    def wait_for(self, happened, seconds=120) -> bool:
        """Until `happened()`, looked at without a pause; False where the command ended first."""
        stop = time.monotonic() + seconds
        while not happened():
            if self.running.poll() is not None:
                return False
            assert time.monotonic() < stop, self.log.read_text()
        return True

    def begun(self) -> bool:
        """Until the first update is done."""
        return self.wait_for(
            lambda: time.sleep(0.005) or "first step after" in self.log.read_text()
        )

    def end(self, how=signal.SIGKILL) -> int:
        """The exit status after a signal."""
        os.kill(self.running.pid, how)
        return self.running.wait(timeout=120)


def refused(done, code, *words) -> None:
    """Asserts one clear line without a traceback."""
    last = done.stderr.strip().splitlines()[-1]
    assert (
        done.returncode == code and last.startswith("error: ") and "Traceback" not in done.stderr
    ), (done.returncode, done.stderr)
    assert all(word in last for word in words), done.stderr
