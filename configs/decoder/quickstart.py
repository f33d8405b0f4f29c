"""Trains a small decoder of Llama's kind on the sources of the Python standard library.

It takes minutes on a laptop and downloads nothing. The run has the length, the data and nearly the
size of configs/gpt/quickstart.py.

    python -m transformer_jax.train --config=configs/decoder/quickstart.py --workdir=runs/decoder
    python -m transformer_jax.generate --workdir=runs/decoder --prompt="def " --max_tokens=120 \\
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
        num_heads=4,
        num_kv_heads=2,
        max_length=32,
    ),
    task=dict(length=16, sample_tokens=8),
    train=dict(batch=8, num_steps=2),
)


def get_config():
    return experiment(
        model=dict(
            name="decoder",
            vocab_size=2048,
            d_model=192,
            d_ff=512,
            num_layers=4,
            num_heads=6,
            num_kv_heads=2,
            max_length=256,
            tie_output=True,
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
