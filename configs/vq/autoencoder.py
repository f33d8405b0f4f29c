"""Trains an autoencoder of handwritten digits, whose middle is 16 codes (van den Oord et al. 2017).

It takes minutes on a CPU and downloads nothing. It needs scikit-learn: pip install -e '.[vision]'.

    python -m transformer_jax.train --config=configs/vq/autoencoder.py --workdir=runs/codes
    python -m transformer_jax.draw result --workdir=runs/codes

A code stands for 2 x 2 of the 8 x 8 pixels of a digit.
"""

from transformer_jax.config import experiment

# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(d_model=8, num_layers=1, num_codes=8, d_code=4),
    train=dict(batch=8, num_steps=2),
)


def get_config():
    return experiment(
        model=dict(
            name="vqvae",
            image_size=8,
            patch_size=2,
            channels=1,
            d_model=32,
            num_layers=2,
            num_codes=64,
            d_code=8,
        ),
        task=dict(name="vqvae", shift=1),
        source=dict(name="digits"),
        train=dict(num_steps=3000, batch=64, log_every=100, eval_every=1 / 5),
        optimizer=dict(
            name="adamw",
            learning_rate=2e-3,
            schedule="cosine",
            warmup_steps=0.05,
            weight_decay=0.01,
            clip_norm=1.0,
        ),
        checkpoint=dict(every=1 / 5),
    )
