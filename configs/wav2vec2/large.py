"""wav2vec 2.0 large (Baevski et al. 2020): pre-training, and transcripts of English.

    python -m transformer_jax.train --config=configs/wav2vec2/large.py:pretrain --workdir=DIR \\
        --config.data.train_files=train.tsv --config.data.valid_files=valid.tsv
    python -m transformer_jax.train --config=configs/wav2vec2/large.py:ctc --workdir=DIR2 \\
        --config.init_from=DIR \\
        --config.data.train_files=train.tsv --config.data.valid_files=valid.tsv
    python -m transformer_jax.transcribe --workdir=DIR2 < files.txt

The model is that of 60,000 hours: layer norms between the convolutions, and pre-LN. The manifests
are those of base.py. A batch is 2.7 hours of sound.

The values are those of the paper (sections 4.2 and 4.3, and appendix B for 960 hours). The encoder
has 317 million parameters. Not trained here.
"""

from transformer_jax.config import load_module

base = load_module("wav2vec2/base")
TINY = base.TINY

ENCODER = dict(
    d_model=1024,
    num_layers=24,
    num_heads=16,
    convolution_norm="layer",
    convolution_bias=True,
    norm_position="pre",
    d_code=768,
    d_projection=768,
)
CHANGES = {
    "pretrain": dict(
        model=dict(ENCODER, layer_drop=0.2),
        task=dict(seconds=20.0, power_weight=0.0, least_temperature=0.1),
        train=dict(num_steps=600_000, batch=480),
        optimizer=dict(learning_rate=3e-4),
    ),
    "ctc": dict(
        model=dict(ENCODER),
        task=dict(seconds=20.0),
        train=dict(batch=128),
        optimizer=dict(learning_rate=3e-5),
    ),
}


def get_config(part="pretrain"):
    return base.get_config(part, **CHANGES.get(part, {}))
