"""Trains a small ViT on the handwritten digits of scikit-learn: 8 x 8 pixels, patches of 2 x 2.

It takes five minutes on one busy CPU core and downloads nothing; `pip install -e '.[vision]'`
installs scikit-learn.

    python -m transformer_jax.train --config=configs/vit/digits.py --workdir=runs/digits
    python -m transformer_jax.evaluate --workdir=runs/digits --set=test
    python -m transformer_jax.draw result --workdir=runs/digits --output=rollout.png

Training images are random crops, moved by up to a pixel. Result on 360 held-out digits, with the
seeds 0, 1 and 2: 97.8, 98.1 and 98.1 % are right.
"""

from transformer_jax.config import experiment

# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(d_model=16, num_layers=2, num_heads=2),
    train=dict(batch=8, num_steps=2),
)


def get_config():
    return experiment(
        model=dict(
            name="vit",
            image_size=8,
            patch_size=2,
            channels=1,
            d_model=64,
            num_layers=2,
            num_heads=4,
            pool="mean",
            init_std=0.2,
            unroll=2,
        ),
        # The crops change the size of a digit and its position within a pixel.
        task=dict(
            name="image_classification",
            crop="random",
            crop_area=(0.85, 1.0),
            shift=1,
        ),
        source=dict(name="digits"),
        train=dict(num_steps=5000, batch=32, log_every=100, eval_every=1 / 5),
        optimizer=dict(
            name="adamw",
            learning_rate=2e-3,
            schedule="cosine",
            warmup_steps=0.05,
            weight_decay=0.05,
            clip_norm=1.0,
        ),
        checkpoint=dict(every=1 / 5, best_metric="valid/accuracy", best_mode="max"),
        decode=dict(batch=180),
    )
