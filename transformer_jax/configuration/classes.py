"""Config files, and the classes of models, tasks and sources that configs name."""

import contextlib
import contextvars
import dataclasses
import functools
import hashlib
import importlib
import importlib.util
import inspect
import io
import os
import pathlib
import pkgutil
import sys
import textwrap
import tokenize
import traceback
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from ml_collections import ConfigDict

from transformer_jax.configuration import coercion, old_names
from transformer_jax.configuration.errors import UserError

# --------------------------------------------------------------------------------------------------
# Config files, which are Python files with a function get_config.


def read(path: str | os.PathLike) -> ConfigDict:
    """Returns the config of `file.py` or `file.py:arg`, without validating it.

    Raises UserError if the file does not exist, or has an error in it.
    """
    path = os.fspath(path)
    file, _, arg = path.partition(":")
    if not pathlib.Path(file).is_file():
        raise UserError(f"--config={path}: no such file {file}")
    if not file.endswith(".py"):
        raise UserError(
            f"--config={path}: a config is a Python file, *.py; continue a run by its --workdir"
        )
    with explained(file):
        config = _call(file, arg, path)
    if not isinstance(config, ConfigDict):
        raise UserError(
            f"{file}: get_config() returns {type(config).__name__}, "
            "not a config made by experiment(...)"
        )
    return config


def _call(file: str, arg: str, path: str) -> Any:
    """Calls get_config of a config file, and returns its result."""
    module = load_module(file)
    if not hasattr(module, "get_config"):
        raise UserError("defines no get_config()")
    takes_arg = bool(inspect.signature(module.get_config).parameters)
    if arg and not takes_arg:
        raise UserError(f"--config={path}: {file} takes no argument")
    return module.get_config(*([arg] if arg else []))


@contextlib.contextmanager
def explained(file: str):
    """Turns an error in the user's `file` into a one-line UserError with the number of the line."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{file}: {error}") from None
    except (Exception, SystemExit) as error:
        message = " ".join(str(error).split())
        line = _line_in(file, error)
        raise UserError(f"{file}:{line}: {type(error).__name__}: {message}") from None


def _line_in(file: str, error: BaseException) -> int:
    """Returns the number of the line in `file` where an error was raised."""
    if isinstance(error, SyntaxError):
        return error.lineno or 1
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f.lineno for f in frames if os.path.abspath(f.filename) == os.path.abspath(file)]
    return lines[-1] if lines else 1


def load_module(file: str | pathlib.Path) -> types.ModuleType:
    """Returns a config file as a module, for `read` and for config files that vary another."""
    spec = importlib.util.spec_from_file_location(pathlib.Path(file).stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --------------------------------------------------------------------------------------------------
# Classes in files outside the package: `config.model.name="path/to/my_variant.py"`.
#
# Such a file is executed only if the user has named it in the command or in the config file of the
# command, in which case its path is a `File`. A path from the record of a run is a plain string and
# is never followed, because opening somebody else's run must not execute code.

PREFIX = "transformer_jax_variant_"  # start of the module names of such files
# The sections whose key `name` names a class. The fields of the class are the keys of the section.
SECTIONS = ("model", "task", "source")


class File(str):
    """The absolute path of a Python file that the user has named.

    The content is read once, so that what is executed is also what is hashed and recorded.
    """

    content: bytes

    @property
    def digest(self) -> str:
        """The SHA-256 of the content."""
        return hashlib.sha256(self.content).hexdigest()


_executed: list[File] = []
# The files that replace the names in a config file while it is being read.
_chosen = contextvars.ContextVar("chosen", default=types.MappingProxyType({}))


def is_path(name: Any) -> bool:
    """Returns whether the name of a class is the path of a file."""
    return isinstance(name, str) and name.endswith(".py")


def named(section: str, path: str | os.PathLike) -> File:
    """Returns the `File` for a path that the user names. Raises UserError if it can't be read."""
    if isinstance(path, File):
        return path
    path = os.path.abspath(os.path.expanduser(os.fspath(path)))
    if not is_path(path):
        raise UserError(f"config.{section}.name={path}: must be a Python file, *.py")
    file = File(path)
    try:
        file.content = pathlib.Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"config.{section}.name={path}: {error.strerror}") from None
    return file


def in_config(config: Mapping[str, Any]) -> dict[str, File]:
    """Returns {section: file} of the files that the user has named in a config."""
    names = {section: config[section].name for section in SECTIONS}
    return {section: name for section, name in names.items() if isinstance(name, File)}


