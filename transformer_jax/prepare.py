"""Tokenises a config's data ahead of time: python -m transformer_jax.prepare --config=FILE
[--config.data.cache=gs://BUCKET/PREFIX]

Killed, it goes on where it was when the same command is given again. A training with the same
config then finds its data there.
"""

from transformer_jax.cli import flags as cli
from transformer_jax.cli import process
from transformer_jax.config import UserError


def define_flags() -> None:
    cli.define_config()


def main() -> None:
    config = cli.load_config()
    from transformer_jax.pictures.progress import say
    from transformer_jax.runs.begin import fine_tunes
    from transformer_jax.runs.resolve import make_task

    if fine_tunes(config):
        raise UserError(
            f"--config={cli.FLAGS.config}: a fine-tuning reads its examples when it begins; there is nothing to prepare"
        )
    make_task(config).rows()
    say(f"ready in {config.data.cache}")


if __name__ == "__main__":
    process.run(main, define_flags)
