"""Pre-trains RoBERTa large (Liu et al. 2019): 24 layers of width 1024.

    python -m transformer_jax.train --config=configs/roberta/large.py --workdir=DIR \\
        --config.data.train_files='text/*.txt' --config.data.valid_files=held_out.txt \\
        --config.train.accumulation=64

Data: as in base.py. The values are those of the paper's table 9. The model has 355,412,057
parameters. Not trained here.
"""

from transformer_jax.config import load_module, set_key

base = load_module("roberta/base")
TINY = base.TINY


def get_config():
    config = base.get_config()
    changes = {
        "model.d_model": 1024,
        "model.num_layers": 24,
        "model.num_heads": 16,
        "optimizer.learning_rate": 4e-4,
        "optimizer.warmup_steps": 30_000,
    }
    for key, value in changes.items():
        set_key(config, key, value)
    return config
