"""Opening a run for use: its task and its parameters."""

import os
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.configuration import classes
from transformer_jax.distributed import sharding
from transformer_jax.runs import spec
from transformer_jax.runs.spec import Overrides, make_task
from transformer_jax.storage import buckets
from transformer_jax.training import state
from transformer_jax.training.checkpoint import Checkpoints

local_devices = jax.local_devices  # those that a use of a run takes


def open_run(
    workdir,
    step: str | int = "best",
    overrides: Overrides = (),
    *,
    merged: bool = True,
    devices: Sequence[jax.Device] | None = None,
    model_file: str | os.PathLike | None = None,
    task_file: str | os.PathLike | None = None,
    source_file: str | os.PathLike | None = None,
):
    """Returns (task, params) of a run.

    `step` is "best", "latest" or a number. `overrides` change the recorded config for this use, as
    in `config.load`: {"decode.beam": 1}. The parameters are a tree of float32 arrays, `params` of
    the task's methods and of `task.model.apply({"params": params}, ...)`. They stand on a mesh of
    `devices`, by default all local ones, with the sizes of `config.mesh` if they fit. A fine-tuned
    run has the parameters of its head under "head". With `config.decode.average` = N they are the
    mean of the N newest checkpoints up to that step. Adapters are merged into their matrices; with
    `merged=False` they stand beside them, as in training. `model_file`, `task_file` and
    `source_file` name the files of classes that are not in the package: what a run has recorded is
    not executed.

    Raises UserError where there is no run, no such checkpoint, or another tokenizer, and where such
    a file is not named or has changed.
    """
    workdir = buckets.folder_of_run(workdir)
    files, overrides = classes.split(dict(overrides).items())
    class_files = {"model": model_file, "task": task_file, "source": source_file}
    files |= {name: classes.named(name, file) for name, file in class_files.items() if file}
    recorded = spec.read(workdir, files)
    config = recorded.config
    for section in files.keys() - classes.in_config(config).keys():
        raise UserError(
            f"config.{section}.name={files[section]}: {workdir} is a run of "
            f"config.{section}.name={config[section].name!r}; leave it out"
        )
    for key, value in overrides:
        configs.set_key(config, key, value)
    configs.validate(config)
    task = make_task(config, workdir)
    if spec.tokenizer_fingerprint(task) != recorded.fingerprint["tokenizer"]:
        raise UserError(f"{workdir}/tokenizer: not the tokenizer this run was trained with")
    checkpoints = Checkpoints(workdir / "checkpoints", config.checkpoint, read_only=True)
    last, count = checkpoints.pick(step), config.decode.average
    steps = [s for s in checkpoints.steps() if s <= last][-count:]
    if len(steps) < count:
        raise UserError(
            f"config.decode.average={count}: {workdir} has {len(steps)} checkpoints up to step "
            f"{last}; config.checkpoint.keep decides how many stay"
        )
    is_given = any(key.startswith("mesh.") for key, _ in overrides)
    shapes = _shapes(task, local_devices() if devices is None else devices, is_given)
    stored = (checkpoints.restore_params(shapes, s) for s in steps)
    return task, mean(map(task.merged, stored) if merged else stored)


def _shapes(task, devices: Sequence[jax.Device], is_given: bool) -> Any:
    """Returns the shapes, dtypes and shardings of a task's parameters over the devices.

    The mesh that a run has recorded may not fit this machine. The devices then split rows alone,
    unless this use gives its own mesh. Raises UserError where that one does not fit.
    """
    mesh = task.config.mesh
    try:
        return state.abstract_params(task, sharding.make_mesh(mesh, devices), sharding.rules(mesh))
    except UserError:
        if is_given:
            raise
        mesh.update(dict.fromkeys(sharding.AXES, 1), data=-1)
        return state.abstract_params(task, sharding.make_mesh(mesh, devices), sharding.rules(mesh))


def mean(trees: Iterable):
    """Returns the mean of parameter trees: checkpoint averaging (Vaswani et al. 2017, section 6.1).

    Beside the sum, one tree at a time is in memory.
    """
    total, count = None, 0
    for tree in trees:
        total = tree if total is None else jax.tree.map(jnp.add, total, tree)
        count += 1
    return total if count == 1 else jax.tree.map(lambda x: x / count, total)


def load(workdir, step: str | int = "best", **files):
    """Returns (model, params, tokenizer) of a run; the tokenizer is None for data without text.

    `model.apply({"params": params}, ...)` takes int32 tokens (B, L) and gives float32 logits
    (B, L, V); see the class of the model. A translation's tokenizer has the sides .source and
    .target. A fine-tuned run's model has no head, and a fine-tuned BERT has none of the heads of
    pre-training: use `method="hidden"`. `files` are those that `open_run` takes.
    """
    task, params = open_run(workdir, step, **files)
    return task.model, params, task.tokenizer
