"""Pre-trains ALBERT xxlarge (Lan et al. 2019): 12 layers of width 4096 with shared parameters.

    python -m transformer_jax.train --config=configs/albert/xxlarge.py --workdir=DIR \\
        --config.data.train_files='text/*.txt' --config.data.valid_files=held_out.txt \\
        --config.train.accumulation=64

Data and all other values: as in base.py. It has no dropout (section 4.8). The model has 222,595,584
parameters without the heads of pre-training. Not trained here.
"""

from transformer_jax.config import load_module, set_key

base = load_module("albert/base")
TINY = base.TINY


def get_config():
    config = base.get_config()
    changes = {
        "model.d_model": 4096,
        "model.num_layers": 12,
        "model.num_heads": 64,
        "model.dropout": 0.0,
        "model.attention_dropout": 0.0,
    }
    for key, value in changes.items():
        set_key(config, key, value)
    return config
