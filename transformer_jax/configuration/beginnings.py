"""The runs whose parameters a new run begins with: `config.init_from`.

It is the workdir of a run, or a mapping from prefixes of the new run's parameters: {"student": DIR}
gives student/x the parameter x of DIR. A value may hold more keys, as in {"student": {"run": DIR,
"part": "teacher", "layers": "::2"}}: student/x is then teacher/x of DIR, and the stacks have every
second layer of the stacks there.
"""

import ast
import dataclasses
from collections.abc import Mapping
from typing import Any

from transformer_jax.configuration import layer_numbers, suggestions
from transformer_jax.configuration.errors import UserError


@dataclasses.dataclass(frozen=True)
class Beginning:
    """A run that gives the parameters whose names begin with a prefix."""

    prefix: str  # "": all parameters without another prefix
    run: str  # the workdir
    part: str = ""  # the prefix of these parameters in that run
    layers: str = ""  # the layers to take of each stack, such as "0,2,4" or "::2"; "": all

    def chosen(self, num_layers: int) -> list[int]:
        """Returns the numbers of the layers to take of a stack of `num_layers`."""
        return layer_numbers.chosen(self.layers, num_layers)


def canonical(value: Any) -> str | tuple | None:
    """Returns a value of `config.init_from` as a workdir, or ((prefix, ((key, value), ...)), ...).

    Raises UserError for a value of another form.
    """
    if isinstance(value, str) and value[:1] in ("{", "("):
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            raise _refusal(value) from None
    if value is None or value == "None" or value == "none":
        return None
    if isinstance(value, str):
        return value
    runs = tuple(_canonical_of(value, prefix, run) for prefix, run in _pairs(value, value))
    if not runs or len({prefix for prefix, _ in runs}) < len(runs):
        raise _refusal(value)
    alone = dict(runs[0][1])
    return alone["run"] if len(runs) == 1 and runs[0][0] == "" and len(alone) == 1 else runs


def beginnings(value: str | tuple | None) -> tuple[Beginning, ...]:
    """Returns the runs that a canonical value of `config.init_from` names."""
    if not value:
        return ()
    if isinstance(value, str):
        return (Beginning("", value),)
    return tuple(Beginning(prefix, **dict(keys)) for prefix, keys in value)


def _canonical_of(value, prefix, run) -> tuple[str, tuple]:
    keys = {"run": run} if isinstance(run, str) else dict(_pairs(value, run))
    known = [field.name for field in dataclasses.fields(Beginning)][1:]
    for key in keys:
        if key not in known:
            near = suggestions.near(str(key), known)
            raise UserError(f"config.init_from: {prefix!r} has no key {key!r}{near}")
    if not isinstance(prefix, str) or not keys.get("run"):
        raise _refusal(value)
    if not all(isinstance(entry, str) for entry in keys.values()):
        raise _refusal(value)
    if not layer_numbers.is_valid(keys.get("layers", "")):
        raise UserError(
            f"config.init_from: {prefix!r} has layers={keys['layers']!r}, no numbers such as "
            "'0,2,4' and no slice such as '::2'"
        )
    return prefix.strip("/"), tuple((key, keys[key]) for key in known if keys.get(key))


def _pairs(value, mapping) -> list:
    """Returns the items of a mapping, or of its form in a record."""
    if isinstance(mapping, Mapping):
        return list(mapping.items())
    is_list = isinstance(mapping, (list, tuple))
    if is_list and all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in mapping):
        return list(mapping)
    raise _refusal(value)


def _refusal(value) -> UserError:
    return UserError(
        f"config.init_from={value!r} is no workdir, and no mapping from prefixes of parameters to "
        "workdirs such as {'teacher': 'runs/a', 'student': {'run': 'runs/a', 'layers': '::2'}}"
    )
