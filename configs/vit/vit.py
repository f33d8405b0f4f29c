"""Trains a Vision Transformer on ImageNet-21k or another set of images (Dosovitskiy et al. 2020).

The arguments are ti16, s16, b32, b16, l32, l16 and h14: the size and the side of a patch in pixels.
The sizes b, l and h are those of table 1; ti and s are those of Touvron et al. 2020, table 1.

    python -m transformer_jax.train --config=configs/vit/vit.py:b16 --workdir=DIR \\
        --config.data.train_files=imagenet21k/train --config.data.valid_files=imagenet21k/valid

A folder holds a folder of images for each class. The settings are those for ImageNet-21k in table
3: 90 epochs of 14.2 million images, weight decay 0.03. `--config.train.accumulation` divides the
batch of 4,096. Not trained here.
"""

from transformer_jax.config import experiment

# d_model, d_ff, layers, heads
SIZES = {
    "ti": (192, 768, 12, 3),
    "s": (384, 1536, 12, 6),
    "b": (768, 3072, 12, 12),
    "l": (1024, 4096, 24, 16),
    "h": (1280, 5120, 32, 16),
}
SHAPES = ("ti16", "s16", "b32", "b16", "l32", "l16", "h14")

# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(image_size=16, patch_size=8, d_model=16, d_ff=32, num_layers=2, num_heads=2),
    train=dict(batch=8, num_steps=2),
)


def model(shape):
    """Returns the keys of config.model of a shape such as b16."""
    if shape not in SHAPES:
        raise ValueError(f"{shape!r}: must be one of {', '.join(SHAPES)}")
    size = shape.rstrip("0123456789")
    d_model, d_ff, num_layers, num_heads = SIZES[size]
    return dict(
        name="vit",
        image_size=224,
        patch_size=int(shape.removeprefix(size)),
        d_model=d_model,
        d_ff=d_ff,
        num_layers=num_layers,
        num_heads=num_heads,
        unroll=num_layers,  # a scan over the layers would copy all activations
    )


def get_config(shape="b16"):
    # Table 3: ViT-B/16, B/32, L/32 and L/16 have a rate of 1e-3 on ImageNet-21k. Those of the
    # smaller sizes are the same.
    return experiment(
        model=model(shape) | dict(dropout=0.1),
        task=dict(
            name="image_classification",
            crop="random",
            flip=True,
            resize=256,
            hidden_head=True,
        ),
        source=dict(name="images"),
        data=dict(readers=8),
        train=dict(num_steps=312_000, batch=4096, log_every=100, eval_every=10_000),
        optimizer=dict(
            name="adamw",
            learning_rate=1e-3,
            schedule="linear",
            warmup_steps=10_000,
            weight_decay=0.03,
        ),
        checkpoint=dict(every=10_000, best_metric="valid/accuracy", best_mode="max"),
        decode=dict(batch=256),
    )
