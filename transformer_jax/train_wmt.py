"""Trains a translation model: python -m transformer_jax.train_wmt
--config=configs/wmt/quickstart.py --workdir=DIR
"""

from transformer_jax.cli import process as cli


def main() -> None:
    cli.train("translation")


if __name__ == "__main__":
    cli.run(main, cli.define_training)
