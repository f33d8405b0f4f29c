"""The classes that `config.{model,task,source}.name` name, and the keys that they define."""

import dataclasses
import functools
import importlib
import inspect
import pkgutil
import typing
from typing import Any, Literal

from ml_collections import ConfigDict

from transformer_jax.configuration import suggestions, variants
from transformer_jax.configuration.errors import UserError

_FOLDERS = {"model": "models", "task": "tasks", "source": "data.sources"}
# Modules of these packages that define no family, task or source.
_SHARED = (
    *("task", "base", "masked_texts", "next_tokens", "pairs", "preferences", "word_task"),
    *("negative_sampling", "policy", "prompted", "advantages", "continued"),
    *("model", "attending", "causal", "cloze", "decoding"),
    *("sensory", "image_task", "protein_task", "speech"),
)


def names(section: str) -> list[str]:
    """Returns the models, tasks or sources that exist: the modules of the package."""
    package = importlib.import_module(f"transformer_jax.{_FOLDERS[section]}")
    modules = [name for name in _modules(*package.__path__) if name not in _SHARED]
    if section == "source":
        # Its folder also holds the readers of texts and tables.
        return [name for name in modules if _public_classes(section, _module(section, name))]
    return modules


@functools.cache
def _modules(*folders: str) -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(folders))


def named_class(section: Literal["model", "task", "source"], name: str) -> type:
    """Returns the one public dataclass of `transformer_jax/{models,tasks,data/sources}/<name>.py`,
    or of the file whose path the name is.

    Linen modules are dataclasses, too. Raises UserError for a name without such a module, and for a
    path that the user has not named.
    """
    if variants.is_path(name):
        module = variants.module(section, name)
    elif name in names(section):
        module = _module(section, name)
    else:
        known = ", ".join(names(section)) or "none"
        raise UserError(
            f"config.{section}.name={name!r}: no such {section}"
            f"{suggestions.near(name, names(section))}; there are: {known}; or a file, FILE.py"
        )
    classes = _public_classes(section, module)
    if len(classes) != 1:
        raise UserError(
            f"{module.__file__} must define exactly one public {section} class, "
            f"not {[cls.__name__ for cls in classes]}"
        )
    _module(section, section).check_class(classes[0], module.__file__)
    return classes[0]


def _module(section: str, name: str):
    return importlib.import_module(f"transformer_jax.{_FOLDERS[section]}.{name}")


def _public_classes(section: str, module) -> list[type]:
    """Returns the public classes of the section that a module defines. Others are their helpers.

    Without one, the public dataclasses of a model's or a task's module: the check of a class says
    what they lack.
    """
    base = getattr(_module(section, section), section.capitalize())
    public = [
        value
        for value in vars(module).values()
        if inspect.isclass(value)
        and value.__module__ == module.__name__
        and dataclasses.is_dataclass(value)
        and not value.__name__.startswith("_")
        and value is not base
    ]
    derived = [cls for cls in public if issubclass(cls, base)]
    return derived if derived or section == "source" else public


@functools.cache
def class_options(cls: type) -> dict[str, tuple[Any, Any]]:
    """Returns {key: (type, default)}: the fields that have a default."""
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


def build_source(config: ConfigDict):
    """Returns the source that `config.source` describes.

    Raises UserError where it names none.
    """
    if not config.source.name:
        there_are = ", ".join(names("source")) or "none"
        raise UserError(
            f"config.source.name is missing: config.task.name={config.task.name} reads records "
            f"that are not text; there are: {there_are}"
        )
    return named_class("source", config.source.name)(config.data, **options(config.source))
