"""Pre-trains ALBERT large (Lan et al. 2019): 24 layers of width 1024 with shared parameters.

    python -m transformer_jax.train --config=configs/albert/large.py --workdir=DIR \\
        --config.data.train_files='text/*.txt' --config.data.valid_files=held_out.txt \\
        --config.train.accumulation=64

Data and all other values: as in base.py. The model has 17,683,968 parameters without the
heads of pre-training. Not trained here.
"""

from transformer_jax.config import load_module, set_key

base = load_module("albert/base")
TINY = base.TINY


def get_config():
    config = base.get_config()
    changes = {
        "model.d_model": 1024,
        "model.num_layers": 24,
        "model.num_heads": 16,
    }
    for key, value in changes.items():
        set_key(config, key, value)
    return config
