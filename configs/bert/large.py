"""BERT large (Devlin et al. 2018): 24 layers of 1024; 335,141,888 parameters without the heads of
pre-training.

python -m transformer_jax.train_bert --config=configs/bert/large.py --workdir=DIR \\
    --config.data.train_files='text/*.txt' --config.data.valid_files=held_out.txt --config.train.accumulation=32

As base.py in all else. Not yet trained here. For batches of thousands of rows:
--config.optimizer.name=lamb (You et al. 2020).
"""

import pathlib

from transformer_jax.config import load_module, set_key


def get_config():
    config = load_module(pathlib.Path(__file__).with_name("base.py")).get_config()
    for key, value in {"d_model": 1024, "num_layers": 24, "num_heads": 16}.items():
        set_key(config, f"model.{key}", value)
    return config
