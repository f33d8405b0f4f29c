"""The classes that `config.model.name` and `config.task.name` name, and the keys they define."""

import dataclasses
import importlib
import inspect
import pkgutil
import typing
from typing import Any, Literal

from ml_collections import ConfigDict

from transformer_jax.configuration import suggestions
from transformer_jax.configuration.errors import UserError

_SHARED = ("task", "base", "model")  # modules of the two packages that define no family or task


def names(section: str) -> list[str]:
    """Returns the models, or tasks, that exist: the modules of the package."""
    folders = importlib.import_module(f"transformer_jax.{section}s").__path__
    return sorted(m.name for m in pkgutil.iter_modules(folders) if m.name not in _SHARED)


def named_class(section: Literal["model", "task"], name: str) -> type:
    """Returns the one public dataclass of `transformer_jax/{models,tasks}/<name>.py`.

    Linen modules are dataclasses, too. Raises UserError for a name without such a module.
    """
    if name not in names(section):
        raise UserError(
            f"config.{section}.name={name!r}: no such {section}"
            f"{suggestions.near(name, names(section))}; there are: {', '.join(names(section))}"
        )
    module = importlib.import_module(f"transformer_jax.{section}s.{name}")
    classes = [
        value
        for value in vars(module).values()
        if inspect.isclass(value)
        and value.__module__ == module.__name__
        and dataclasses.is_dataclass(value)
        and not value.__name__.startswith("_")
    ]
    if len(classes) != 1:
        raise UserError(
            f"{module.__file__} must define exactly one public {section} class, "
            f"not {[cls.__name__ for cls in classes]}"
        )
    if section == "model":
        kinds = importlib.import_module("transformer_jax.models.model")
        kinds.check_class(classes[0], module.__file__)
    return classes[0]


def class_options(cls: type) -> dict[str, tuple[Any, Any]]:
    """Returns {key: (type, default)}: the fields of a model or task that have a default."""
    hints = typing.get_type_hints(cls)
    of_linen = ("parent", "name") if hasattr(cls, "apply") else ()
    return {
        field.name: (hints[field.name], field.default)
        for field in dataclasses.fields(cls)
        if field.default is not dataclasses.MISSING and field.name not in of_linen
    }


def options(section: ConfigDict) -> dict[str, Any]:
    """Returns the keyword arguments of the class that a section names."""
    return {key: value for key, value in section.items() if key != "name"}


def build_model(config: ConfigDict):
    """Returns the Linen module that `config.model` describes. The model checks its own keys."""
    model = named_class("model", config.model.name)(**options(config.model))
    model.check()
    return model
