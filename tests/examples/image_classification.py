"""Small images in a folder for each of two classes, or none for a built-in source."""

import numpy as np
from PIL import Image


def write(config, folder):
    if config.source.name != "images":
        return {}
    generator = np.random.default_rng(0)
    for number in range(16):
        subfolder = folder / "images" / ("dark", "light")[number % 2]
        subfolder.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 128, (20, 24, 3)) + 127 * (number % 2)
        Image.fromarray(pixels.astype(np.uint8)).save(subfolder / f"{number:02}.png")
    return {"data.train_files": f"{folder}/images", "data.valid_files": f"{folder}/images"}
