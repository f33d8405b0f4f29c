"""Pre-trains XLNet base (Yang et al. 2019): 12 layers of width 768.

    python -m transformer_jax.train --config=configs/xlnet/base.py --workdir=DIR \\
        --config.data.train_files='text/*.txt' --config.data.valid_files=held_out.txt \\
        --config.data.tokenizer_files=DIR

Data and rows: as in large.py. The paper says of the base model that its sizes and its text are
those of BERT base. Batch, updates and learning rate are BERT's here.

The model has 116,718,336 parameters without the output layers. Not trained here.
"""

from transformer_jax.config import load_module, set_key

large = load_module("xlnet/large")
TINY = large.TINY


def get_config():
    config = large.get_config()
    set_key(config, "model.num_layers", 12)
    set_key(config, "model.d_model", 768)
    set_key(config, "model.num_heads", 12)
    set_key(config, "train.num_steps", 1_000_000)
    set_key(config, "train.batch", 256)
    set_key(config, "optimizer.learning_rate", 1e-4)
    set_key(config, "optimizer.warmup_steps", 10_000)
    return config
