"""Trains a small Transformer-XL on the sources of the Python standard library.

It takes minutes on a laptop and downloads nothing.

    python -m transformer_jax.train --config=configs/transformer_xl/quickstart.py --workdir=runs/xl
    python -m transformer_jax.generate --workdir=runs/xl --prompt="def " --max_tokens=120 \\
        --temperature=0.8
"""

from transformer_jax.config import experiment

# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(vocab_size=300, d_model=16, d_ff=24, num_layers=2, num_heads=2, memory_length=16),
    task=dict(length=16, sample_tokens=8),
    train=dict(batch=8, num_steps=2),
)


def get_config():
    return experiment(
        model=dict(
            name="transformer_xl",
            vocab_size=2048,
            d_model=256,
            d_ff=1024,
            num_layers=4,
            num_heads=4,
            memory_length=64,
            dropout=0.0,
            unroll=4,
        ),
        task=dict(name="causal_lm", length=64, carry=True, sample_tokens=100),
        data=dict(corpus="python", tokenizer="byte_bpe"),
        train=dict(num_steps=1000, batch=32, log_every=50, eval_every=1 / 2),
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
