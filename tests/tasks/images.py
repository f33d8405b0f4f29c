"""Tiny configs of images, and small image files."""

import numpy as np
from PIL import Image

from transformer_jax import config as configs

CLASSES = ("dark", "light")
MODEL = dict(
    name="vit",
    image_size=8,
    patch_size=2,
    channels=1,
    d_model=16,
    num_layers=2,
    num_heads=2,
    init_std=0.1,
)
DECODER = dict(decoder_layers=1, decoder_width=16, decoder_heads=2)


def picture(number, size=(20, 24)):
    """Returns random pixels (H, W, 3) of the class number % 2."""
    pixels = np.random.default_rng(number).integers(0, 100, (*size, 3)) + 150 * (number % 2)
    return Image.fromarray(pixels.astype(np.uint8))


def write_images(folder, count=12, ending="png"):
    """Writes pictures into a folder for each class, and returns the folder."""
    for number in range(count):
        subfolder = folder / CLASSES[number % 2]
        subfolder.mkdir(parents=True, exist_ok=True)
        picture(number).save(subfolder / f"{number:02}.{ending}")
    return folder


def build(folder, task="image_classification", source="digits", model=(), **keys):
    """Returns a tiny config. `keys` are those of config.task."""
    if task == "masked_patches":
        keys = {"mask_ratio": 0.5, **DECODER, **keys}
    return configs.experiment(
        model=MODEL | dict(model),
        task=dict(name=task, **keys),
        source=dict(name=source),
        data=dict(cache=f"{folder}/cache"),
        train=dict(num_steps=4, batch=8, log_every=2, eval_every=4),
        optimizer=dict(learning_rate=1e-3),
        checkpoint=dict(every=4),
        decode=dict(batch=64),
    )
