"""Trains a translation model: python -m transformer_jax.train_wmt
--config=configs/wmt/quickstart.py --workdir=DIR
"""

from transformer_jax.cli import flags as cli
from transformer_jax.cli import process
from transformer_jax.train import main as train


def main() -> None:
    train("translation")


if __name__ == "__main__":
    process.run(main, cli.define_training)
