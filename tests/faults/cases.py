"""Faults but for kill -9: each case does harm to a run of its own and asserts what was promised."""

import contextlib
import io
import json
import os
import pathlib
import random
import shutil
import subprocess
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.faults.runs import Process, Run, lines, refused
from transformer_jax import config as configs
from transformer_jax.config import RunError
from transformer_jax.tasks.causal_lm import CausalLM
from transformer_jax.training import loop
from transformer_jax.training.checkpoint import Checkpoints
from transformer_jax.training.stop import CODES

TRUNCATED, FLIPPED, MISSING = "truncated", "bit flipped", "missing"
# files of Orbax's that a restore does without
NOTHING_COMES_FROM = {"_CHECKPOINT_METADATA", "commit_success.txt"}


ELSEWHERE = ["unshare", "--uts", "sh", "-c", 'hostname elsewhere && exec "$@"', "sh"]  # needs root


# processes


def signalled(run: Run, workdir, number: int, draw: random.Random) -> None:
    """SIGTERM or Ctrl-C at a random moment: the state is saved, and the run goes on bit-equal."""
    with Process(run.command(workdir), run.folder / f"{workdir.name}.log") as process:
        assert process.begun()
        time.sleep(draw.random())
        code, said = process.end(number), process.log.read_text()
    if code != 0:  # else it was at its end
        assert code == CODES[number], said
        step = run.steps(workdir)[-1]
        # a run that ends while the signal is on its way is asked after its last update
        assert f"stopped at step {step:,}, state saved" in said or step == run.num_steps, said
    run.finish(workdir)


def two_runs(run: Run, workdir) -> None:
    """The second is refused, and the first does not notice."""
    with Process(run.command(workdir), run.folder / f"{workdir.name}.log") as process:
        assert process.begun()
        refused(run.call(workdir), 2, "another run is at work there")
        assert process.running.wait() == 0, process.log.read_text()
    run.ended(workdir)


def moved(run: Run, workdir, before=()) -> None:
    """Stopped, moved to another folder, every time of its files and of its checkpoints in the
    future or long ago; `before`: what changes the host's name.
    """
    stopped_at(run, workdir, run.num_steps - 4)
    there = workdir.with_name(f"{workdir.name}-moved")
    workdir.rename(there)
    for number, path in enumerate(sorted(there.rglob("*"))):
        when = 4_000_000_000 if number % 2 else 100_000_000
        os.utime(path, (when, when))
        if path.name == "_CHECKPOINT_METADATA":
            stamps = {
                key: value * 2 if key.endswith("_nsecs") and value else value
                for key, value in json.loads(path.read_text()).items()
            }
            path.write_text(json.dumps(stamps))
    run.finish(there, before=before)


def stopped_at(run: Run, workdir, step) -> None:
    """Makes `workdir` what the run leaves when it is stopped at a step."""
    shutil.copytree(run.reference, workdir)
    for later in (s for s in run.steps(workdir) if s > step):
        shutil.rmtree(workdir / "checkpoints" / str(later))


# checkpoints


