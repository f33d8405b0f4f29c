"""Training: from a config to the updates of its run."""

import contextlib
import os
from collections.abc import Callable, Iterable

from ml_collections import ConfigDict

from transformer_jax.config import UserError
from transformer_jax.data.sources import text_files
from transformer_jax.distributed import hosts
from transformer_jax.pictures import progress
from transformer_jax.runs import lock, spec
from transformer_jax.runs.spec import Overrides, resolve
from transformer_jax.training import memory, trainer, warm_start
from transformer_jax.training.step import Program
from transformer_jax.training.stop import Stop


def train(
    config: ConfigDict | str | os.PathLike,
    workdir,
    profile: tuple[int, int] | None = None,
    *,
    overrides: Overrides = (),
    hooks: Iterable[trainer.Hook | tuple[int, Callable]] = (),
) -> dict[str, float]:
    """Trains the run that a config describes, or resumes it from its newest checkpoint.

    Args:
      config: the path of a config file, FILE.py or FILE.py:ARGUMENT, or a config, which is not
        modified.
      workdir: the folder of the run, on a disk or in a bucket.
      profile: the first and the last update to trace.
      overrides: changes to the config as in `config.load`, for example {"train.num_steps": 300}.
      hooks: functions to call between updates. With hooks=[(100, function)], function(trainer) is
        called after every 100th update and after the last one; `Trainer` in training/trainer.py
        lists what a hook can read.

    Returns the scores of the last evaluation, such as {"valid/loss": ...}, as plain floats. Raises
    UserError for an error in the config, the data or the workdir, RunError if the run can't
    continue, Preempted after SIGTERM, and Interrupted after Ctrl-C.
    """
    with Stop() as stop, progress.doing("preparing the run"), progress.never_silent():
        run = resolve(config, workdir, overrides)
        config, workdir = run.config, run.workdir
        stop.grace = config.train.grace
        task = run.task()
        # A config that does not fit this machine is refused here, before `begin` builds the data
        # and writes the first file.
        program = Program.of(config, task)
        if run.origin:
            run.origin.match(config, program)
        warm_start.check_vectors(task, program, is_new=not spec.exists(workdir))
        with memory.explained(task, program), _held(workdir):
            hosts.agree(run.shared_keys() | spec.versions())
            recorded = None
            with hosts.first():
                # Process 0 builds the data and writes the record; the others then find both.
                if not hosts.index():
                    recorded = spec.begin(config, task, workdir, run.files)
                elif not spec.exists(workdir):
                    raise UserError(
                        f"--workdir={workdir}: not the folder that process 0 has just written to; "
                        "it must be on storage that all hosts share"
                    )
            text_files.share()
            hosts.agree(task.fingerprint())
            return trainer.run(
                config,
                task,
                workdir,
                program,
                profile,
                origin=run.origin,
                recorded=recorded,
                hooks=hooks,
            )


def _held(workdir):
    """Holds the workdir in process 0, on behalf of all processes."""
    return contextlib.nullcontext() if hosts.index() else lock.held(workdir)
