"""Trains any task: python -m transformer_jax.train --config=configs/gpt/quickstart.py --workdir=DIR

Pre-training and fine-tuning alike; --seeds is for the latter. With --help_config it prints every
key of the config with its type, default and meaning instead, and needs no --workdir.
"""

import sys
import types

from transformer_jax import finetune
from transformer_jax.cli import process as cli
from transformer_jax.config import UserError


def main() -> None:
    from transformer_jax.runs import workdir

    config, _ = cli.load_config(without="model.")
    if workdir.fine_tunes(config):
        return finetune.main()
    if cli.FLAGS.seeds:
        raise UserError(
            f"--seeds={cli.FLAGS.seeds}: for fine-tuning alone; "
            f"config.task.name={config.task.name!r} is none"
        )
    cli.train()


class _Program(types.ModuleType):
    """This module, callable: importing it must not hide the function `transformer_jax.train`."""

    def __call__(self, *arguments, **options):
        from transformer_jax.runs import workdir

        return workdir.train(*arguments, **options)


sys.modules[__name__].__class__ = _Program

if __name__ == "__main__":
    cli.run(main, finetune.define_flags)
