"""From a config to the run that it describes."""

import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict, FrozenConfigDict

from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.distributed import hosts
from transformer_jax.runs import begin, record
from transformer_jax.runs.record import Record
from transformer_jax.storage import buckets
from transformer_jax.training.origin import Origin

Overrides = Mapping[str, Any] | Sequence[tuple[str, Any]]


@dataclasses.dataclass(frozen=True)
class Run:
    """A complete and validated description of a run. Nothing changes it.

    `config` is read-only. That of a fine-tuning has the model of the run in `config.init_from`, and
    its labels by name. `workdir` is None for a run that is only planned.
    """

    config: FrozenConfigDict
    workdir: pathlib.Path | buckets.Path | None
    tokenizer: pathlib.Path | buckets.Path | None  # its folder; None: `config.data` says
    origin: Origin | None  # the run whose parameters this one begins with

    def task(self):
        """Returns the task that `config.task` names."""
        return _task(self.config, self.tokenizer)


def resolve(config: ConfigDict | str | os.PathLike, workdir=None, overrides: Overrides = ()) -> Run:
    """Returns the run that a config describes: read, completed and validated.

    `config` is the path of a config file, or a config, which stays as it is. A run that was begun
    in `workdir` continues. Raises UserError for a fault in the config or the runs that it names.
    """
    overrides = list(dict(overrides).items())
    config = _copy(config)
    of_model = [
        pair for pair in overrides if pair[0].startswith("model.") and begin.fine_tunes(config)
    ]
    for key, value in overrides:
        if (key, value) not in of_model:
            configs.set_key(config, key, value)
    configs.validate(config)
    workdir = buckets.folder_of_run(workdir) if workdir else None
    recorded = record.read(workdir) if workdir and record.exists(workdir) else None
    if recorded and recorded.config.task.name != config.task.name:
        raise UserError(
            f"--workdir={workdir}: holds a {recorded.config.task.name} run, "
            f"not a {config.task.name} one; take another folder"
        )
    if begin.fine_tunes(config):
        config = _completed(config, recorded, of_model)
    if hosts.index():
        config.data.rebuild = False  # process 0 rebuilds the data
    return Run(
        FrozenConfigDict(config),
        workdir,
        _tokenizer(config, workdir if recorded else None),
        begin.origin(config, workdir),
    )


def _copy(config: ConfigDict | str | os.PathLike) -> ConfigDict:
    if isinstance(config, str | os.PathLike):
        return configs.read(config)
    if isinstance(config, ConfigDict) and {"model", "task", *configs.SECTIONS} <= set(config):
        return ConfigDict(config).copy_and_resolve_references()
    raise UserError(
        "train takes the path of a config file, or a config of config.load(...) or "
        f"config.experiment(...), not this {type(config).__name__}"
    )


def _completed(config: ConfigDict, recorded: Record | None, of_model) -> ConfigDict:
    """Returns a fine-tuning config with the model it begins with, and its labels by name."""
    config, earlier = begin.with_model(config, recorded, of_model)
    if "labels" not in config.task or config.task.labels:
        return config
    if recorded:
        labels = earlier.task.labels
    else:
        labels = begin.labels(make_task(config).names, config, earlier)
    configs.set_key(config, "task.labels", tuple(labels))
    return config


def make_task(config, workdir=None):
    """Returns the task that `config.task` names.

    It has the tokenizer of the run recorded in `workdir`, else that of `config.init_from`, else one
    of its own, as `config.data` says.
    """
    recorded = workdir and record.exists(workdir)
    return _task(config, _tokenizer(config, buckets.folder_of_run(workdir) if recorded else None))


def _task(config, tokenizer):
    task = configs.named_class("task", config.task.name)
    return task(config, tokenizer, **configs.options(config.task))


def _tokenizer(config, recorded):
    """Returns the folder of the tokenizer of a run, which is recorded in `recorded`."""
    if recorded is not None:
        return recorded / "tokenizer"
    return begin.source(config) / "tokenizer" if config.init_from else None
