"""Trains an LSTM on the sources of the Python standard library, byte pairs as for a small GPT.

It takes minutes on a laptop and downloads nothing.

    python -m transformer_jax.train --config=configs/lstm/quickstart.py --workdir=runs/lstm
    python -m transformer_jax.generate --workdir=runs/lstm --prompt="def " --max_tokens=120 \\
        --temperature=0.8
"""

from transformer_jax.config import experiment

# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(vocab_size=300, d_model=16, num_layers=2),
    task=dict(length=16, sample_tokens=8),
    train=dict(batch=8, num_steps=2),
)


def get_config():
    return experiment(
        model=dict(name="recurrent", vocab_size=2048, d_model=384),
        task=dict(name="causal_lm", length=64, carry=True, sample_tokens=100),
        data=dict(corpus="python", tokenizer="byte_bpe"),
        train=dict(num_steps=1500, batch=32, log_every=50, eval_every=1 / 3),
        optimizer=dict(
            name="adamw",
            learning_rate=3e-3,
            schedule="cosine",
            warmup_steps=100 / 1500,
            final_fraction=0.1,
            b2=0.98,
            weight_decay=0.1,
            clip_norm=1.0,
        ),
        checkpoint=dict(every=1 / 3),
    )
