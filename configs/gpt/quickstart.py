"""Trains a small GPT on the sources of the Python standard library.

It takes minutes on a laptop and downloads nothing.

    python -m transformer_jax.train_gpt --config=configs/gpt/quickstart.py --workdir=runs/gpt
    python -m transformer_jax.generate --workdir=runs/gpt --prompt="def " --max_tokens=120 \\
        --temperature=0.8

Result on held-out files, after 560 updates in 3 minutes on two CPU cores:

    windows                bits per byte
    that slide by half              1.93
    that do not overlap             2.07
"""

from transformer_jax.config import experiment

# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(vocab_size=300, d_model=16, num_layers=2, num_heads=2, max_length=32),
    task=dict(length=16, sample_tokens=8),
    train=dict(batch=8, num_steps=2),
)


def get_config():
    return experiment(
        model=dict(
            name="gpt",
            vocab_size=2048,
            d_model=192,
            num_layers=4,
            num_heads=6,
            max_length=256,
            dropout=0.0,
            attention_dropout=0.0,
            unroll=4,
        ),
        task=dict(name="causal_lm", length=256, sample_tokens=150),
        data=dict(corpus="python", tokenizer="byte_bpe"),
        train=dict(num_steps=560, batch=8, log_every=40, eval_every=1 / 2),
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
