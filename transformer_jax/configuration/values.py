"""Values of keys: strings of the command line, and values of config files, as the declared type."""

import ast
import sys
import types
import typing
from typing import Any, Literal

from transformer_jax.configuration import suggestions
from transformer_jax.configuration.errors import UserError

_UNREADABLE = (ValueError, SyntaxError, TypeError, MemoryError, RecursionError)


def coerce(key: str, value: Any, kind: Any) -> Any:
    """Returns `value` as `kind`. A string is read as on a command line.

    Raises UserError for a value of another type.
    """
    refusal = UserError(f"config.{key}={value!r} is not {describe(kind)}")
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if type(None) in args and (value is None or str(value).lower() == "none"):
            return None
        if int in args and float in args:
            return _as_updates(value, refusal)
        return coerce(key, value, next(arg for arg in args if arg is not type(None)))
    if origin is Literal:
        if value not in args:
            raise UserError(f"{refusal}{suggestions.near(str(value), [str(arg) for arg in args])}")
        return value
    if kind is str:
        if not isinstance(value, str):
            raise refusal
        return value
    if isinstance(value, str):
        value = _literal(value, kind, refusal)
    if kind is float and type(value) in (int, float):
        if not abs(value) <= sys.float_info.max:  # false for nan, too
            raise refusal
        return float(value)
    if kind is int and type(value) is float and value.is_integer():
        return int(value)  # 1e5 is a whole number
    if (kind is tuple or origin is tuple) and isinstance(value, (list, tuple)):
        return _as_tuple(value)
    if type(value) is not kind or (kind is int and abs(value) > 2**63 - 1):
        raise refusal
    return value


def _literal(text: str, kind: Any, refusal: UserError) -> Any:
    """Returns the Python value of a string; of a bool None where it is neither true nor false."""
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower())
    try:
        return ast.literal_eval(text)
    except _UNREADABLE:
        raise refusal from None


def _as_updates(value: Any, refusal: UserError) -> int | float:
    """Returns a whole number of updates, or a fraction of the run as a float."""
    if isinstance(value, str):
        value = _literal(value, float, refusal)
    if type(value) is float and 0 < value < 1:
        return value
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int or abs(value) > 2**63 - 1:
        raise refusal
    return value


def _as_tuple(value: Any) -> Any:
    return tuple(_as_tuple(v) for v in value) if isinstance(value, (list, tuple)) else value


def describe(kind: Any) -> str:
    """Returns a type in words, such as "a whole number or none"."""
    args = typing.get_args(kind)
    if typing.get_origin(kind) is Literal:
        return "one of " + ", ".join(repr(arg) for arg in args)
    if int in args and float in args:
        return "a whole number of updates or a fraction of the run"
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return " or ".join("none" if arg is type(None) else describe(arg) for arg in args)
    in_words = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}
    return in_words.get(kind, "a tuple")
