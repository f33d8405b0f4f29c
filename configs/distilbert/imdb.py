"""Distils the small BERT of configs/bert/imdb.py:mini into half its layers: 2 of width 256.

    python -m transformer_jax.train --config=configs/distilbert/imdb.py --workdir=DIR \\
        --config.task.teacher=runs/mini --config.init_from=runs/mini \\
        --config.data.train_files=train.txt --config.data.valid_files=valid.txt

runs/mini is a run of configs/bert/imdb.py:mini on the same text. The student begins with its layers
0 and 2. Without `--config.init_from` it begins with random parameters. Not trained here.
"""

from transformer_jax.config import experiment, load_module

base = load_module("distilbert/base")
TINY = base.TINY
SIZES = dict(vocab_size=8000, d_model=256, num_heads=4, max_length=512)
NO_DROPOUT = dict(dropout=0.0, attention_dropout=0.0)


def get_config():
    return experiment(
        model=dict(name="distilbert", num_layers=2, init_std=0.04, unroll=2, **SIZES, **NO_DROPOUT),
        task=dict(
            name="distillation",
            # share of the updates, tokens of a row, predicted tokens of a row
            phases=((0.6, 32, 5), (0.4, 128, 20)),
            teacher_model=tuple(dict(name="bert", num_layers=4, **SIZES).items()),
        ),
        data=dict(tokenizer="wordpiece"),
        train=dict(num_steps=2000, batch=64, log_every=50, eval_every=1 / 4),
        optimizer=dict(
            name="adamw",
            learning_rate=1e-3,
            schedule="linear",
            warmup_steps=1 / 16,
            eps=1e-6,
            b2=0.98,
            weight_decay=0.01,
            clip_norm=1.0,
        ),
        checkpoint=dict(every=1 / 4),
    )
