"""Trains 18 small GPTs for a scaling law: six widths on three amounts of text, minutes on a laptop.

    python -m transformer_jax.scaling run --config=configs/scaling/cpu.py --workdir=runs/scaling
    python -m transformer_jax.scaling fit --workdir=runs/scaling
    python -m transformer_jax.scaling predict --config=configs/scaling/cpu.py --workdir=runs/scaling
    python -m transformer_jax.scaling run --config=configs/scaling/cpu.py --workdir=runs/scaling \\
        --held_out
    python -m transformer_jax.scaling check --workdir=runs/scaling

The last two commands train a larger model and compare its loss with the prediction. One run of the
family alone:

    python -m transformer_jax.train_gpt --config=configs/scaling/cpu.py:d32-1.6e6 --workdir=DIR

The models have 2 layers. The text is the sources of the Python standard library.

Result on two busy CPU cores (benchmarks/scaling.py):

    18 runs                                               15 minutes
    held-out run, 1.6 times the largest model             2.6 minutes
    R^2 of log L(N, D)                                    0.987
    L(N) with the largest amount of text                  16.7 N^-0.155
    predicted and measured loss of the held-out run       2.693, 2.682 (0.4 %)

The laws hold in a limited range:
- All amounts are above a million tokens. Below it, a model changes from counting pairs of tokens
  to using their context, the wider the sooner. No law of this form describes that: from 4e5 to
  1.6e6 tokens and with widths up to 96, R^2 is 0.94.
- A law of widths up to 64 predicts 3.7 % less loss for width 96 than is measured. 6.4e6 tokens are
  too few for that width.
"""

from transformer_jax.config import experiment
from transformer_jax.scaling.family import Family

# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(vocab_size=300, d_model=16, num_layers=2, num_heads=2, max_length=32),
    task=dict(length=16),
    train=dict(batch=8, num_steps=2),
)


def base():
    return experiment(
        model=dict(
            name="gpt",
            vocab_size=512,
            d_model=64,
            num_heads=4,
            num_layers=2,
            max_length=64,
            dropout=0.0,
            attention_dropout=0.0,
            unroll=2,
        ),
        task=dict(name="causal_lm", length=64),
        data=dict(corpus="python", tokenizer="byte_bpe"),
        train=dict(batch=8),
        optimizer=dict(name="adamw", schedule="linear", b2=0.98, weight_decay=0.1, clip_norm=1.0),
    )


def size(d_model):
    """Returns the keys of a width.

    A wider model has a lower learning rate and smaller initial weights. With the usual 0.02, narrow
    models use only pairs of tokens for most of a run.
    """
    return {
        "model.d_model": d_model,
        "model.num_heads": max(d_model // 16, 2),
        "model.init_std": 0.5 * d_model**-0.5,
        "optimizer.learning_rate": 0.015 * (16 / d_model) ** 0.7,
    }


FAMILY = Family(
    base,
    {f"d{width}": size(width) for width in (12, 16, 24, 32, 40, 48)},
    tokens=(1.6e6, 3.2e6, 6.4e6),
    held_out=(size(64), 6.4e6),
)


def get_config(name=FAMILY.names[0]):
    return FAMILY.config(name)
