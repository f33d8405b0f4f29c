"""Tokenises the data of a config ahead of time: python -m transformer_jax.prepare --config=FILE
[--config.data.cache=gs://BUCKET/PREFIX]

The same command continues a preparation that was stopped. A training with the same config finds its
data there.
"""

from transformer_jax.cli import flags as cli
from transformer_jax.cli import process
from transformer_jax.config import UserError


def main() -> None:
    config = cli.load_config()
    from transformer_jax.pictures.progress import say
    from transformer_jax.runs.begin import fine_tunes
    from transformer_jax.runs.resolve import make_task

    if fine_tunes(config):
        raise UserError(
            f"--config={cli.FLAGS.config}: a fine-tuning reads its examples when it begins; "
            "there is nothing to prepare"
        )
    make_task(config).rows()
    say(f"ready in {config.data.cache}")


if __name__ == "__main__":
    process.run(main, cli.define_config)
