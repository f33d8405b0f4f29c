"""Trains a small Reformer on the sources of the Python standard library.

It takes minutes on a laptop and downloads nothing.

    python -m transformer_jax.train --config=configs/reformer/quickstart.py \\
        --workdir=runs/reformer
    python -m transformer_jax.generate --workdir=runs/reformer --prompt="def " --max_tokens=120 \\
        --temperature=0.8
"""

from transformer_jax.config import experiment

# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(
        vocab_size=300,
        d_model=16,
        d_ff=24,
        num_layers=2,
        num_heads=2,
        head_dim=8,
        local_chunk=8,
        lsh_chunk=8,
        buckets=(4,),
        max_length=32,
        axial_shape=(4, 8),
        axial_widths=(6, 10),
    ),
    task=dict(length=32, sample_tokens=8),
    train=dict(batch=8, num_steps=2),
)


def get_config():
    return experiment(
        model=dict(
            name="reformer",
            vocab_size=2048,
            d_model=256,
            d_ff=1024,
            num_layers=4,
            num_heads=4,
            rounds=2,
            buckets=(16,),
            max_length=512,
            axial_shape=(16, 32),
            axial_widths=(64, 192),
            dropout=0.0,
            unroll=4,
        ),
        task=dict(name="causal_lm", length=512, sample_tokens=100),
        data=dict(corpus="python", tokenizer="byte_bpe"),
        train=dict(num_steps=600, batch=4, log_every=50, eval_every=1 / 2),
        optimizer=dict(
            name="adamw",
            learning_rate=1e-3,
            schedule="cosine",
            warmup_steps=1 / 10,
            final_fraction=0.1,
            b2=0.98,
            weight_decay=0.1,
            clip_norm=1.0,
        ),
        checkpoint=dict(every=1 / 2),
    )
