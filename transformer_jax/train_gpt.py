"""Trains a causal language model: python -m transformer_jax.train_gpt
--config=configs/gpt/quickstart.py --workdir=DIR
"""

from transformer_jax.cli import process as cli


def main() -> None:
    cli.train("causal_lm")


if __name__ == "__main__":
    cli.run(main, cli.define_training)
