"""Trains the big Transformer on WMT 2014 English-German (default) or English-French.

    python -m transformer_jax.train_wmt --config=configs/wmt/big.py:en-fr --workdir=DIR \\
        --config.data.tfds_dir=TFDS_DIR

Data and other values: as in base.py.

Values: Vaswani et al. 2017, table 3 and section 5. The paper reports BLEU 28.4 (en-de) and 41.8
(en-fr), with the mean of the last 20 checkpoints, after 3.5 days on 8 P100. Not trained here.
"""

from transformer_jax.config import load_module

base = load_module("wmt/base")
TINY = base.TINY


def get_config(pair="en-de"):
    return base.get_config(
        pair,
        d_model=1024,
        d_ff=4096,
        num_heads=16,
        dropout=0.1 if pair == "en-fr" else 0.3,
        num_steps=300_000,
        keep=20,
    )
