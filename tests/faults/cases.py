"""Faults other than kill -9. Each case has its own run, and asserts the documented behaviour."""

import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.faults.runs import Process, Run, assert_refused, lines
from transformer_jax import config as configs
from transformer_jax.config import RunError
from transformer_jax.tasks.causal_lm import CausalLM
from transformer_jax.training import trainer
from transformer_jax.training.checkpoint import Checkpoints
from transformer_jax.training.stop import CODES

TRUNCATED = "truncated"
FLIPPED = "bit flipped"
MISSING = "missing"
# Files of Orbax that a restore does not read.
UNREAD = {"_CHECKPOINT_METADATA", "commit_success.txt"}
# A launcher that changes the name of the host; it needs root.
ELSEWHERE = ["unshare", "--uts", "sh", "-c", 'hostname elsewhere && exec "$@"', "sh"]


# Processes.


def signalled(run: Run, workdir, number: int, draw: random.Random) -> None:
    """SIGTERM or Ctrl-C at a random moment: the state is saved, and the run resumes bit-equal."""
    with Process(run.command(workdir), run.folder / f"{workdir.name}.log") as process:
        assert process.wait_for_update()
        time.sleep(draw.random())
        code = process.end(number)
        error = process.log.read_text()
    if code != 0:  # else the run had finished
        assert code == CODES[number], error
        step = run.steps(workdir)[-1]
        # The signal may come after the last update.
        assert f"stopped at step {step:,}, state saved" in error or step == run.num_steps, error
    run.finish(workdir)


# Starts its command on as many virtual devices as the file beside it says, and leaves its number.
ON_DEVICES = """#!/usr/bin/env bash
export JAX_NUM_CPU_DEVICES=$(cat "${0%/*}/devices")
echo $$ > "${0%/*}/process"
exec "$@"
"""
UNTIL_DONE = pathlib.Path(__file__).parents[2] / "launch/until_done.sh"


def half_of_the_devices(run: Run, workdir, draw: random.Random) -> None:
    """A run on 8 devices is preempted at a random moment, and gets 4 of them back.

    The same command goes on by itself, and its curve has no seam beyond rounding.
    """
    start = _on_eight(run.folder / "undisturbed-devices")
    undisturbed = run.folder / "undisturbed"
    done = run.call(undisturbed, launcher=[start])  # the second call has nothing to do
    assert done.returncode == 0, done.stderr
    beside = run.folder / f"{workdir.name}-devices"
    command = [str(UNTIL_DONE), _on_eight(beside), *run.command(workdir)]
    with Process(command, beside / "log") as process:
        assert process.wait_for_update(), process.log.read_text()
        time.sleep(draw.random() * 3)
        (beside / "devices").write_text("4")
        with contextlib.suppress(ProcessLookupError):  # it may have ended
            os.kill(int((beside / "process").read_text()), signal.SIGTERM)
        assert process.running.wait(timeout=900) == 0, process.log.read_text()
    log = process.log.read_text()
    # A signal after the last update meets a run that is complete.
    assert ("going on" in log and "devices    4 x cpu" in log) or "devices    4" not in log, log
    expected, found = lines(undisturbed), lines(workdir)
    assert [line["step"] for line in found] == [line["step"] for line in expected]
    for line, other in zip(found, expected):
        # Rounding grows from update to update; other rows or masks would differ by several percent.
        assert line == pytest.approx(other, rel=2e-3, abs=1e-3), (line, other)


