"""Pre-trains a bidirectional encoder: python -m transformer_jax.train_bert
--config=configs/bert/quickstart.py --workdir=DIR
"""

from transformer_jax import cli
from transformer_jax.train import main as train


def main() -> None:
    train("masked_lm")


if __name__ == "__main__":
    cli.run(main, cli.define_training)
