"""Pre-trains the small BERTs of Turc et al. 2019, table 1.

    python -m transformer_jax.train_bert --config=configs/bert/small.py:mini --workdir=DIR \\
        --config.data.train_files='text/*.txt' --config.data.valid_files=held_out.txt

    size     layers   width
    tiny          2     128
    mini          4     256
    small         4     512
    medium        8     512

Data and other values: as in base.py. Not trained here.
"""

from transformer_jax.config import choice, load_module, set_key

base = load_module("bert/base")
TINY = base.TINY
SIZES = {
    "tiny": dict(num_layers=2, d_model=128),
    "mini": dict(num_layers=4, d_model=256),
    "small": dict(num_layers=4, d_model=512),
    "medium": dict(num_layers=8, d_model=512),
}


def get_config(size="mini"):
    shape = choice(size, SIZES)
    config = base.get_config()
    set_key(config, "model.num_layers", shape["num_layers"])
    set_key(config, "model.d_model", shape["d_model"])
    set_key(config, "model.num_heads", shape["d_model"] // 64)
    return config
