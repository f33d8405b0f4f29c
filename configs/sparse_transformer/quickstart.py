"""Trains a small Sparse Transformer on the sources of the Python standard library.

It takes minutes on a laptop and downloads nothing.

    python -m transformer_jax.train --config=configs/sparse_transformer/quickstart.py \\
        --workdir=runs/sparse
    python -m transformer_jax.generate --workdir=runs/sparse --prompt="def " --max_tokens=120 \\
        --temperature=0.8
"""

from transformer_jax.config import experiment

# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(
        vocab_size=300,
        d_model=16,
        num_layers=2,
        num_heads=2,
        max_length=32,
        stride=4,
        num_summaries=2,
    ),
    task=dict(length=16, sample_tokens=8),
    train=dict(batch=8, num_steps=2),
)


def get_config():
    return experiment(
        model=dict(
            name="sparse_transformer",
            vocab_size=2048,
            d_model=192,
            num_layers=4,
            num_heads=6,
            max_length=512,
            stride=32,
            num_summaries=8,
            init_scale=0.3,
            output_std=0.02,
            dropout=0.0,
            unroll=4,
        ),
        task=dict(name="causal_lm", length=512, sample_tokens=150),
        data=dict(corpus="python", tokenizer="byte_bpe"),
        train=dict(num_steps=560, batch=4, log_every=40, eval_every=1 / 2),
        optimizer=dict(
            name="adamw",
            learning_rate=3e-3,
            schedule="cosine",
            warmup_steps=100 / 560,
            final_fraction=0.1,
            b2=0.98,
            weight_decay=0.1,
            clip_norm=1.0,
        ),
        checkpoint=dict(every=1 / 2),
    )
