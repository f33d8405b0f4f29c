"""The optimizers and schedules that a config can name, the keys that each uses, and groups."""

import typing
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.configuration import run_length, suggestions
from transformer_jax.configuration.errors import UserError
from transformer_jax.configuration.sections import OPTIMIZERS, SCHEDULES, Optimizer
from transformer_jax.configuration.values import coerce

_ONE = 1 - 2**-25  # float32 rounds greater numbers to 1
_KEYS = {"name": OPTIMIZERS, "schedule": SCHEDULES}
_UPDATES = ("begin", "decay_steps", "warmup_steps", "cooldown_steps")


def sections(config) -> dict[str, Any]:
    """Returns {group: its section}; the group "" is `config.optimizer` itself.

    The section of another group is `config.optimizer` with the differences that
    `config.optimizer.groups` gives. Keys that the optimizer or schedule of the group does not use
    are not taken over. Raises UserError for a group that is malformed.
    """
    by_group = {"": config}
    types = typing.get_type_hints(Optimizer)
    for entry in config.groups:
        name, changes = _entry(entry)
        if name in by_group:
            raise _refusal(name, "named twice" if name else "the name is empty")
        section = ConfigDict(dict(config)).copy_and_resolve_references()
        for key, value in changes.items():
            if key not in types or key == "groups":
                near = suggestions.near(key, [*types])
                raise _refusal(name, f"config.optimizer has no key {key!r} for a group{near}")
            with section.ignore_type():
                section[key] = coerce(f"optimizer.groups, {name}: {key}", value, types[key])
        for chooser, keys in _KEYS.items():
            for key in _unused(section, chooser, keys) - changes.keys():
                with section.ignore_type():
                    section[key] = getattr(Optimizer, key)
        by_group[name] = section
    return by_group


def _entry(entry: Any) -> tuple[str, Mapping[str, Any]]:
    try:
        name, changes = entry
        changes = dict(changes)
    except (TypeError, ValueError):
        name, changes = None, {}
    if not isinstance(name, str) or not all(isinstance(key, str) for key in changes):
        raise UserError(
            f"config.optimizer.groups: {entry!r} is no group; "
            'one is (name, ((key, value), ...)), such as ("head", (("learning_rate", 1e-3),))'
        )
    return name, changes


def _refusal(group: str, reason: str) -> UserError:
    return UserError(f"config.optimizer.groups, {group!r}: {reason}")


def check(config: ConfigDict) -> None:
    """Raises UserError for the first value of an optimizer's section that can't be used."""
    if config.optimizer.begin:
        raise UserError(
            f"config.optimizer.begin={config.optimizer.begin}: is a key of a group; set it in "
            "config.optimizer.groups"
        )
    for group, section in sections(config.optimizer).items():
        try:
            _check_ranges(section)
            _check_updates(section, config.train.num_steps)
        except UserError as error:
            raise _refusal(group, str(error)) if group else error from None


def check_used(config: ConfigDict) -> None:
    """Raises UserError for a key that is set, and that the optimizer or schedule does not use.

    A run that is recorded is not checked, so that each run of an earlier version opens.
    """
    for group, section in sections(config.optimizer).items():
        try:
            for chooser, keys in _KEYS.items():
                _check_used(section, chooser, keys)
        except UserError as error:
            raise _refusal(group, str(error)) if group else error from None
        if section.name == "schedule_free" and section.schedule != "constant":
            raise UserError(
                f"config.optimizer.schedule={section.schedule}: "
                "config.optimizer.name=schedule_free needs the schedule constant"
            )


def _unused(section, chooser: str, keys: Mapping[str, tuple[str, ...]]) -> set[str]:
    """Returns the keys of the table `keys` that the chosen entry does not list."""
    return {key for used in keys.values() for key in used} - {*keys[section[chooser]]}


def _check_used(section, chooser: str, keys: Mapping[str, tuple[str, ...]]) -> None:
    """Raises UserError for a key that is set, and that the chosen entry does not use."""
    chosen = section[chooser]
    for key in sorted(_unused(section, chooser, keys)):
        if section[key] != getattr(Optimizer, key):
            users = ", ".join(name for name, used in keys.items() if key in used)
            raise UserError(
                f"config.optimizer.{key}={section[key]}: config.optimizer.{chooser}={chosen} "
                f"does not use it; leave it out, or take one of {users}"
            )


def _check_ranges(section) -> None:
    for key in ("learning_rate", "eps", "weight_decay", "clip_norm"):
        if section[key] < 0:
            raise UserError(f"config.optimizer.{key}={section[key]}: must not be negative")
    for key in ("b1", "b2", "momentum", "muon_momentum"):
        if not 0 <= section[key] < _ONE:
            raise UserError(
                f"config.optimizer.{key}={section[key]}: must be at least 0 and below 1"
            )
    for key in ("power", "decay_exponent"):
        if section[key] <= 0:
            raise UserError(f"config.optimizer.{key}={section[key]}: must be above 0")
    if section.name == "schedule_free" and not section.b1:
        raise UserError("config.optimizer.b1=0: schedule_free divides by it; must be above 0")
    if not 0 < section.layer_decay <= 1:
        raise UserError(
            f"config.optimizer.layer_decay={section.layer_decay}: must be above 0 and at most 1"
        )
    if not 0 <= section.final_fraction <= 1:
        raise UserError(
            f"config.optimizer.final_fraction={section.final_fraction}: must be from 0 to 1"
        )
    if section.ratio < 1:
        raise UserError(f"config.optimizer.ratio={section.ratio}: must be at least 1")


def _check_updates(section, num_steps: int) -> None:
    for key in _UPDATES:
        run_length.check(f"optimizer.{key}", section[key], least=int(key == "decay_steps"))
    begin = run_length.span(section.begin, num_steps)
    if begin >= num_steps:
        raise UserError(
            f"config.optimizer.begin={begin}: must be below config.train.num_steps={num_steps}"
        )
    num_steps -= begin
    warmup = run_length.span(section.warmup_steps, num_steps)
    if section.decay_steps is not None:
        decay = run_length.span(section.decay_steps, num_steps)
        if decay <= warmup:
            raise UserError(
                f"config.optimizer.decay_steps={decay}: must be more than "
                f"config.optimizer.warmup_steps={warmup}, or the rate falls to its end at once"
            )
