"""Pre-trains BART large (Lewis et al. 2019, section 5.1): 12 + 12 layers of width 1024.

    python -m transformer_jax.train --config=configs/bart/large.py --workdir=DIR \\
        --config.data.train_files='text/*.txt' --config.data.valid_files=held_out.txt \\
        --config.train.accumulation=64

Data: as in base.py. From the paper: batches of 8000, 500,000 updates, and the noise. The paper
follows RoBERTa: rate, warm-up, Adam's numbers and 512 tokens a row are those of RoBERTa large (Liu
et al. 2019, table 9). The paper has no dropout in the last tenth of the updates; here it stays.

The model has 406,291,456 parameters. Not trained here.
"""

from transformer_jax.config import load_module, set_key

base = load_module("bart/base")
TINY = base.TINY


def get_config():
    config = base.get_config()
    changes = {
        "model.d_model": 1024,
        "model.d_ff": 4096,
        "model.num_heads": 16,
        "model.num_encoder_layers": 12,
        "model.num_decoder_layers": 12,
        "train.batch": 8000,
        "train.num_steps": 500_000,
        "optimizer.learning_rate": 4e-4,
        "optimizer.warmup_steps": 30_000,
    }
    for key, value in changes.items():
        set_key(config, key, value)
    return config
