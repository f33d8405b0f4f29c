"""Every key of a config with its type, default and meaning: --help_config."""

from typing import Any

from transformer_jax import config as configs


def lines(config, path: str) -> list[str]:
    """One line a key, as the config of `path` has it."""
    model, task = config.model.name, config.task.name
    found = [
        f"Keys of {path}. --config.KEY=VALUE sets one.",
        "KEY=VALUE here (type; default, where this config has another value): meaning",
    ]
    section = None
    for key, (kind, default) in configs.schema(model, task).items():
        if key.partition(".")[0] != section:
            section = key.partition(".")[0]
            found.append("")
        value = shown(configs.get(config, key))
        also = f"; default {shown(default)}" if value != shown(default) else ""
        meaning = configs.meaning(key, model, task)
        found.append(f"{key}={value} ({configs.describe(kind)}{also}): {meaning}")
    return found


def shown(value: Any) -> str:
    """A value as the command line takes it."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value) or "''"
