"""Training: from a config to the updates of its run."""

import contextlib
import os
from collections.abc import Mapping

from ml_collections import ConfigDict

from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.configuration import variants
from transformer_jax.data.sources import file_digests
from transformer_jax.distributed import hosts
from transformer_jax.pictures import progress
from transformer_jax.runs import lock, record
from transformer_jax.runs.resolve import Overrides, Run, resolve
from transformer_jax.training import footprint, loop, vectors
from transformer_jax.training.program import Program
from transformer_jax.training.stop import Stop


def train(
    config: ConfigDict | str | os.PathLike,
    workdir,
    profile: tuple[int, int] | None = None,
    *,
    overrides: Overrides = (),
) -> dict[str, float]:
    """Trains the run that a config describes, or continues it from the newest checkpoint.

    Returns the last evaluation, {"valid/loss": ..., ...} as plain floats. `config` is the path of a
    config file, FILE.py or FILE.py:ARGUMENT, or a config, which stays as it is. `overrides` change
    it as in `config.load`: {"train.num_steps": 300}. `profile` is the first and the last update to
    trace.

    Raises UserError for a fault in config, data or workdir, RunError where the run cannot continue,
    Preempted after SIGTERM, Interrupted after Ctrl-C.
    """
    with Stop() as stop, progress.doing("preparing the run"), progress.never_silent():
        run = resolve(config, workdir, overrides)
        stop.grace = run.config.train.grace
        return _train(run, profile)


def _train(run: Run, profile: tuple[int, int] | None) -> dict[str, float]:
    config, workdir = run.config, run.workdir
    task = run.task()
    # A program that does not fit this machine is refused before data is read or a file written.
    program = Program.of(config, task)
    if run.origin:
        run.origin.match(config, program)
    vectors.check(task, program, is_new=not record.exists(workdir))
    with footprint.explained(config, program), _held(workdir):
        hosts.agree(_shared_keys(config) | record.versions())
        recorded = None
        with hosts.first():
            if not hosts.index():
                recorded = record.begin(config, task, workdir)
            elif not record.exists(workdir):
                raise UserError(
                    f"--workdir={workdir}: not the folder that process 0 has just written to; "
                    "it must be on storage that all hosts share"
                )
        file_digests.share()
        hosts.agree(task.fingerprint())
        return loop.run(
            config, task, workdir, program, profile, origin=run.origin, recorded=recorded
        )


def _held(workdir):
    """Process 0 holds the workdir for all."""
    return contextlib.nullcontext() if hosts.index() else lock.held(workdir)


def _shared_keys(config) -> Mapping:
    """Returns the keys that are equal on all hosts: all but the places of the data."""
    places = tuple(key for key in configs.MAY_CHANGE if key.startswith("data."))
    values = configs.flat(config).items()
    shared = {f"config.{key}": value for key, value in values if not key.startswith(places)}
    files = variants.in_config(config).items()
    return shared | {f"the file of config.{section}.name": file.digest for section, file in files}