def _on_eight(folder: pathlib.Path) -> str:
    """Returns a launcher that starts its command on 8 devices, until its folder says otherwise."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "start.sh").write_text(ON_DEVICES)
    (folder / "start.sh").chmod(0o755)
    (folder / "devices").write_text("8")
    return str(folder / "start.sh")


def two_runs(run: Run, workdir) -> None:
    """A second run on a workdir is refused, without an effect on the first."""
    with Process(run.command(workdir), run.folder / f"{workdir.name}.log") as process:
        assert process.wait_for_update()
        # On a busy machine, the first run could otherwise end before the second has begun.
        with process.paused():
            assert_refused(run.call(workdir), 2, "another run is at work there")
        assert process.running.wait() == 0, process.log.read_text()
    run.assert_ended(workdir)


def moved(run: Run, workdir, launcher=()) -> None:
    """A stopped run resumes in another folder, with all times in the future or long ago.

    `launcher` may change the name of the host.
    """
    stopped_at(run, workdir, run.num_steps - 4)
    new_workdir = workdir.with_name(f"{workdir.name}-moved")
    workdir.rename(new_workdir)
    for number, path in enumerate(sorted(new_workdir.rglob("*"))):
        seconds = 4_000_000_000 if number % 2 else 100_000_000
        os.utime(path, (seconds, seconds))
        if path.name == "_CHECKPOINT_METADATA":
            stamps = {
                key: value * 2 if key.endswith("_nsecs") and value else value
                for key, value in json.loads(path.read_text()).items()
            }
            path.write_text(json.dumps(stamps))
    run.finish(new_workdir, launcher=launcher)


def stopped_at(run: Run, workdir, step) -> None:
    """Copies the uninterrupted run to `workdir`, as it would be after a stop at a step."""
    shutil.copytree(run.reference, workdir)
    for later in (s for s in run.steps(workdir) if s > step):
        shutil.rmtree(workdir / "checkpoints" / str(later))


# Checkpoints.


def files(run: Run) -> list[str]:
    """All files of the last checkpoint of the uninterrupted run."""
    folder = run.reference / "checkpoints" / str(run.num_steps)
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def damage(path: pathlib.Path, how: str, draw: random.Random) -> None:
    """Truncates or deletes a file, or flips one of its bits."""
    content = bytearray(path.read_bytes())
    if how == MISSING:
        path.unlink()
        return
    if how == FLIPPED:
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content[: len(content) // 2] if how == TRUNCATED else content)


def damaged_file(run: Run, workdir, name: str, how: str, draw: random.Random) -> None:
    """A file of the newest checkpoint is damaged: the run resumes from the one before."""
    stopped_at(run, workdir, run.num_steps)
    damage(workdir / "checkpoints" / str(run.num_steps) / name, how, draw)
    # A process with eight virtual devices may round otherwise.
    done = run.call(workdir)
    assert done.returncode == 0, done.stderr
    error = done.stderr
    if name not in UNREAD:
        # With a changed digest, the error names the file of the digest.
        words = "" if name == "digests.json" else f"{name}: "
        assert f"checkpoints/{run.num_steps} can't be read ({words}" in error, error
        assert f"resuming from step {run.num_steps - 2}" in error
        assert list((workdir / "checkpoints").glob(f"damaged-{run.num_steps}-*"))
    run.assert_ended(workdir)


def damage_is_noticed(run: Run, folder: pathlib.Path, draw: random.Random) -> int:
    """Damages each file of a checkpoint in each way, and asserts that nothing is restored.

    Returns the number of cases.
    """
    count = 0
    original = run.reference / "checkpoints" / str(run.num_steps)
    for name in files(run):
        for how in (TRUNCATED, FLIPPED, MISSING):
            shutil.copytree(original, folder / str(run.num_steps))
            damage(folder / str(run.num_steps) / name, how, draw)
            checkpoints = Checkpoints(folder, run.config.checkpoint, read_only=True)
            if name in UNREAD:
                checkpoints.restore(run.program.state, run.num_steps)
            else:
                with pytest.raises(RunError, match="can't be read"):
                    checkpoints.restore(run.program.state, run.num_steps)
            shutil.rmtree(folder / str(run.num_steps))
            count += 1
    return count


def all_damaged(run: Run, workdir, draw: random.Random) -> None:
    """All checkpoints are damaged: exit code 1 and one line. Nothing is deleted."""
    stopped_at(run, workdir, run.num_steps)
    for step in run.steps(workdir):
        folder = workdir / "checkpoints" / str(step) / "params"
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        damage(draw.choice(paths), TRUNCATED, draw)
    steps = run.steps(workdir)
    assert_refused(run.call(workdir), 1, "no checkpoint can be read")
    assert run.steps(workdir) == steps


# Disks.


@contextlib.contextmanager
def disk(folder: pathlib.Path, megabytes: int):
    """In the context, `folder` is a file system in memory. Skips where mounting is not allowed.

    Yields a function that calls `mount -o remount,OPTION`.
    """
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", folder]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")

    def remount(option):
        subprocess.run(["mount", "-o", f"remount,{option}", folder], check=True)

    try:
        yield remount
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def disk_full(run: Run, workdir) -> None:
    """The disk is full in the middle of a run: exit code 1 and one line.

    Every older checkpoint is complete. With more space, the same command resumes.
    """
    with disk(workdir, 2) as remount:
        failed = run.call(workdir / "run", "--config.checkpoint.keep=1000")
        assert_refused(failed, 1, "o space left")
        steps = run.steps(workdir / "run")
        assert steps and steps[-1] < run.num_steps
        for step in steps:
            run.assert_same(workdir / "run", step)
        remount("size=100m")
        run.finish(workdir / "run")


def read_only(run: Run, workdir) -> None:
    """The workdir is read-only: exit code 2 and one line. Writable again, the run resumes."""
    with disk(workdir, 100) as remount:
        stopped_at(run, workdir / "run", run.num_steps - 4)
        remount("ro")
        done = run.call(workdir / "run")
        assert_refused(done, 2, str(workdir / "run"), "ead-only file system")
        remount("rw")
        run.finish(workdir / "run")


# Numbers.


class Poisoned(CausalLM):
    """A language model whose loss is NaN at one update, which it knows by the dropout key."""

    at = 5

    def loss(self, params, batch, context):
        loss = super().loss(params, batch, context)
        if context.train:
            key = jax.random.fold_in(jax.random.key(self.config.train.seed), self.at)
            key = jax.random.fold_in(key, 0)
            is_hit = (jax.random.key_data(context.rng) == jax.random.key_data(key)).all()
            factor = jnp.where(is_hit, jnp.nan, 1.0)
            loss = loss._replace(terms={name: total * factor for name, total in loss.terms.items()})
        return loss


def not_a_number(run: Run, workdir) -> None:
    """The loss of one update is NaN: the run ends there every time, and keeps its checkpoints.

    With nonfinite=skip it resumes, and ends as a run that had this setting from the start.
    """
    assert run.family == "gpt"
    config = run.config.copy_and_resolve_references()
    straight = workdir / "skipping"
    task = Poisoned(config, run.reference / "tokenizer", **configs.options(config.task))
    program = trainer.Program.of(config, task, jax.devices()[:1])
    message = f"not finite at update {Poisoned.at}; nothing was saved after it"
    for _ in range(2):
        with pytest.raises(RunError, match=message):
            trainer.run(config, task, workdir / "run", program)
        assert run.steps(workdir / "run") == [2, 4]
    config.train.nonfinite = "skip"
    for folder in (workdir / "run", straight):
        trainer.run(config, task, folder, program)
    assert lines(workdir / "run") == lines(straight)
    assert lines(straight)[-2]["train/skipped"] == 1
    state, _ = run.state(straight, run.num_steps)
    resumed, _ = run.state(workdir / "run", run.num_steps)
    jax.tree.map(np.testing.assert_array_equal, resumed, state)
    assert state.skipped == 1 and state.last_skipped == Poisoned.at and state.step == run.num_steps


# Data.


def damaged_store(run: Run, workdir, how: str, draw: random.Random) -> None:
    """The token store is damaged: the error names it and the remedy, with which the run resumes."""
    stopped_at(run, workdir, run.num_steps - 4)
    cache = workdir.with_name(f"{workdir.name}-cache")
    shutil.copytree(run.config.data.cache, cache)
    store = next(cache.glob("[!.]*train-*"))
    damage(store / "00000" / "tokens" / "c" / "0", how, draw)
    flags = [f"--config.data.cache={cache}"]
    done = run.call(workdir, *flags)
    assert_refused(done, 2, str(store), "is damaged", "--config.data.rebuild=true")
    run.finish(workdir, *flags, "--config.data.rebuild=true")
