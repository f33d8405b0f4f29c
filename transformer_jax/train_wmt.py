"""Trains a translation model: python -m transformer_jax.train_wmt
--config=configs/wmt/quickstart.py --workdir=DIR
"""

from transformer_jax import cli
from transformer_jax.train import main as train


def main() -> None:
    train("translation")


if __name__ == "__main__":
    cli.run(main, cli.define_training)
