"""The small BERTs of Turc et al. 2019, table 1: tiny (2 layers of 128), mini (4 of 256), small (4
of 512), medium (8 of 512).

python -m transformer_jax.train_bert --config=configs/bert/small.py:mini --workdir=DIR \\
    --config.data.train_files='text/*.txt' --config.data.valid_files=held_out.txt

As base.py in all else. Not yet trained here.
"""

import pathlib

from transformer_jax.config import choice, load_module, set_key

SIZES = {"tiny": (2, 128), "mini": (4, 256), "small": (4, 512), "medium": (8, 512)}


def get_config(size="mini"):
    config = load_module(pathlib.Path(__file__).with_name("base.py")).get_config()
    num_layers, d_model = choice(size, SIZES)
    for key, value in {
        "d_model": d_model,
        "num_layers": num_layers,
        "num_heads": d_model // 64,
    }.items():
        set_key(config, f"model.{key}", value)
    return config
