"""Pre-trains BERT large (Devlin et al. 2018): 24 layers of width 1024.

    python -m transformer_jax.train_bert --config=configs/bert/large.py --workdir=DIR \\
        --config.data.train_files='text/*.txt' --config.data.valid_files=held_out.txt \\
        --config.train.accumulation=32

Data and other values: as in base.py. For batches of thousands of rows,
`--config.optimizer.name=lamb` selects LAMB (You et al. 2020).

The model has 335,141,888 parameters without the heads of pre-training. Not trained here.
"""

from transformer_jax.config import load_module, set_key

base = load_module("bert/base")
TINY = base.TINY


def get_config():
    config = base.get_config()
    set_key(config, "model.num_layers", 24)
    set_key(config, "model.unroll", 24)
    set_key(config, "model.d_model", 1024)
    set_key(config, "model.num_heads", 16)
    return config
