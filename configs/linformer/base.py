"""Pre-trains Linformer (Wang et al. 2020): RoBERTa base with 256 keys for rows of 512 tokens.

    python -m transformer_jax.train --config=configs/linformer/base.py --workdir=DIR \\
        --config.data.train_files='text/*.txt' --config.data.valid_files=held_out.txt \\
        --config.train.accumulation=64

One projection of the length serves all heads, keys and values, and layers: the best of table 2 with
n = 512 (`config.model.rank=128` and `256`, three kinds of `config.model.sharing`). The paper makes
250,000 updates, of RoBERTa's kind; rows, optimizer and rates are those of roberta/base.py. The
model has 124,828,505 parameters. Not trained here.
"""

from transformer_jax.config import experiment, load_module

base = load_module("roberta/base")
TINY = base.TINY | dict(model=base.TINY["model"] | dict(rank=8))


def get_config():
    config = base.get_config().to_dict()
    return experiment(
        model=dict(
            name="linformer",
            vocab_size=50_265,
            d_model=768,
            num_layers=12,
            num_heads=12,
            rank=256,
            sharing="layers",
        ),
        **{name: config[name] for name in ("task", "data", "optimizer", "checkpoint")},
        train=config["train"] | dict(num_steps=250_000),
    )
