"""Trains a small GPT on the codes of handwritten digits, with the class in front (Esser et al.
2021).

    python -m transformer_jax.train --config=configs/vq/autoencoder.py --workdir=runs/codes
    python -m transformer_jax.train --config=configs/vq/gpt.py --workdir=runs/digits \\
        --config.task.autoencoder=runs/codes
    python -m transformer_jax.draw result --workdir=runs/digits --text=3 --text=7

It takes minutes on a CPU. The tokens are the 64 codes of the autoencoder and the 10 classes.
"""

from transformer_jax.config import experiment

# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(d_model=16, num_layers=1, num_heads=2, vocab_size=18),
    task=dict(
        autoencoder_model=tuple(
            dict(
                name="vqvae",
                image_size=8,
                patch_size=2,
                channels=1,
                d_model=8,
                num_layers=1,
                num_codes=8,
                d_code=4,
            ).items()
        )
    ),
    train=dict(batch=8, num_steps=2),
)


def get_config():
    codes = dict(name="vqvae", image_size=8, patch_size=2, channels=1, num_codes=64)
    return experiment(
        model=dict(
            name="gpt",
            vocab_size=74,
            d_model=64,
            num_layers=3,
            num_heads=4,
            max_length=16,
            dropout=0.2,
            unroll=3,
        ),
        task=dict(name="image_token_lm", autoencoder_model=tuple(codes.items())),
        source=dict(name="digits"),
        train=dict(num_steps=2000, batch=64, log_every=100, eval_every=1 / 10),
        optimizer=dict(
            name="adamw",
            learning_rate=2e-3,
            schedule="cosine",
            warmup_steps=0.05,
            weight_decay=0.1,
            clip_norm=1.0,
        ),
        checkpoint=dict(every=1 / 10),
    )
