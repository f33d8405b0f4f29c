"""What the command line says beside its flags: what a wrong flag was meant to be, and the keys."""

import contextlib
import sys
from collections.abc import Callable

from absl import flags

from transformer_jax.config import UserError
from transformer_jax.configuration import suggestions
from transformer_jax.training import memory

FLAGS = flags.FLAGS


def meant(word: str, argv: list[str]) -> str:
    """'; did you mean ...?' for an unknown flag: another flag, else a key of the config."""
    modules = FLAGS.flags_by_module_dict().items()
    names = [
        f"--{flag.name}"
        for module, found in modules
        for flag in found
        if not module.startswith("absl")
    ]
    if flag := suggestions.known_elsewhere(word, names):
        return f"; did you mean {flag[0]}?"
    return suggestions.near(f"--{word}", names) or _meant_key(word, argv)


def _meant_key(word: str, argv: list[str]) -> str:
    """'; did you mean ...?' for a key that was given without its --config.section."""
    from transformer_jax import config

    if "config" not in FLAGS and "workdir" not in FLAGS:
        return ""
    keys = config.all_keys(_value(argv, "config"))
    if "config" not in FLAGS:  # the run has its config; the decoding may change
        keys = [key for key in keys if key.startswith("decode.")]
    if names := suggestions.known_elsewhere(word, keys):
        return f"; did you mean {' and '.join(f'--config.{name}' for name in names)}?"
    if names := [key for key in keys if key.rpartition(".")[2] == word]:
        return f"; did you mean {' or '.join(f'--config.{name}' for name in names)}?"
    return suggestions.near(word, keys).replace("mean ", "mean --config.")


def _value(argv: list[str], name: str) -> str | None:
    """The value of a flag, before the flags are parsed."""
    for argument, following in zip(argv, [*argv[1:], ""]):
        flag, given, value = argument.lstrip("-").partition("=")
        if argument.startswith("-") and flag == name:
            return value if given else following
    return None


def print_keys(load: Callable) -> None:
    """Ends the program after every key of the config that `load` gives: --help_config."""
    from transformer_jax.cli import key_help

    if not FLAGS.config:
        raise UserError("--help_config needs --config=FILE, which says which keys there are")
    print("\n".join(key_help.lines(load(), FLAGS.config)))
    sys.exit(0)


def out_of_memory(error: Exception, overrides: list[tuple[str, str]]) -> str:
    """The line on a lack of memory, with as much as can be known of the program's run."""
    takes = remedies = ""
    with contextlib.suppress(Exception):  # the machine is exhausted, or there is no such run
        if "step" in FLAGS:
            takes, remedies = _of_run(FLAGS.workdir, overrides)
        elif "config" in FLAGS and FLAGS.config:
            from transformer_jax import config

            remedies = memory.training_remedies(config.load(FLAGS.config, overrides))
    return memory.line(error, "", takes, remedies)


def _of_run(folder: str, overrides: list[tuple[str, str]]) -> tuple[str, str]:
    """What a run's parameters take, and the remedies for a decoding with them."""
    import jax

    from transformer_jax import config as configs
    from transformer_jax.runs import workdir
    from transformer_jax.training import state

    config, _ = workdir.read_config(folder)
    for key, value in overrides:
        configs.set_key(config, key, value)
    shapes = state.abstract_params(workdir.make_task(config, folder))
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
    return f"parameters {memory.shown(size)}", memory.decoding_remedies(config)
