"""Opening a run for use: its task and its parameters."""

import os
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.distributed import sharding
from transformer_jax.runs import spec
from transformer_jax.runs.spec import Overrides, make_task
from transformer_jax.storage import buckets
from transformer_jax.training import step
from transformer_jax.training.checkpoint import Checkpoints

# The devices that `open_run` takes by default, by a name of this module that tests can replace.
local_devices = jax.local_devices


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
    in `config.load`, for example {"decode.beam": 1}.

    The parameters are a tree of float32 arrays, which is the argument `params` of the task's
    methods and of `task.model.apply({"params": params}, ...)`. They are on a mesh of `devices`, by
    default all local devices, with the sizes in `config.mesh` if these fit. A fine-tuned run has
    the parameters of its head under "head". With `config.decode.average` = N, the parameters are
    the mean of the N newest checkpoints up to that step. Adapters are merged into their matrices;
    with `merged=False` they are separate entries of the tree, as in training.

    `model_file`, `task_file` and `source_file` are the files of classes that are not in the
    package. They must be named, because the paths that a run has recorded are never executed.

    Raises UserError if there is no run or no such checkpoint, if the tokenizer has changed, or if
    such a file is not named or has changed.

    Examples:
      >>> task, params = transformer_jax.open_run("runs/gpt")  # the best checkpoint
      >>> task, params = transformer_jax.open_run("runs/gpt", "latest")
      >>> task.config.model.num_layers
      1
      >>> sorted(task.evaluate(params, "valid"))[:2]
      ['accuracy', 'bits_per_byte']
    """
    workdir = buckets.folder_of_run(workdir)
    files, overrides = configs.split_files(dict(overrides).items())
    class_files = {"model": model_file, "task": task_file, "source": source_file}
    files |= {name: configs.named_file(name, file) for name, file in class_files.items() if file}
    recorded = spec.read(workdir, files)
    config = recorded.config
    for section in files.keys() - configs.named_files(config).keys():
        raise UserError(
            f"config.{section}.name={files[section]}: {workdir} is a run of "
            f"config.{section}.name={config[section].name!r}; leave it out"
        )
    for key, value in overrides:
        configs.set_key(config, key, value)
    configs.validate(config)
    task = make_task(config, workdir)
    # With another tokenizer, the same ids would be other texts, without any error.
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
    # A generator, so that `mean` restores one checkpoint after another.
    stored = (checkpoints.restore_params(shapes, s) for s in steps)
    return task, mean(map(task.merged, stored) if merged else stored)


def checkpoint_steps(workdir) -> list[int]:
    """Returns the steps of the checkpoints of a run. Raises UserError if there are none."""
    workdir = buckets.folder_of_run(workdir)
    config = spec.read(workdir, needed=()).config
    steps = Checkpoints(workdir / "checkpoints", config.checkpoint, read_only=True).steps()
    if not steps:
        raise UserError(f"{workdir}/checkpoints: no checkpoint yet")
    return steps


def _shapes(task, devices: Sequence[jax.Device], is_given: bool) -> Any:
    """Returns the shapes, dtypes and shardings of a task's parameters on the devices.

    The recorded mesh of a run may not fit this machine. If so, all devices are on the mesh axis
    "data", unless the overrides give a mesh, for which UserError is raised if it does not fit.
    """
    mesh = task.config.mesh
    if mesh.pipeline > 1 and not is_given:
        # Decoding has no pipeline, and all devices are better used by splitting the rows.
        mesh.update(pipeline=1, data=-1)
    try:
        return step.abstract_params(task, sharding.make_mesh(mesh, devices), sharding.rules(mesh))
    except UserError:
        if is_given:
            raise
        mesh.update(dict.fromkeys(sharding.AXES, 1), data=-1, slices=1)
        return step.abstract_params(task, sharding.make_mesh(mesh, devices), sharding.rules(mesh))


def mean(trees: Iterable):
    """Returns the mean of parameter trees: checkpoint averaging (Vaswani et al. 2017, section 6.1).

    Only one tree at a time is in memory, in addition to the sum.
    """
    total, count = None, 0
    for tree in trees:
        total = tree if total is None else jax.tree.map(jnp.add, total, tree)
        count += 1
    return total if count == 1 else jax.tree.map(lambda x: x / count, total)


def load(workdir, step: str | int = "best", **files):
    """Returns (model, params, tokenizer) of a run. The tokenizer is None for data without text.

    `model.apply({"params": params}, ...)` takes int32 tokens (B, L) and returns float32 logits
    (B, L, V); the class of the model says more. A translation's tokenizer has the two sides .source
    and .target. The model of a fine-tuned run does not contain the new head, and a fine-tuned BERT
    has none of its pre-training heads either, so use `method="hidden"` there. `files` are the
    arguments `model_file`, `task_file` and `source_file` of `open_run`.

    Examples:
      >>> model, params, tokenizer = transformer_jax.load("runs/gpt")
      >>> tokens = jnp.array([tokenizer.encode("The cat")])
      >>> model.apply({"params": params}, tokens).shape[:2]  # one row of 7 characters
      (1, 7)
    """
    task, params = open_run(workdir, step, **files)
    return task.model, params, task.tokenizer
