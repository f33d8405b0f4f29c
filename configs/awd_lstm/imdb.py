"""Fine-tunes AWD-LSTM on film reviews: ULMFiT's second stage (Howard & Ruder 2018, section 3.2).

    python -m transformer_jax.train --config=configs/awd_lstm/imdb.py --workdir=runs/reviews \\
        --config.init_from=runs/general \\
        --config.data.train_files=train.txt --config.data.valid_files=valid.txt

runs/general is a run of configs/awd_lstm/wikitext103.py. The size `cpu` continues that of `cpu`
there. The files hold the reviews of IMDB (Maas et al. 2011) as documents; the header of
configs/gpt/imdb.py has the command that splits them.

The rate of a layer is 1 / 2.6 of that of the layer above, and the rate follows a slanted triangle.
The embeddings, which are the output projection as well, have the highest rate. The published
values are 15 epochs of all 100,000 reviews, here counted as 25 M tokens. Not trained here.
"""

from transformer_jax.config import load_module, set_key

_PRETRAINING = load_module("awd_lstm/wikitext103")
# The embeddings are the output projection as well, and learn as the top does.
LAYERS = (("layer_0", ()), ("layer_1", ()), ("layer_2", ()))
STEPS = {"published": 84_000, "cpu": 2000}
# The variant for tests: it trains in seconds on a CPU.
TINY = _PRETRAINING.TINY


def get_config(size="published"):
    config = _PRETRAINING.get_config(size)
    set_key(config, "train.num_steps", STEPS[size])
    set_key(config, "optimizer.layer_decay", 1 / 2.6)
    set_key(config, "optimizer.groups", (("token_embed", (("layer_decay", 1.0),)), *LAYERS))
    return config
