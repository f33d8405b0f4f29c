"""wav2vec 2.0 base (Baevski et al. 2020): pre-training, and transcripts of English.

    python -m transformer_jax.train --config=configs/wav2vec2/base.py:pretrain --workdir=DIR \\
        --config.data.train_files=train.tsv --config.data.valid_files=valid.tsv
    python -m transformer_jax.train --config=configs/wav2vec2/base.py:ctc --workdir=DIR2 \\
        --config.init_from=DIR \\
        --config.data.train_files=train.tsv --config.data.valid_files=valid.tsv
    python -m transformer_jax.transcribe --workdir=DIR2 < files.txt

A manifest has a line FILE<tab>TRANSCRIPT for each WAV or FLAC file; pre-training needs no
transcripts. A batch is 1.6 hours of sound.

The values are those of the paper (sections 4.2 and 4.3, and appendix B for 960 hours). The weight
of the features' mean square and the dropout of the transcripts are those of the published code.
The learning rate of the transcripts rises in 10 % of the updates, stays for 40 %, and then falls.
That of the encoder does so from update 10,000 on, after the head has learned alone. The encoder has
95 million parameters. Not trained here.
"""

from transformer_jax.config import choice, experiment

ENCODER = dict(name="wav2vec2", layer_drop=0.05)
ADAM = dict(name="adamw", b2=0.98, eps=1e-6)
PARTS = {
    "pretrain": dict(
        model=dict(ENCODER, feature_dropout=0.1, quantizer_dropout=0.1),
        task=dict(name="masked_speech", seconds=15.625, power_weight=10.0),
        train=dict(num_steps=400_000, batch=368, log_every=100, eval_every=10_000),
        optimizer=dict(
            ADAM, learning_rate=5e-4, schedule="linear", warmup_steps=0.08, weight_decay=0.01
        ),
    ),
    "ctc": dict(
        model=dict(ENCODER, layer_drop=0.1, dropout=0.0, attention_dropout=0.0),
        task=dict(name="ctc", seconds=20.0, masked=0.5, feature_mask=0.1),
        train=dict(num_steps=320_000, batch=80, log_every=100, eval_every=10_000),
        optimizer=dict(
            ADAM,
            learning_rate=1e-4,
            schedule="warmup_stable_decay",
            warmup_steps=0.1,
            cooldown_steps=0.5,
            final_fraction=0.05,
            groups=(("encoder", (("begin", 10_000),)),),
        ),
        decode=dict(batch=16, beam=1),
    ),
}


def TINY(part="pretrain"):
    """Returns the variant for tests: it trains in seconds on a CPU."""
    model = dict(
        d_model=16,
        num_layers=2,
        num_heads=2,
        convolution_widths=(8, 8, 8),
        convolution_kernels=(10, 8, 8),
        convolution_strides=(8, 8, 5),
        position_kernel=8,
        position_groups=2,
        codes=8,
        d_code=8,
        d_projection=8,
    )
    task = dict(seconds=5.0)
    if part == "pretrain":
        task |= dict(distractors=8)
    return dict(
        model=model,
        task=task,
        train=dict(batch=8, num_steps=2),
        optimizer=dict(groups=(("encoder", (("begin", 1),)),) if part == "ctc" else ()),
    )


def get_config(part="pretrain", **changes):
    """Returns the config of a part; `changes` are other values, by section."""
    sections = choice(part, PARTS)
    changed = {name: values | changes.get(name, {}) for name, values in sections.items()}
    return experiment(source=dict(name="sound"), checkpoint=dict(every=10_000), **changed)