def split(overrides: Iterable[tuple[str, Any]]) -> tuple[dict[str, File], list[tuple[str, Any]]]:
    """Returns {section: file} of the files that overrides name, and the other overrides."""
    overrides = list(overrides)
    files = {
        key.removesuffix(".name"): value
        for key, value in overrides
        if key.removesuffix(".name") in SECTIONS and is_path(value)
    }
    others = [(key, value) for key, value in overrides if key.removesuffix(".name") not in files]
    return {section: named(section, path) for section, path in files.items()}, others


@contextlib.contextmanager
def in_place_of_names(files: Mapping[str, File]):
    """In the context, config files use these classes in place of the ones that they name.

    This can't wait until a file has been read, because the class decides which keys exist.
    """
    token = _chosen.set({**_chosen.get(), **files})
    try:
        yield
    finally:
        _chosen.reset(token)


def with_files(delta: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a config's differences from the defaults, with each path of a file as a `File`."""
    delta = dict(delta)
    for section in SECTIONS:
        keys = delta.get(section, {})
        if not isinstance(keys, dict):
            continue
        name = _chosen.get().get(section) or keys.get("name")
        if is_path(name):
            delta[section] = {**keys, "name": named(section, name)}
    return delta


def executed() -> list[File]:
    """Returns the files that this process has executed, so that a worker can execute them, too."""
    return [*_executed]


def module(section: str, name: str) -> types.ModuleType:
    """Returns the module of a file, which is executed only once.

    Raises UserError for a path that is not a `File`, and for an error in the file.
    """
    if not isinstance(name, File):
        raise UserError(
            f"config.{section}.name={name}: a recorded path is not followed; name the file, "
            f"with --config.{section}.name=FILE"
        )
    # The content is part of the name: a file that has changed in this process is a new module.
    key = hashlib.sha256(name.encode() + name.content).hexdigest()[:16]
    module_name = PREFIX + f"{pathlib.Path(name).stem}_{key}"
    if module_name not in sys.modules:
        new_module = types.ModuleType(module_name)
        new_module.__file__ = str(name)
        sys.modules[module_name] = new_module  # where dataclasses and type hints look names up
        try:
            with explained(name):
                exec(compile(name.content, name, "exec"), vars(new_module))
        except UserError:
            del sys.modules[module_name]
            raise
        _executed.append(name)
    return sys.modules[module_name]


@dataclasses.dataclass(frozen=True)
class Recorded:
    """The class files of a recorded config, and the files that the user names for them.

    Attributes:
      digests: {section: SHA-256 of the recorded file}.
      files: {section: file that the user names}.
      needed: the sections whose classes will be used. In other sections a path may stay unresolved.
    """

    digests: Mapping[str, str] = dataclasses.field(default_factory=dict)
    files: Mapping[str, File] = dataclasses.field(default_factory=dict)
    needed: tuple[str, ...] = SECTIONS

    def resolved(self, values: dict) -> tuple[dict, dict]:
        """Returns the recorded sections, and separately the sections whose class is unknown.

        Raises UserError if a needed file is not named, or has another content.
        """
        known, others = dict(values), {}
        for section in SECTIONS:
            path = values.get(section, {}).get("name")
            if is_path(path) and self._is_unknown(section):
                others[section] = values[section]
                known[section] = {"name": ""}
            elif is_path(path):
                known[section] = {**values[section], "name": self._file(section, path)}
        return known, others

    def _is_unknown(self, section: str) -> bool:
        file = self.files.get(section)
        is_same = file is not None and file.digest == self.digests.get(section)
        return section not in self.needed and not is_same

    def _file(self, section: str, path: str) -> File:
        file, digest = self.files.get(section), self.digests.get(section)
        recorded = f"config.{section}.name={path} (SHA-256 {digest})"
        remedy = f"name it with --config.{section}.name=FILE (in Python: {section}_file=FILE)"
        if file is None:
            raise UserError(f"{recorded}: a recorded file is not executed by itself; {remedy}")
        if file.digest != digest:
            raise UserError(f"{recorded}: {file} is another file (SHA-256 {file.digest}); {remedy}")
        return file


# --------------------------------------------------------------------------------------------------
# The classes that `config.{model,task,source}.name` name, and the keys that they define.

# The name of a class is the name of a file in one of these folders. No registry is needed, and the
# other files are not imported.
_FOLDERS = {"model": "families", "task": "tasks", "source": "records"}


def folder(section: str) -> str:
    """Returns the folder whose files the names of a section are."""
    return f"transformer_jax/{_FOLDERS[section]}/"


def names(section: str) -> list[str]:
    """Returns the names of all models, tasks or sources, which are the files in their folder."""
    package = importlib.import_module(f"transformer_jax.{_FOLDERS[section]}")
    return [*_modules(*package.__path__)]


@functools.cache
def _modules(*folders: str) -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(folders))


