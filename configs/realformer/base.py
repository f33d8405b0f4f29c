"""Pre-trains RealFormer base (He et al. 2020): BERT base with a residual path of scores.

    python -m transformer_jax.train --config=configs/realformer/base.py --workdir=DIR \\
        --config.data.train_files='text/*.txt' --config.data.valid_files=held_out.txt \\
        --config.train.accumulation=16

Values: section 4.1 of the paper: 1 million updates of 512 rows. It reports a masked-token accuracy
of 70.42 %, and 70.20 % for BERT base. The model has the parameters of BERT base. Not trained here.
"""

from transformer_jax.config import experiment, load_module

base = load_module("bert/base")
TINY = base.TINY


def get_config():
    config = base.get_config().to_dict()
    return experiment(
        model=dict(name="realformer", vocab_size=30_522, d_model=768, num_layers=12, num_heads=12),
        **{name: config[name] for name in ("task", "data", "optimizer", "checkpoint")},
        train=config["train"] | dict(batch=512),
    )
