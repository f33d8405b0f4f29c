"""The keys of a config with types, defaults and meanings, for --help_config."""

from typing import Any

from transformer_jax import config as configs


def lines(config, path: str) -> list[str]:
    """Returns one line a key, with the values that the config of `path` has."""
    names = configs.chosen(config)
    text = [
        f"Keys of {path}. --config.KEY=VALUE sets one.",
        "KEY=VALUE here (type; default, where this config has another value): meaning",
    ]
    section = None
    for key, (kind, default) in configs.schema(*names).items():
        if key.partition(".")[0] != section:
            section = key.partition(".")[0]
            text.append("")
        value = as_flag(configs.get(config, key))
        other_default = f"; default {as_flag(default)}" if value != as_flag(default) else ""
        meaning = configs.meaning(key, *names)
        text.append(f"{key}={value} ({configs.describe(kind)}{other_default}): {meaning}")
    return text


def as_flag(value: Any) -> str:
    """Returns a value in the form that the command line takes."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value) or "''"