def named_class(section: Literal["model", "task", "source"], name: str) -> type:
    """Returns the public model, task or source in `transformer_jax/{families,tasks,records}/`.

    `name` is the name of a file there, or the path of a file that the user has named. Raises
    UserError for an unknown name, for a path that the user has not named, and for a file that does
    not define exactly one such class.
    """
    if is_path(name):
        defining = module(section, name)
    elif name in names(section):
        defining = importlib.import_module(f"transformer_jax.{_FOLDERS[section]}.{name}")
    else:
        known = ", ".join(names(section)) or "none"
        raise UserError(
            f"config.{section}.name={name!r}: no such {section}"
            f"{coercion.near(name, names(section))}; there are: {known}; or a file, FILE.py"
        )
    classes = _public_classes(section, defining)
    if len(classes) != 1:
        raise UserError(
            f"{defining.__file__} must define exactly one public {section} class, "
            f"not {[cls.__name__ for cls in classes]}"
        )
    _contract(section).check_class(classes[0], defining.__file__)
    return classes[0]


def _contract(section: str):
    return importlib.import_module(f"transformer_jax.contracts.{section}")


def _public_classes(section: str, module) -> list[type]:
    """Returns the public classes of a section, such as models, that a module defines.

    Other classes in the module are helpers. If a model's or task's module has no such class, all
    its public dataclasses are returned, which Linen modules are, too, so that the check of the
    class can say what it lacks.
    """
    base = getattr(_contract(section), section.capitalize())
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
    """Returns {key: (type, default)} for the fields of a class that have a default."""
    hints = typing.get_type_hints(cls)
    linen_fields = ("parent", "name") if hasattr(cls, "apply") else ()
    return {
        field.name: (hints[field.name], field.default)
        for field in dataclasses.fields(cls)
        if field.default is not dataclasses.MISSING and field.name not in linen_fields
    }


@functools.cache
def _ranges(cls: type) -> dict[str, list[coercion.Range]]:
    hints = typing.get_type_hints(cls, include_extras=True)
    return {key: coercion.ranges(hints[key]) for key in class_options(cls)}


def check_ranges(cls: type, section: Mapping[str, Any], prefix: str) -> None:
    """Raises UserError for the first number of a section that is outside of its field's range.

    `prefix` is the prefix of the keys in messages, such as "train".
    """
    for key, value in section.items():
        for each in _ranges(cls).get(key, ()):
            each.check(f"{prefix}.{key}", value)


def options(section: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a section as keyword arguments of the class that it names."""
    return {key: value for key, value in section.items() if key != "name"}


def build_model(config: ConfigDict):
    """Returns the Linen module that `config.model` describes.

    Raises UserError for an invalid key; the model itself checks combinations of keys.
    """
    # A task may have recorded the config of another run's model under earlier names.
    section = old_names.current("model", config.model)
    cls = named_class("model", section["name"])
    check_ranges(cls, section, "model")
    model = cls(**options(section))
    model.check()
    return model


def build_source(config: ConfigDict):
    """Returns the source that `config.source` describes. Raises UserError if it names none."""
    if not config.source.name:
        there_are = ", ".join(names("source")) or "none"
        raise UserError(
            f"config.source.name is missing: config.task.name={config.task.name} reads records "
            f"that are not text; there are: {there_are}"
        )
    cls = named_class("source", config.source.name)
    check_ranges(cls, config.source, "source")
    return cls(config.data, **options(config.source))


# --------------------------------------------------------------------------------------------------
# The meaning of a key, which is the comment at its field in the source: `name: int = 1  # meaning`.


@functools.lru_cache
def of(cls: type) -> dict[str, str]:
    """Returns {field: its comment, or ""} of a dataclass and its base classes."""
    comments = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith(("transformer_jax.", PREFIX)):
            for name, comment in _comments(textwrap.dedent(inspect.getsource(base))).items():
                comments[name] = comment or comments.get(name, "")
    return comments


def _comments(source: str) -> dict[str, str]:
    """Returns {name: comment} for the annotated names in the body of a class.

    The comment follows the field on the same line, or is on the lines directly above it.
    """
    comments, depth, statement, above = {}, 0, [], []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.INDENT, tokenize.DEDENT):
            depth += 1 if token.type == tokenize.INDENT else -1
        elif token.type == tokenize.NEWLINE:
            behind = [token for token in statement if token.startswith("#")] or above
            if depth == 1 and statement[1:2] == [":"] and statement[0].isidentifier():
                comments[statement[0]] = " ".join(line.lstrip("# ").strip() for line in behind)
            statement, above = [], []
        elif token.type == tokenize.COMMENT and not statement:
            above.append(token.string)
        elif token.type == tokenize.NL and not statement:
            above = above if source.splitlines()[token.start[0] - 1].strip() else []
        elif token.type != tokenize.NL:
            statement.append(token.string)
    return comments
