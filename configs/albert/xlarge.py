"""Pre-trains ALBERT xlarge (Lan et al. 2019): 24 layers of width 2048 with shared parameters.

    python -m transformer_jax.train --config=configs/albert/xlarge.py --workdir=DIR \\
        --config.data.train_files='text/*.txt' --config.data.valid_files=held_out.txt \\
        --config.train.accumulation=64

Data and all other values: as in base.py. The 32 heads follow the paper's rule, width / 64; the
released checkpoint has 16, with the same number of parameters. The model has 58,724,864 parameters
without the heads of pre-training. Not trained here.
"""

from transformer_jax.config import load_module, set_key

base = load_module("albert/base")
TINY = base.TINY


def get_config():
    config = base.get_config()
    changes = {
        "model.d_model": 2048,
        "model.num_layers": 24,
        "model.num_heads": 32,
    }
    for key, value in changes.items():
        set_key(config, key, value)
    return config
