"""Trains a causal language model: python -m transformer_jax.train_gpt
--config=configs/gpt/quickstart.py --workdir=DIR
"""

from transformer_jax import cli
from transformer_jax.train import main as train


def main() -> None:
    train("causal_lm")


if __name__ == "__main__":
    cli.run(main, cli.define_training)
