"""Pre-trains a ViT as a masked autoencoder (He et al. 2021). The arguments are b16, l16 and h14.

    python -m transformer_jax.train --config=configs/vit/mae.py:l16 --workdir=runs/mae \\
        --config.data.train_files=imagenet/train --config.data.valid_files=imagenet/valid
    python -m transformer_jax.draw result --workdir=runs/mae --text=photo.jpg

The settings are those of appendix A.1, table 8: 800 epochs of ImageNet's 1.28 million images, and a
learning rate of 1.5e-4 for each 256 images of a batch. configs/vit/finetune.py continues such a
run. Not trained here.

`:digits` is a small one for the digits of scikit-learn, which takes minutes on a laptop and
downloads nothing:

    python -m transformer_jax.train --config=configs/vit/mae.py:digits --workdir=runs/mae_digits
    python -m transformer_jax.train --config=configs/vit/digits.py --workdir=runs/tuned \\
        --config.init_from=runs/mae_digits
"""

from transformer_jax.config import experiment, load_module

SHAPES = ("b16", "l16", "h14", "digits")

# The variant for tests: it trains in seconds on a CPU.
_TINY = dict(
    task=dict(decoder_layers=1, decoder_width=16, decoder_heads=2),
    train=dict(batch=8, num_steps=2),
)


def TINY(shape="l16"):
    model = dict(d_model=16, d_ff=32, num_layers=2, num_heads=2)
    if shape != "digits":
        model |= dict(image_size=16, patch_size=4)
    return _TINY | dict(model=model)


def get_config(shape="l16"):
    if shape not in SHAPES:
        raise ValueError(f"{shape!r}: must be one of {', '.join(SHAPES)}")
    if shape == "digits":
        return _digits()
    vit = load_module("vit/vit")
    return experiment(
        model=vit.model(shape) | dict(positions="sinusoidal"),
        task=dict(
            name="masked_patches",
            crop="random",
            crop_area=(0.2, 1.0),
            flip=True,
            resize=256,
        ),
        source=dict(name="images"),
        data=dict(readers=8),
        train=dict(num_steps=250_000, batch=4096, log_every=100, eval_every=10_000),
        optimizer=dict(
            name="adamw",
            learning_rate=2.4e-3,
            schedule="cosine",
            warmup_steps=12_500,
            b2=0.95,
            weight_decay=0.05,
        ),
        checkpoint=dict(every=10_000),
        decode=dict(batch=256),
    )


def _digits():
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
        # Half of the 16 patches: fewer say too little about a digit of 8 x 8 pixels.
        task=dict(
            name="masked_patches",
            mask_ratio=0.5,
            normalize_pixels=False,
            shift=1,
            decoder_layers=1,
            decoder_width=64,
            decoder_heads=4,
        ),
        source=dict(name="digits"),
        train=dict(num_steps=3000, batch=32, log_every=100, eval_every=1 / 5),
        optimizer=dict(
            name="adamw",
            learning_rate=2e-3,
            schedule="cosine",
            warmup_steps=0.05,
            b2=0.95,
            weight_decay=0.05,
            clip_norm=1.0,
        ),
        checkpoint=dict(every=1 / 5),
        decode=dict(batch=180),
    )
