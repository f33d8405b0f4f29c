"""Fine-tunes a pre-trained run: python -m transformer_jax.finetune
--config=configs/finetune/glue.py:sst2 --config.init_from=DIR --workdir=DIR2

The model is taken from the run or converted checkpoint in init_from; flags such as
--config.model.dropout=0.2 change it. With --seeds=3, it trains three runs in DIR2/seed-0 and so on,
and prints the mean and the standard deviation of their final scores as one JSON object.
"""

from transformer_jax import cli
from transformer_jax.config import UserError
from transformer_jax.train import main as train


def main() -> None:
    from transformer_jax import config as configs
    from transformer_jax.runs.spec import takes_model

    config = configs.read(cli.FLAGS.config)
    if not takes_model(config):
        raise UserError(
            f"--config={cli.FLAGS.config}: config.task.name={config.task.name!r} is not a "
            "fine-tuning task"
        )
    train()


if __name__ == "__main__":
    cli.run(main, cli.define_training)
