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

# A language model that is fine-tuned learns three new tokens: start, delimiter and extract
# (Radford et al. 2018, section 3.3).
_NEW_TOKENS = 3


def source(config) -> Record | None:
    """Returns the record of the run that `config.init_from` names; None where it names none.

    Of several runs it is the one without a prefix, else the first. Raises UserError where that
    workdir holds no run, or where a run without a prefix is of another model family. A task that
    takes the model of that run takes any family, a model those of its `begins_with`.
    """
    runs = beginnings(config.init_from)
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


def _record(beginning: Beginning, config) -> Record:
    if not record.exists(beginning.run):
        raise UserError(f"config.init_from={beginning.run}: no run here (no config.json)")
    return record.read(beginning.run, variants.in_config(config), needed=("model",))


def origin(config, workdir) -> Origin | None:
    """Returns the runs whose parameters the run in `workdir` begins with.

    None for a run that initialises its parameters, or continues from a checkpoint of its own.
    """
    if workdir is None or not config.init_from or not config.train.pretrained:
        return None
    checkpoints = buckets.folder_of_run(workdir) / "checkpoints"
    if checkpoints.is_dir() and Checkpoints(checkpoints, config.checkpoint, read_only=True).steps():
        return None
    source(config)  # raises for another family
    parts = []
    for beginning in beginnings(config.init_from):
        earlier = _record(beginning, config)
        own = [beginning]
        if isinstance(config.init_from, str):
            of_family = _others(config).get(earlier.config.model.name, {}).items()
            own = [Beginning(prefix, beginning.run, **keys) for prefix, keys in of_family] or own
        parts += [Part(earlier.workdir, earlier.config, each) for each in own]
    return Origin(tuple(parts))


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
    model = configs.named_class("model", config.model.name)
    if model.kind == "causal" and fine_tunes(config) and not earlier.has_head:
        configs.set_key(config, "model.vocab_size", config.model.vocab_size + _NEW_TOKENS)
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


def labels(names: list[str], config, earlier: Record) -> list[str]:
    """Returns the labels of a fine-tuning, `names` in its training examples.

    They keep the order of the earlier run's head where that head has all of them.
    """
    if earlier.config.task.name != config.task.name:
        return names
    of_head = [str(label) for label in earlier.config.task.labels]
    return of_head if set(names) <= set(of_head) else names
