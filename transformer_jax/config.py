"""Configs: their files, overrides, and records.

The keys, types and defaults of the sections `model`, `task` and `source` come from the classes that
`config.model.name`, `config.task.name` and `config.source.name` name (`named_class`). The other
sections are the dataclasses in `configuration/sections.py`. A config file defines `get_config()` or
`get_config(arg)`, which returns `experiment(section={key: value})` with the differences from the
defaults. `load` reads such a file, applies overrides and validates the result.
"""

import inspect
import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.configuration import classes, coercion, old_names, sections
from transformer_jax.configuration.classes import (
    build_model,
    build_source,
    class_options,
    load_module,
    named_class,
    options,
    read,
)
from transformer_jax.configuration.coercion import (
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Range,
    Share,
    choice,
    coerce,
    describe,
)
from transformer_jax.configuration.errors import Interrupted, Preempted, RunError, UserError
from transformer_jax.configuration.sections import (
    INIT_FROM,
    INIT_FROM_MEANING,
    MAY_CHANGE,
    SECTIONS,
    SOURCE_NAME_MEANING,
    Checkpoint,
    Data,
    Decode,
    Lora,
    Mesh,
    Optimizer,
    Train,
    differences,
    flat,
    get,
    validate,
)

__all__ = [
    "Share",
    "Range",
    "PositiveInt",
    "PositiveFloat",
    "NonNegativeInt",
    "NonNegativeFloat",
    "Fraction",
    "INIT_FROM",
    "MAY_CHANGE",
    "SECTIONS",
    "Checkpoint",
    "Data",
    "Decode",
    "Interrupted",
    "Lora",
    "Mesh",
    "Optimizer",
    "Preempted",
    "RunError",
    "Train",
    "UserError",
    "all_keys",
    "build_model",
    "build_source",
    "chosen",
    "choice",
    "class_options",
    "describe",
    "differences",
    "experiment",
    "flat",
    "from_record",
    "get",
    "load",
    "load_module",
    "meaning",
    "named_class",
    "options",
    "read",
    "schema",
    "set_key",
    "tiny",
    "validate",
]


def chosen(config: ConfigDict) -> tuple[str, str, str]:
    """Returns the names of a config's model, task and source: the arguments of `schema`."""
    return tuple(config[section].name for section in classes.SECTIONS)


def schema(model: str, task: str, source: str = "") -> dict[str, tuple[Any, Any]]:
    """Returns {"section.key": (type, default)} for a run of `task` with `model`.

    `source` is "" if the task reads `config.data`. `init_from` is the only key without a section.
    """
    keys = {INIT_FROM: (str | None, None)}
    for section, name in zip(classes.SECTIONS, (model, task, source)):
        keys[f"{section}.name"] = (str, name)
        keys |= _class_keys(section, named_class(section, name)) if name else {}
    for section, cls in SECTIONS.items():
        keys |= _class_keys(section, cls)
    return keys


def _class_keys(section: str, cls: type) -> dict[str, tuple[Any, Any]]:
    return {f"{section}.{key}": value for key, value in class_options(cls).items()}


def all_keys(path: str | None = None) -> list[str]:
    """Returns the keys of the config file `path`, or, without a file, of all models and tasks."""
    try:
        config = load(path or "")
        return [*schema(*chosen(config))]
    except UserError:
        models, tasks = classes.names("model"), classes.names("task")
        triples = itertools.zip_longest(models, tasks, classes.names("source"))
        keys = [
            schema(model or models[0], task or tasks[0], source or "")
            for model, task, source in triples
        ]
        return [*dict.fromkeys(itertools.chain.from_iterable(keys))]


def experiment(**delta: Any) -> ConfigDict:
    """Returns a complete config, given its differences from the defaults.

    `model` and `task` need at least a name: `experiment(model={"name": "encoder_decoder"},
    task={"name": "translation"}, train={"batch": 96})`. A name may be the path of a Python file,
    which is then executed. Raises UserError for an unknown key or a value of the wrong type.
    """
    return _experiment(classes.with_files(delta))


def _experiment(delta: Mapping[str, Any]) -> ConfigDict:
    """Returns the config of `experiment`. The path of a file must be a `classes.File`."""
    for section in ("model", "task"):
        if not isinstance(delta.get(section), dict) or "name" not in delta[section]:
            raise UserError(
                f"config.{section}.name is missing: it names a file in {classes.folder(section)}"
            )
    delta = {
        section: old_names.current(section, value) if isinstance(value, dict) else value
        for section, value in delta.items()
    }
    source = delta.get("source", {})
    if not isinstance(source, dict):
        raise UserError(f"config.source={source!r} must be a dict of its keys")
    keys = schema(delta["model"]["name"], delta["task"]["name"], source.get("name", ""))
    values = {key: default for key, (_, default) in keys.items()}
    for section, value in delta.items():
        if section == INIT_FROM:
            values[section] = _value(section, value, keys)
        elif section not in (*SECTIONS, *classes.SECTIONS):
            near = coercion.near(section, [*SECTIONS, *classes.SECTIONS])
            near = near or _suggestion(section, keys)
            raise UserError(f"config has no section {section!r}{near}")
        elif not isinstance(value, dict):
            raise UserError(f"config.{section}={value!r} must be a dict of its keys")
        else:
            named = {f"{section}.{key}": entry for key, entry in value.items()}
            values |= {key: _value(key, entry, keys) for key, entry in named.items()}
    # A ConfigDict is built from a dict, because setting its 150 keys one by one takes 14 ms.
    config = {}
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        (config.setdefault(section, {}) if section else config)[name] = value
    return ConfigDict(config)


