"""Trains a GPT on the characters of Tiny Shakespeare, with nanoGPT's split.

    python -m transformer_jax.download tiny_shakespeare
    python -m transformer_jax.train_gpt --workdir=DIR \\
        --config=configs/gpt/shakespeare_char.py:cpu \\
        --config.data.train_files=data/tiny_shakespeare/train.txt \\
        --config.data.valid_files=data/tiny_shakespeare/valid.txt

The first nine tenths are for training, the last tenth is for validation.

Result of `cpu` after 2,000 updates, in 4 minutes on two busy CPU cores:

    size   layers     row   validation loss   nanoGPT's
    cpu    4 of 128    64              1.77        1.88
    gpu    6 of 384   256       not trained      1.4697

The validation windows do not overlap. nanoGPT draws its windows at random.
"""

from transformer_jax.config import choice, experiment

SIZES = {
    "gpu": dict(
        model=dict(d_model=384, num_layers=6, num_heads=6, dropout=0.2, unroll=6),
        length=256,
        num_steps=5000,
        batch=64,
        learning_rate=1e-3,
    ),
    "cpu": dict(
        model=dict(d_model=128, num_layers=4, num_heads=4, dropout=0.0, unroll=4),
        length=64,
        num_steps=2000,
        batch=12,
        learning_rate=3e-3,
    ),
}
# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(vocab_size=300, d_model=16, num_layers=2, num_heads=2, max_length=32),
    task=dict(length=16),
    train=dict(batch=8, num_steps=2),
)


def get_config(size="gpu"):
    values = choice(size, SIZES)
    model = values["model"]
    length = values["length"]
    steps = values["num_steps"]
    return experiment(
        model=dict(
            name="gpt",
            vocab_size=128,
            max_length=length,
            attention_dropout=model["dropout"],
            **model,
        ),
        task=dict(name="causal_lm", length=length),
        data=dict(tokenizer="characters", split_on="file"),
        train=dict(num_steps=steps, batch=values["batch"], log_every=100, eval_every=500 / steps),
        optimizer=dict(
            name="adamw",
            learning_rate=values["learning_rate"],
            schedule="cosine",
            warmup_steps=100 / steps,
            final_fraction=0.1,
            b2=0.99,
            weight_decay=0.1,
            clip_norm=1.0,
        ),
        checkpoint=dict(every=500 / steps),
    )
