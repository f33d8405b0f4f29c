"""Config files, and the classes of models, tasks and sources that they name."""

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
# Config files: Python files with a function get_config.


def read(path: str | os.PathLike) -> ConfigDict:
    """Returns the config of `file.py` or `file.py:arg`, not validated. Raises UserError."""
    path = os.fspath(path)
    file, _, arg = path.partition(":")
    if not pathlib.Path(file).is_file():
        raise UserError(f"--config={path}: no such file {file}")
    if not file.endswith(".py"):
        raise UserError(
            f"--config={path}: a config is a Python file, *.py; a run goes on by its --workdir"
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
    """Returns the value of the file's get_config."""
    module = load_module(file)
    if not hasattr(module, "get_config"):
        raise UserError("defines no get_config()")
    takes_arg = bool(inspect.signature(module.get_config).parameters)
    if arg and not takes_arg:
        raise UserError(f"--config={path}: {file} takes no argument")
    return module.get_config(*([arg] if arg else []))


@contextlib.contextmanager
def explained(file: str):
    """Turns an error of the user's `file` into a UserError: one line with the line's number."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{file}: {error}") from None
    except (Exception, SystemExit) as error:
        message = " ".join(str(error).split())
        line = _line_in(file, error)
        raise UserError(f"{file}:{line}: {type(error).__name__}: {message}") from None


def _line_in(file: str, error: BaseException) -> int:
    """Returns the line of `file` where an error arose."""
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
# Such a file is executed only if the user names it in the command, or in the config file of the
# command. Then its path is a `File`. A path from a record is a plain string, and is never followed.

PREFIX = "transformer_jax_variant_"  # of the names of the modules of such files
# Sections whose key `name` names a class. Its fields are the keys of the section.
SECTIONS = ("model", "task", "source")


class File(str):
    """The absolute path of a Python file that the user has named, with the file's content then."""

    content: bytes

    @property
    def digest(self) -> str:
        """The SHA-256 of the content."""
        return hashlib.sha256(self.content).hexdigest()


_executed: list[File] = []
# The files that take the place of the names in a config file while it is read.
_chosen = contextvars.ContextVar("chosen", default=types.MappingProxyType({}))


def is_path(name: Any) -> bool:
    """Returns whether the name of a class is the path of a file."""
    return isinstance(name, str) and name.endswith(".py")


def named(section: str, path: str | os.PathLike) -> File:
    """Returns a file that the user names. Raises UserError where it can't be read."""
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
    """Returns the files that the user has named in a config, by section."""
    names = {section: config[section].name for section in SECTIONS}
    return {section: name for section, name in names.items() if isinstance(name, File)}


def split(overrides: Iterable[tuple[str, Any]]) -> tuple[dict[str, File], list[tuple[str, Any]]]:
    """Returns the files that overrides name, by section, and the other overrides."""
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
    """Config files that are read now have these classes in place of those that they name.

    A name decides which keys exist, so that it comes before the keys.
    """
    token = _chosen.set({**_chosen.get(), **files})
    try:
        yield
    finally:
        _chosen.reset(token)


def with_files(delta: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the differences of a config that the user gives, with the `File` of each path."""
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
    """Returns the files that this process has executed. Another process can execute them, too."""
    return [*_executed]


def module(section: str, name: str) -> types.ModuleType:
    """Returns the module of a file, executed once. Raises UserError for a path that is no `File`,
    and for an error in the file.
    """
    if not isinstance(name, File):
        raise UserError(
            f"config.{section}.name={name}: a recorded path is not followed; name the file, "
            f"with --config.{section}.name=FILE"
        )
    key = hashlib.sha256(name.encode() + name.content).hexdigest()[:16]
    module_name = PREFIX + f"{pathlib.Path(name).stem}_{key}"
    if module_name not in sys.modules:
        of_file = types.ModuleType(module_name)
        of_file.__file__ = str(name)
        sys.modules[module_name] = of_file  # dataclasses and type hints look there
        try:
            with explained(name):
                exec(compile(name.content, name, "exec"), vars(of_file))
        except UserError:
            del sys.modules[module_name]
            raise
        _executed.append(name)
    return sys.modules[module_name]


@dataclasses.dataclass(frozen=True)
class Recorded:
    """The files of a recorded config, and those that the user names in their place.

    Attributes:
      digests: the SHA-256 of the recorded files, by section.
      files: the files that the user names, by section.
      needed: the sections whose class is used. Others keep their path, which stays unused.
    """

    digests: Mapping[str, str] = dataclasses.field(default_factory=dict)
    files: Mapping[str, File] = dataclasses.field(default_factory=dict)
    needed: tuple[str, ...] = SECTIONS

    def resolved(self, values: dict) -> tuple[dict, dict]:
        """Returns the recorded sections, and those apart whose class is not known.

        Raises UserError where a needed file is not named, or has another content.
        """
        known, others = dict(values), {}
        for section in SECTIONS:
            path = values.get(section, {}).get("name")
            if is_path(path) and self._is_other(section):
                others[section] = values[section]
                known[section] = {"name": ""}
            elif is_path(path):
                known[section] = {**values[section], "name": self._file(section, path)}
        return known, others

    def _is_other(self, section: str) -> bool:
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

# A name is that of a file in one of these folders. Other files are not imported.
_FOLDERS = {"model": "families", "task": "tasks", "source": "records"}


def names(section: str) -> list[str]:
    """Returns the models, tasks or sources that exist: the names of the files in their folder."""
    package = importlib.import_module(f"transformer_jax.{_FOLDERS[section]}")
    return [*_modules(*package.__path__)]


@functools.cache
def _modules(*folders: str) -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(folders))


def named_class(section: Literal["model", "task", "source"], name: str) -> type:
    """Returns the one public class of `transformer_jax/{families,tasks,records}/<name>.py`
    that is a model, a task or a source, or that of the file whose path the name is.

    Linen modules are dataclasses, too. Raises UserError for a name without such a module, and for a
    path that the user has not named.
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
    """Returns the public classes of the section that a module defines. Others are their helpers.

    Without one, the public dataclasses of a model's or a task's module: the check of a class says
    what they lack.
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
    """Returns {key: (type, default)}: the fields that have a default."""
    hints = typing.get_type_hints(cls)
    of_linen = ("parent", "name") if hasattr(cls, "apply") else ()
    return {
        field.name: (hints[field.name], field.default)
        for field in dataclasses.fields(cls)
        if field.default is not dataclasses.MISSING and field.name not in of_linen
    }


@functools.cache
def _ranges(cls: type) -> dict[str, list[coercion.Range]]:
    hints = typing.get_type_hints(cls, include_extras=True)
    return {key: coercion.ranges(hints[key]) for key in class_options(cls)}


def check_ranges(cls: type, section: Mapping[str, Any], prefix: str) -> None:
    """Raises UserError for the first number of a section that the field of its class excludes.

    `prefix` is that of the keys in messages, such as "train".
    """
    for key, ranges in _ranges(cls).items():
        for each in ranges if key in section else ():
            each.check(f"{prefix}.{key}", section[key])


def options(section: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keyword arguments of the class that a section names."""
    return {key: value for key, value in section.items() if key != "name"}


def build_model(config: ConfigDict):
    """Returns the Linen module that `config.model` describes. The model checks its own keys."""
    section = old_names.current("model", config.model)  # a task may have recorded another model's
    cls = named_class("model", section["name"])
    check_ranges(cls, section, "model")
    model = cls(**options(section))
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
    cls = named_class("source", config.source.name)
    check_ranges(cls, config.source, "source")
    return cls(config.data, **options(config.source))


# --------------------------------------------------------------------------------------------------
# The meaning of a key: the comment at its field in the source, `name: int = 1  # meaning`.


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
    """Returns {name: comment} of the annotated names in the body of a class.

    The comment is behind a field, else on the lines right above it.
    """
    comments, depth, statement, above = {}, 0, [], []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.INDENT, tokenize.DEDENT):
            depth += 1 if token.type == tokenize.INDENT else -1
        elif token.type == tokenize.NEWLINE:
            behind = [statement.pop()] if statement and statement[-1].startswith("#") else above
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