def meaning(key: str, model: str, task: str, source: str = "") -> str:
    """Returns the meaning of a key in `schema(model, task, source)`, the comment at its field."""
    if key == INIT_FROM:
        return INIT_FROM_MEANING
    if key == "source.name" and not source:
        return SOURCE_NAME_MEANING
    section, _, name = key.partition(".")
    names = dict(zip(classes.SECTIONS, (model, task, source)))
    cls = named_class(section, names[section]) if section in names else SECTIONS[section]
    if name == "name" and section in names:
        return " ".join(inspect.getdoc(cls).partition("\n\n")[0].split())
    return classes.of(cls)[name]


def _suggestion(key: str, keys: Mapping[str, tuple[Any, Any]]) -> str:
    """Returns '; did you mean ...?' for a key that is not in the schema of a config."""
    chosen = [keys[f"{section}.name"][1] for section in classes.SECTIONS]

    def explain(name: str) -> str:
        return "" if name.startswith("--") else meaning(name, *chosen)

    return coercion.key(key, keys, explain)


def set_key(config: ConfigDict, key: str, value: Any) -> None:
    """Sets `section.key`. A string is converted to the key's type, as on a command line."""
    section, _, name = key.rpartition(".")
    if section in classes.SECTIONS and name != "name":
        name, value = old_names.current_key(section, config[section].name, name, value)
        key = f"{section}.{name}"
    value = _value(key, value, schema(*chosen(config)))
    parent = config[section] if section else config
    with parent.ignore_type():
        parent[name] = value


def _value(key: str, value: Any, keys: Mapping[str, tuple[Any, Any]]) -> Any:
    """Returns a value converted to the type of its key in `keys`, the schema of the config."""
    if key not in keys:
        raise UserError(f"unknown key config.{key}{_suggestion(key, keys)}")
    kind, default = keys[key]
    if key.removesuffix(".name") in classes.SECTIONS:
        if value != default:
            raise UserError(f"config.{key} decides which keys exist: set it in the config file")
        return default
    return sections.canonical(value) if key == INIT_FROM else coerce(key, value, kind)


def load(
    path: str | os.PathLike, overrides: Mapping[str, Any] | Sequence[tuple[str, Any]] = ()
) -> ConfigDict:
    """Returns the validated config of `file.py` or `file.py:arg`, with overrides.

    Overrides are a mapping such as {"train.batch": 32}, or pairs with strings as on a command line,
    such as ("train.batch", "32"). Raises UserError for an error in the file, a key or a value.
    """
    files, others = classes.split(dict(overrides).items())
    with classes.in_place_of_names(files):
        config = read(path)
    for key, value in others:
        set_key(config, key, value)
    return _checked(config)


def _checked(config: ConfigDict) -> ConfigDict:
    validate(config)
    sections.check_used(config)
    return config


def tiny(path: str | os.PathLike) -> ConfigDict:
    """Returns the tiny variant of `file.py` or `file.py:arg`, which trains in seconds on a CPU.

    `TINY` in the file holds the keys to change, in the form that `experiment` takes. If it is a
    function, it is called like `get_config`. Raises UserError if the file has no `TINY`, or for a
    wrong key or value.
    """
    config = read(path)
    file, _, arg = os.fspath(path).partition(":")
    changes = getattr(load_module(file), "TINY", None)
    if changes is None:
        raise UserError(
            f"{file} has no TINY: add TINY = dict(model=dict(...), task=dict(...), "
            "train=dict(batch=8, num_steps=2)), the keys that make the config small"
        )
    if callable(changes):
        changes = changes(*([arg] if arg else []))
    for section, values in changes.items():
        for key, value in values.items():
            set_key(config, f"{section}.{key}", value)
    return _checked(config)


def from_record(values: dict, source: str, files: classes.Recorded | None = None) -> ConfigDict:
    """Returns the config whose `to_dict()` a run has recorded as JSON.

    Keys that have been added to the schema since then have their defaults. `source` is the name of
    the record in error messages. `files` decides which recorded paths of class files are used.
    """
    try:
        known, others = (files or classes.Recorded()).resolved(values)
        config = _experiment(known)
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    for section, keys in others.items():
        config[section] = ConfigDict(keys)
    return config
