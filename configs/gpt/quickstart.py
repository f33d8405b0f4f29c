"""A small GPT on the sources of the Python standard library: minutes on a laptop, nothing to
download.

python -m transformer_jax.train_gpt --config=configs/gpt/quickstart.py --workdir=runs/gpt
python -m transformer_jax.generate --workdir=runs/gpt --prompt="def " --max_tokens=120 --temperature=0.8

Held-out files: 1.93 bits per byte with windows that slide by half, 2.07 with windows that do not
overlap (560 updates, 3 minutes on two CPU cores).
"""

from transformer_jax.config import experiment


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
