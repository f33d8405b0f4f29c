"""Classes in files outside the package: `config.model.name="path/to/my_variant.py"`.

Such a file is executed only if the user names it in the command, or in the config file of the
command. Then its path is a `File`. A path from a record is a plain string, and is never followed.
"""

import contextlib
import contextvars
import dataclasses
import hashlib
import os
import pathlib
import sys
import types
from collections.abc import Iterable, Mapping
from typing import Any

from transformer_jax.configuration.errors import UserError
from transformer_jax.configuration.files import explained

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


# The files that take the place of the names in a config file, while it is read.
_executed: list[File] = []
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
