"""The values of a config by key, and the changes that a resumed run may not make."""

from typing import Any

from ml_collections import ConfigDict

from transformer_jax.configuration import run_length
from transformer_jax.configuration.sections import INIT_FROM, MAY_CHANGE


def flat(config: ConfigDict) -> dict[str, Any]:
    """Returns {"section.key": value}."""
    values = {
        f"{name}.{key}": value
        for name, section in config.items()
        if name != INIT_FROM
        for key, value in section.items()
    }
    return {**values, INIT_FROM: config[INIT_FROM]}


def differences(old: ConfigDict, new: ConfigDict) -> list[str]:
    """Returns the changes that a resumed run may not make, each as "key: old -> new"."""
    num_steps = old.train.num_steps
    old_values = _at_length(old, num_steps)
    new_values = _at_length(new, num_steps)
    return [
        f"{key}: {old_values.get(key)} -> {new_values.get(key)}"
        for key in sorted({*old_values, *new_values})
        if not key.startswith(MAY_CHANGE) and old_values.get(key) != new_values.get(key)
    ]


def _at_length(config: ConfigDict, num_steps: int) -> dict[str, Any]:
    """Returns `flat` with the schedule in updates: 0.1 and 100 are equal in a run of 1,000."""
    values = flat(config)
    for key in ("optimizer.warmup_steps", "optimizer.decay_steps", "optimizer.cooldown_steps"):
        if values[key] is not None:
            values[key] = run_length.span(values[key], num_steps)
    return values
