"""Pre-trains UniLM in the size of BERT base, which the authors of Dong et al. 2019 also published.

    python -m transformer_jax.train --config=configs/unilm/base.py --workdir=DIR \\
        --config.init_from=BERT --config.data.tokenizer_files=bert_base_cased \\
        --config.data.train_files='text/*.txt' --config.data.valid_files=held_out.txt

BERT and the text are as in large.py. The paper has no values for this size: those of large.py hold
here. The model has 108,313,344 parameters without the heads of pre-training. Not trained here.
"""

from transformer_jax.config import load_module, set_key

large = load_module("unilm/large")
TINY = large.TINY


def get_config():
    config = large.get_config()
    set_key(config, "model.num_layers", 12)
    set_key(config, "model.d_model", 768)
    set_key(config, "model.num_heads", 12)
    return config
