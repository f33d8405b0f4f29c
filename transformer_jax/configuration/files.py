"""Config files: Python files with a function get_config."""

import contextlib
import importlib.util
import inspect
import os
import pathlib
import traceback
import types
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.configuration.errors import UserError


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
