"""Copies a config of this package, to start one of your own: python -m transformer_jax.new mine.py
--from=gpt/quickstart

Without --from, it lists the configs. The copy trains as the original does, and is yours to change:

    transformer-jax new mine.py --from=gpt/quickstart
    transformer-jax train --config=mine.py --workdir=runs/mine
"""

import pathlib

from absl import flags

from transformer_jax import cli
from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.storage import buckets


def define_flags() -> None:
    cli.define_files()
    flags.DEFINE_string("from", None, "Name of the config to copy, such as gpt/quickstart.")


def main() -> None:
    name, files = cli.FLAGS["from"].value, cli.files()
    if name is None:
        if files:
            raise UserError("--from=NAME is missing; without a file, all names are listed")
        print("\n".join(configs.config_names()))
        return
    if len(files) != 1 or not files[0].endswith(".py"):
        raise UserError("name one file *.py, the copy: transformer-jax new mine.py --from=NAME")
    target, source = pathlib.Path(files[0]), pathlib.Path(configs.config_file(name, "--from"))
    if target.exists():
        raise UserError(f"{target}: exists already; name a new file")
    with buckets.writing(target):
        target.write_bytes(source.read_bytes())
    print(f"{target}: a copy of {name}")


if __name__ == "__main__":
    cli.run(main, define_flags)
