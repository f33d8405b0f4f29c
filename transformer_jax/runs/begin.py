"""Beginning with another run: `config.init_from` gives parameters, tokenizer and, to a task that
takes it, the shape of the model.
"""

import dataclasses

from ml_collections import ConfigDict

from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.configuration import variants
from transformer_jax.configuration.beginnings import Beginning, beginnings
from transformer_jax.runs import record
from transformer_jax.runs.record import Record, fine_tunes, takes_model
from transformer_jax.storage import buckets
from transformer_jax.training.checkpoint import Checkpoints
from transformer_jax.training.origin import Origin, Part


def source(config) -> Record | None:
    """Returns the record of the run that `config.init_from` names; None where it names none.

    Of several runs it is the one without a prefix, else the first. Those that the task names come
    last. Raises UserError where that
    workdir holds no run, or where a run without a prefix is of another model family. A task that
    takes the model of that run takes any family, a model those of its `begins_with`.
    """
    runs = (*beginnings(config.init_from), *_of_task(config))
    if not runs:
        return None
    main = next((run for run in runs if not run.prefix), runs[0])
    earlier = _record(main, config)
    model = earlier.config.model.name
    may_differ = takes_model(config) and "model" not in variants.in_config(config)
    may_differ = may_differ or model in _others(config)
    if model != config.model.name and not main.prefix and not may_differ:
        raise UserError(
            f"config.init_from={main.run}: a run of config.model.name={model!r}, "
            f"not {config.model.name!r}"
        )
    return earlier


def _others(config):
    """Returns the other families that a run of this model may begin with, and their parts."""
    return configs.named_class("model", config.model.name).begins_with


def _task(config):
    return configs.named_class("task", config.task.name)


def _of_task(config) -> tuple[Beginning, ...]:
    """Returns the runs that keys of config.task name. The prefix of each is its key."""
    keys = _task(config).other_runs
    return tuple(Beginning(key, config.task[key]) for key in keys if config.task[key])


def _record(beginning: Beginning, config) -> Record:
    if not record.exists(beginning.run):
        key = f"task.{beginning.prefix}" if beginning in _of_task(config) else configs.INIT_FROM
        raise UserError(f"config.{key}={beginning.run}: no run here (no config.json)")
    return record.read(beginning.run, variants.in_config(config), needed=("model",))


def origin(config, workdir) -> Origin | None:
    """Returns the runs whose parameters the run in `workdir` begins with.

    None for a run that initialises its parameters, or continues from a checkpoint of its own.
    """
    init_from = config.init_from if config.train.pretrained else None
    task = _task(config)
    needs_run = task.begins_with_run and config.train.pretrained
    if workdir is None or not (init_from or task.other_runs or needs_run):
        _check_adapted(config, workdir)
        return None
    checkpoints = buckets.folder_of_run(workdir) / "checkpoints"
    if checkpoints.is_dir() and Checkpoints(checkpoints, config.checkpoint, read_only=True).steps():
        return None
    for key in task.other_runs:
        if not config.task[key]:
            raise UserError(f"config.task.{key} is missing: the workdir of a run")
    if needs_run and not init_from:
        raise UserError("config.init_from is missing: the workdir of the run to train further")
    source(config)  # raises for another family
    parts = []
    for beginning in (*beginnings(init_from), *_of_task(config)):
        earlier = _record(beginning, config)
        own = [beginning]
        if isinstance(init_from, str) and not beginning.prefix:
            of_family = _others(config).get(earlier.config.model.name, {}).items()
            own = [Beginning(prefix, beginning.run, **keys) for prefix, keys in of_family] or own
        parts += [Part(earlier.workdir, earlier.config, each) for each in own]
    return Origin(tuple(parts))


def _check_adapted(config, workdir) -> None:
    """Raises UserError where a run has adapters, but names no model that they adapt."""
    if config.lora.rank is not None and workdir is not None and not config.init_from:
        raise UserError(
            f"config.lora.rank={config.lora.rank}: adapters need a trained model; name its run, "
            "with --config.init_from=DIR"
        )


def with_other_models(config, recorded: Record | None, earlier: Record | None):
    """Returns a config with the models of the runs that its task names.

    `recorded` is the run that it continues; it knows these models. `earlier` gives the tokenizer.
    Raises UserError where one of these runs has another tokenizer.
    """
    if not _of_task(config):
        return config
    config = ConfigDict(config).copy_and_resolve_references()
    for beginning in _of_task(config):
        key = f"{beginning.prefix}_model"
        if recorded:
            configs.set_key(config, f"task.{key}", recorded.config.task[key])
            continue
        other = _record(beginning, config)
        if other.fingerprint["tokenizer"] != earlier.fingerprint["tokenizer"]:
            raise UserError(
                f"config.task.{beginning.prefix}={beginning.run}: has another tokenizer than "
                f"{earlier.workdir}, with whose parameters the run begins"
            )
        configs.set_key(config, f"task.{key}", tuple(other.config.model.items()))
    return config


def with_model(config: ConfigDict, earlier: Record | None, overrides) -> ConfigDict:
    """Returns a config with the model of an earlier run, for a task that takes it.

    `earlier` is the run that it continues, else the run that it begins with. The keys of
    config.model that differ from their defaults, and `overrides`, change that model. Raises
    UserError where a fine-tuning has no such run; other tasks then begin anew.
    """
    if earlier is None and fine_tunes(config):
        raise UserError(
            "config.init_from is missing: the run (or converted checkpoint) to fine-tune"
        )
    changes = list(overrides)
    if earlier is not None:
        changes = [*_non_defaults(config.model), *overrides]
        with config.ignore_type():
            config.model = earlier.config.model
        if new_tokens := _task(config).new_tokens(config, earlier):
            size = config.model.vocab_size + new_tokens
            configs.set_key(config, "model.vocab_size", size)
    for key, value in changes:
        configs.set_key(config, key, value)
    configs.validate(config)
    return config


def _non_defaults(model: ConfigDict) -> list[tuple[str, object]]:
    """Returns the keys of a model's section that differ from the defaults of its class."""
    defaults = configs.class_options(configs.named_class("model", model.name))
    values = configs.options(model).items()
    return [(f"model.{key}", value) for key, value in values if value != defaults[key][1]]


def names_same_run(init_from: str | tuple | None, recorded: str | tuple | None) -> bool:
    """Returns whether a config names the runs that its record names, or leaves them out."""
    if not recorded:
        return False
    return not init_from or _absolutes(init_from) == _absolutes(recorded)


def _absolutes(init_from: str | tuple) -> list:
    return [
        (_absolute(beginning.run), dataclasses.replace(beginning, run=""))
        for beginning in beginnings(init_from)
    ]


def _absolute(folder: str):
    if "://" in str(folder):
        return str(folder).rstrip("/")
    return buckets.path(folder).resolve()


def labels(names: list[str], config, earlier: Record | None) -> list[str]:
    """Returns the labels of a task, `names` in its training examples.

    They keep the order of the earlier run's head where that head has all of them.
    """
    if earlier is None or earlier.config.task.name != config.task.name:
        return names
    of_head = [str(label) for label in earlier.config.task.labels]
    return of_head if set(names) <= set(of_head) else names