def files(run: Run) -> list[str]:
    """All files of the uninterrupted run's last checkpoint."""
    folder = run.reference / "checkpoints" / str(run.num_steps)
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def hurt(path: pathlib.Path, how: str, draw: random.Random) -> None:
    content = bytearray(path.read_bytes())
    if how == MISSING:
        path.unlink()
        return
    if how == FLIPPED:
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content[: len(content) // 2] if how == TRUNCATED else content)


def damaged_file(run: Run, workdir, name: str, how: str, draw: random.Random) -> None:
    """In the newest checkpoint: said, the one before it is taken, and the run comes to the same
    end.
    """
    stopped_at(run, workdir, run.num_steps)
    hurt(workdir / "checkpoints" / str(run.num_steps) / name, how, draw)
    with contextlib.redirect_stderr(io.StringIO()) as said:
        loop.run(run.config, run.task, workdir, run.program)
    if name not in NOTHING_COMES_FROM:
        # a changed digest speaks of the file it is of
        named = "" if name == "digests.json" else f"{name}: "
        assert f"checkpoints/{run.num_steps} can't be read ({named}" in said.getvalue(), (
            said.getvalue()
        )
        assert f"resuming from step {run.num_steps - 2}" in said.getvalue()
        assert list((workdir / "checkpoints").glob(f"damaged-{run.num_steps}-*"))
    run.ended(workdir)


def noticed(run: Run, folder: pathlib.Path, draw: random.Random) -> int:
    """Of the files of a checkpoint, whichever is hurt, however: nothing is restored from it, but
    for those from which nothing comes. Returns how many.
    """
    count = 0
    for name in files(run):
        for how in (TRUNCATED, FLIPPED, MISSING):
            shutil.copytree(
                run.reference / "checkpoints" / str(run.num_steps), folder / str(run.num_steps)
            )
            hurt(folder / str(run.num_steps) / name, how, draw)
            checkpoints = Checkpoints(folder, run.config.checkpoint, read_only=True)
            if name in NOTHING_COMES_FROM:
                checkpoints.restore(run.program.state, run.num_steps)
            else:
                with pytest.raises(RunError, match="can't be read"):
                    checkpoints.restore(run.program.state, run.num_steps)
            shutil.rmtree(folder / str(run.num_steps))
            count += 1
    return count


def all_damaged(run: Run, workdir, draw: random.Random) -> None:
    """Exit code 1 and one line; nothing is removed, and nothing begins anew."""
    stopped_at(run, workdir, run.num_steps)
    for step in run.steps(workdir):
        hurt(
            draw.choice(
                sorted(
                    path
                    for path in (workdir / "checkpoints" / str(step) / "params").rglob("*")
                    if path.is_file()
                )
            ),
            TRUNCATED,
            draw,
        )
    kept = run.steps(workdir)
    refused(run.call(workdir), 1, "no checkpoint can be read")
    assert run.steps(workdir) == kept


# disks


@contextlib.contextmanager
def disk(folder: pathlib.Path, megabytes: int):
    """A file system of this size in memory, and how to change it: it yields a call of `mount -o
    remount,OPTION`. Skips where mounting is not allowed.
    """
    folder.mkdir(parents=True)
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", folder], capture_output=True
    ).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        yield lambda option: subprocess.run(
            ["mount", "-o", f"remount,{option}", folder], check=True
        )
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def disk_full(run: Run, workdir) -> None:
    """In the middle of a run: exit 1 and one line; every older checkpoint is whole; with more space
    the same command goes on.
    """
    with disk(workdir, 2) as remount:
        failed = run.call(workdir / "run", "--config.checkpoint.keep=1000")
        refused(failed, 1, "o space left")
        kept = run.steps(workdir / "run")
        assert kept and kept[-1] < run.num_steps
        for step in kept:
            run.same(workdir / "run", step)
        remount("size=100m")
        run.finish(workdir / "run")


def read_only(run: Run, workdir) -> None:
    """Exit not 0 and one line, nothing changed; made writable again it goes on."""
    with disk(workdir, 100) as remount:
        stopped_at(run, workdir / "run", run.num_steps - 4)
        remount("ro")
        refused(run.call(workdir / "run"), 2, str(workdir / "run"), "ead-only file system")
        remount("rw")
        run.finish(workdir / "run")


# numbers


class Poisoned(CausalLM):
    """A language model whose loss is no number at one update, known by its dropout key."""

    at = 5

    def loss(self, params, batch, rng, *, train):
        sums, measured = super().loss(params, batch, rng, train=train)
        if train:
            key = jax.random.fold_in(
                jax.random.fold_in(jax.random.key(self.config.train.seed), self.at), 0
            )
            hit = (jax.random.key_data(rng) == jax.random.key_data(key)).all()
            sums = {term: total * jnp.where(hit, jnp.nan, 1.0) for term, total in sums.items()}
        return sums, measured


def not_a_number(run: Run, workdir) -> None:
    """At one update: the run stops there, again and again, and keeps what was saved before; told to
    skip it, it goes on as if it always had.
    """
    assert run.family == "gpt"
    config, straight = run.config.copy_and_resolve_references(), workdir / "skipping"
    task = Poisoned(config, run.reference / "tokenizer", **configs.options(config.task))
    program = loop.Program.of(config, task, jax.devices()[:1])
    for _ in range(2):
        with pytest.raises(
            RunError, match=f"not finite at update {Poisoned.at}; nothing was saved after it"
        ):
            loop.run(config, task, workdir / "run", program)
        assert run.steps(workdir / "run") == [2, 4]
    config.train.nonfinite = "skip"
    for place in (workdir / "run", straight):
        loop.run(config, task, place, program)
    assert lines(workdir / "run") == lines(straight) and lines(straight)[-2]["train/skipped"] == 1
    state, _ = run.state(straight, run.num_steps)
    jax.tree.map(np.testing.assert_array_equal, run.state(workdir / "run", run.num_steps)[0], state)
    assert state.skipped == 1 and state.last_skipped == Poisoned.at and state.step == run.num_steps


# data


def damaged_store(run: Run, workdir, how: str, draw: random.Random) -> None:
    """The token store: named, with how to mend it; rebuilt on request, and the run goes on to the
    same end.
    """
    stopped_at(run, workdir, run.num_steps - 4)
    cache = workdir.with_name(f"{workdir.name}-cache")
    shutil.copytree(run.config.data.cache, cache)
    store = next(cache.glob("[!.]*train-*"))
    hurt(store / "tokens" / "c" / "0", how, draw)
    flags = [f"--config.data.cache={cache}"]
    refused(run.call(workdir, *flags), 2, f"{store} is damaged", "--config.data.rebuild=true")
    run.finish(workdir, *flags, "--config.data.rebuild=true")
