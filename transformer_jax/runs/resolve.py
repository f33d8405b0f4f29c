"""From a config to the run that it describes."""

import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict, FrozenConfigDict

from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.configuration import optimizers, variants
from transformer_jax.data.sources import file_digests
from transformer_jax.distributed import hosts
from transformer_jax.runs import begin, record
from transformer_jax.runs.record import Record
from transformer_jax.storage import buckets
from transformer_jax.training import adapters
from transformer_jax.training.origin import Origin

Overrides = Mapping[str, Any] | Sequence[tuple[str, Any]]


@dataclasses.dataclass(frozen=True)
class Run:
    """A complete and validated description of a run. Nothing changes it.

    `config` is read-only. That of a task that takes it has the model of the run in
    `config.init_from`; that of a fine-tuning also has its labels by name. `workdir` is None for a
    run that is only planned.
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
    files, overrides = variants.split(dict(overrides).items())
    config = _copy(config, files)
    takes_model = begin.takes_model(config)
    of_model = [pair for pair in overrides if takes_model and pair[0].startswith("model.")]
    for key, value in overrides:
        if (key, value) not in of_model:  # the model of the earlier run is not known yet
            configs.set_key(config, key, value)
    configs.validate(config)
    recorded = record.find(workdir, variants.in_config(config))
    if not recorded:  # a run of an earlier version continues as it is
        optimizers.check_used(config)
    if recorded and recorded.config.task.name != config.task.name:
        raise UserError(
            f"--workdir={workdir}: holds a {recorded.config.task.name} run, "
            f"not a {config.task.name} one; take another folder"
        )
    earlier = recorded or begin.source(config)
    if takes_model:
        config = begin.with_model(config, earlier, of_model)
        config = _with_labels(config, recorded, earlier)
        if recorded and begin.names_same_run(config.init_from, recorded.config.init_from):
            config.init_from = recorded.config.init_from
    config = begin.with_other_models(config, recorded, earlier)
    if hosts.index():
        config.data.rebuild = False  # process 0 rebuilds the data
    workdir = buckets.folder_of_run(workdir) if workdir else None
    return Run(
        FrozenConfigDict(config),
        workdir,
        _tokenizer(earlier),
        begin.origin(config, workdir),
    )


def _copy(config: ConfigDict | str | os.PathLike, files: record.Files) -> ConfigDict:
    """Returns a config, or that of a file, with `files` in place of the classes that it names."""
    if isinstance(config, str | os.PathLike):
        with variants.in_place_of_names(files):
            return configs.read(config)
    if isinstance(config, ConfigDict) and {"model", "task", "source", *configs.SECTIONS} <= set(
        config
    ):
        config = ConfigDict(config).copy_and_resolve_references()
        with variants.in_place_of_names(files):
            return configs.experiment(**config.to_dict()) if files else config
    raise UserError(
        "train takes the path of a config file, or a config of config.load(...) or "
        f"config.experiment(...), not this {type(config).__name__}"
    )


def _with_labels(config: ConfigDict, recorded: Record | None, earlier: Record) -> ConfigDict:
    """Returns a config with its labels by name: its own, recorded, or in its data."""
    if "labels" not in config.task or config.task.labels:
        return config
    if recorded:
        labels = recorded.config.task.labels
    else:
        names = _task(config, _tokenizer(earlier)).names
        labels = begin.labels(names, config, earlier)
    configs.set_key(config, "task.labels", tuple(labels))
    return config


def make_task(config, workdir=None):
    """Returns the task that `config.task` names.

    It has the tokenizer of the run recorded in `workdir`, else that of `config.init_from`, else one
    of its own, as `config.data` says.
    """
    recorded = record.find(workdir, variants.in_config(config))
    earlier = recorded or begin.source(config)
    return _task(begin.with_other_models(config, recorded, earlier), _tokenizer(earlier))


def _tokenizer(earlier: Record | None):
    """Returns the folder of an earlier run's tokenizer."""
    return earlier.workdir / "tokenizer" if earlier else None


def _task(config, tokenizer):
    task = configs.named_class("task", config.task.name)
    if config.source.name and not task.reads_source:
        raise UserError(
            f"config.source.name={config.source.name!r}: config.task.name={config.task.name!r} "
            "reads config.data"
        )
    model = configs.named_class("model", config.model.name)
    if model.modality != task.modality:
        raise UserError(
            f"config.model.name={config.model.name!r}: reads {model.modality}, and "
            f"config.task.name={config.task.name!r} gives {task.modality}"
        )
    if task.reads_source:
        configs.build_source(config)  # raises its errors before anything is compiled
    file_digests.remember_in(config.data)
    if config.lora.rank is not None:
        task = adapters.adapted(task)
    return task(config, tokenizer, **configs.options(config.task))
