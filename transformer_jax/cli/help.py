"""Help on the command line: suggestions for a wrong flag, the keys of a config, lack of memory."""

import contextlib
import sys
from typing import Any

from absl import flags

from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.configuration import suggestions, variants
from transformer_jax.training import memory

FLAGS = flags.FLAGS


def suggestion(word: str, argv: list[str]) -> str:
    """Returns '; did you mean ...?' for an unknown flag: another flag, else a key of the config."""
    of_modules = FLAGS.flags_by_module_dict().items()
    names = [
        f"--{flag.name}"
        for module, defined in of_modules
        for flag in defined
        if not module.startswith("absl")
    ]
    if flag := suggestions.known_elsewhere(word, names):
        return f"; did you mean {flag[0]}?"
    keys = _keys(argv)
    if key := _key_of_that_name(word, keys):
        return f"; did you mean {key}?"
    near_key = suggestions.near(word, keys).replace("mean ", "mean --config.")
    return suggestions.near(f"--{word}", names) or near_key


def _keys(argv: list[str]) -> list[str]:
    """Returns the keys of the program's config; without a config those that may change."""
    if "config" not in FLAGS and "workdir" not in FLAGS:
        return []
    keys = configs.all_keys(_value(argv, "config"))
    if "config" in FLAGS:
        return keys
    return [key for key in keys if key.startswith("decode.")]  # of a finished run


def _key_of_that_name(word: str, keys: list[str]) -> str:
    """Returns the key that another codebase calls `word`, or that was given without its section."""
    if names := suggestions.known_elsewhere(word, keys):
        return " and ".join(f"--config.{name}" for name in names)
    return " or ".join(f"--config.{key}" for key in keys if key.rpartition(".")[2] == word)


def _value(argv: list[str], name: str) -> str | None:
    """Returns the value of a flag, before the flags are parsed."""
    for argument, following in zip(argv, [*argv[1:], ""]):
        flag, equals, value = argument.lstrip("-").partition("=")
        if argument.startswith("-") and flag == name:
            return value if equals else following
    return None


def print_keys(path: str | None, overrides: list[tuple[str, str]]) -> None:
    """Prints every key of a config file with its overrides, and ends the program."""
    if not path:
        raise UserError("--help_config needs --config=FILE, whose model and task have the keys")
    print("\n".join(lines(configs.load(path, overrides), path)))
    sys.exit(0)


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


def out_of_memory(error: Exception, overrides: list[tuple[str, str]]) -> str:
    """Returns the line on a lack of memory, with the sizes and remedies that are known."""
    takes = remedies = ""
    # Without a run, or on an exhausted machine, the sizes stay unknown.
    with contextlib.suppress(Exception):
        if "step" in FLAGS:
            takes, remedies = _of_run(FLAGS.workdir, overrides)
        elif "config" in FLAGS and FLAGS.config:
            from transformer_jax import config

            remedies = memory.training_remedies(config.load(FLAGS.config, overrides))
    return memory.line(error, "", takes, remedies)


def _of_run(folder: str, overrides: list[tuple[str, str]]) -> tuple[str, str]:
    """Returns the size of a run's parameters, and the remedies for a decoding with them."""
    import jax

    from transformer_jax import config as configs
    from transformer_jax.runs import record
    from transformer_jax.runs.resolve import make_task
    from transformer_jax.training import state

    files, others = variants.split(overrides)
    config = record.read(folder, files).config
    for key, value in others:
        configs.set_key(config, key, value)
    shapes = state.abstract_params(make_task(config, folder))
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
    return f"parameters {memory.readable(size)}", memory.decoding_remedies(config)
