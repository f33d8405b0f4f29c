"""Trains a causal language model: python -m transformer_jax.train_gpt
--config=configs/gpt/quickstart.py --workdir=DIR
"""

from transformer_jax.cli import flags as cli
from transformer_jax.cli import process
from transformer_jax.train import main as train


def main() -> None:
    train("causal_lm")


if __name__ == "__main__":
    process.run(main, cli.define_training)
