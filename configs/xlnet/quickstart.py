"""Pre-trains a small XLNet on the documentation strings of the Python standard library.

It takes minutes on a laptop and downloads nothing.

    python -m transformer_jax.train --config=configs/xlnet/quickstart.py --workdir=runs/xlnet
    python -m transformer_jax.evaluate --workdir=runs/xlnet

Result on held-out documents, after 15 minutes on one CPU core that other programs used too: 25.6 %
of predicted tokens are found, perplexity 82.5.

Each row also sees a memory of the last 32 tokens before it.
"""

from transformer_jax.config import experiment

# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(vocab_size=96, d_model=16, num_layers=2, num_heads=2, memory_length=12),
    task=dict(length=16),
    train=dict(batch=8, num_steps=2),
)


def get_config():
    return experiment(
        model=dict(
            name="xlnet",
            vocab_size=4096,
            d_model=128,
            num_layers=2,
            num_heads=4,
            memory_length=32,
            init_std=0.05,
            dropout=0.0,
            unroll=2,
        ),
        task=dict(name="permuted_lm", length=64),
        data=dict(corpus="pydoc", tokenizer="wordpiece"),
        train=dict(num_steps=2500, batch=48, log_every=50, eval_every=1 / 5),
        optimizer=dict(
            name="adamw",
            learning_rate=2e-3,
            schedule="linear",
            warmup_steps=0.08,
            eps=1e-6,
            b2=0.98,
            weight_decay=0.01,
            clip_norm=1.0,
        ),
        checkpoint=dict(every=1 / 5),
    )
