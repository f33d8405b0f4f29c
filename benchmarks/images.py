"""Measures a ViT's training step against torch, and the data path of images.

python benchmarks/images.py [--json=FILE] [--case=step|rows|waiting] [--tiny]

The peer of `step` is Hugging Face's ViTForImageClassification on torch, eager and compiled, with
the same shapes and rows (benchmarks/peers.py says how to install it). `rows` decodes and augments
JPEG files of 500 x 375 pixels in this process, without a model: their number a second. `waiting`
trains on such files: the share of an update's time in which the training waits for rows. Both need
the extra `vision`.
"""

import functools
import os
import pathlib
import statistics
import tempfile
import time

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import numpy as np
from harness import apart, beside, main, sides
from steps import Peer, our_step, peer_step, quiet
from train_step import matmul_rate

from transformer_jax.config import experiment
from transformer_jax.data import rows as reading
from transformer_jax.runs.spec import make_task
from transformer_jax.tasks.image_classification import ImageClassification
from transformer_jax.training import step as states
from transformer_jax.training import trainer
from transformer_jax.training.step import Program

CLASSES = 1000
SMALL = dict(side=224, patch=16, layers=12, width=384, rows=16)  # ViT-S/16
BASE = SMALL | dict(width=768, rows=8)  # ViT-B/16
TINY = dict(side=32, layers=2, rows=2)
AUGMENTED = dict(crop="random", flip=True, rand_augment=(2, 9))
PHOTO = (375, 500)  # height and width of a common photograph in ImageNet


def rows_of(*, side: int, patch: int, layers: int, width: int, rows: int, **model):
    """Returns the task, a batch of random images, and the same images for the peer."""
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (rows, side, side, 3)).astype(np.uint8)
    labels = random.integers(0, CLASSES, (rows, 1))
    shape = dict(
        name="vit",
        image_size=side,
        patch_size=patch,
        num_layers=layers,
        d_model=width,
        num_heads=width // 64,
    )
    config = quiet(rows, shape, dict(name="image_classification"), **model)
    task = ImageClassification(config, None, labels=tuple(map(str, range(CLASSES))))
    pixels = ((images / 255 - 0.5) / 0.5).transpose(0, 3, 1, 2).astype(np.float32)
    batch = {"images": images, "labels": labels, "shares": np.ones((rows, 1), np.float32)}
    return task, batch, {"pixel_values": pixels, "labels": labels[:, 0]}


def step(tiny: bool):
    """Training steps of ViT-S/16 and ViT-B/16 at 224 pixels."""
    import peers

    ways = [name for name, options in peers.TRAINING.items() if not (tiny and options["compiled"])]
    for name, sizes in (("ViT-S/16", SMALL), ("ViT-B/16", BASE)):
        sizes = sizes | (TINY if tiny else {})
        of_peer = {key: sizes[key] for key in ("side", "patch", "layers", "width")}
        peer = Peer("vit", of_peer | {"classes": CLASSES})
        makers = {"ours": ("jax", functools.partial(our_step, rows_of, sizes))}
        makers |= {
            way: ("torch", functools.partial(peer_step, rows_of, sizes, peer, way)) for way in ways
        }
        spent = sides(makers, 2 if tiny else 9)
        task, _, _ = rows_of(**sizes)
        share = task.flops() * sizes["rows"] / spent["ours"] / apart(matmul_rate)
        yield from beside(
            f"{name}, {sizes['rows']} images of {sizes['side']}",
            spent,
            "images/s",
            lambda seconds, rows=sizes["rows"]: rows / seconds,
            share=share,
        )


def rows(tiny: bool):
    """Images decoded and augmented a second, by this process alone."""
    with tempfile.TemporaryDirectory() as folder:
        task = make_task(_config(folder, tiny, readers=0))
        for name, split in (("crop, flip and RandAugment", "train"), ("centre crop", "valid")):
            component = task.split_rows(split)
            numbers = [(number % len(component), 0) for number in range(16 if tiny else 256)]
            rates = []
            for _ in range(2 if tiny else 5):
                start = time.perf_counter()
                component.rows(numbers)
                rates.append(len(numbers) / (time.perf_counter() - start))
            yield {
                "case": f"JPEG of {PHOTO[1]} x {PHOTO[0]} to 224: {name}",
                "ours": statistics.median(rates),
                "unit": "images/s",
            }


def waiting(tiny: bool):
    """The share of a training's time in which it waits for rows."""
    for readers in (0, 1):
        with tempfile.TemporaryDirectory() as folder:
            config = _config(folder, tiny, readers)
            waited, total = _waited(config, 3 if tiny else 20)
            yield {
                "case": f"ViT-S/16, {config.train.batch} images an update, {readers} readers",
                "ours": 100 * waited / total,
                "unit": "% waiting",
            }
            yield {
                "case": f"ViT-S/16, {config.train.batch} images an update, {readers} readers",
                "ours": total,
                "unit": "s/update",
            }


def _waited(config, updates: int) -> tuple[float, float]:
    """Returns the seconds of an update that pass until its rows are there, and all of them."""
    task = make_task(config)
    program = Program.of(config, task, jax.devices()[:1])
    state = states.init(task.config, program)
    read = task.rows().train.batch
    waited = []
    with reading.started(read, config.data.readers) as processes:
        stream = trainer.stream(
            read,
            config.train.batch,
            1,
            program.batch_sharding,
            range(updates + 2),
            readers=processes,
        )
        start = time.perf_counter()
        for number in range(updates + 2):
            if number == 2:  # compiled, and the rows are read ahead
                waited.clear()
                start = time.perf_counter()
            began = time.perf_counter()
            batch = next(stream)
            waited.append(time.perf_counter() - began)
            state = jax.block_until_ready(program.train_step(state, batch))
        return sum(waited) / updates, (time.perf_counter() - start) / updates


def _config(folder: str, tiny: bool, readers: int):
    """Returns the config of a ViT-S/16 on photographs that are written to the folder."""
    _write_photos(pathlib.Path(folder) / "photos", 16 if tiny else 256)
    sizes = SMALL | (TINY if tiny else {})
    config = quiet(
        sizes["rows"],
        dict(
            name="vit",
            image_size=sizes["side"],
            num_layers=sizes["layers"],
            d_model=sizes["width"],
            num_heads=sizes["width"] // 64,
        ),
        dict(name="image_classification", **AUGMENTED),
    )
    sections = config.to_dict()
    sections["source"] = dict(name="images")
    photos = f"{folder}/photos"
    sections["data"] |= dict(train_files=photos, valid_files=photos, readers=readers)
    sections["data"]["cache"] = f"{folder}/cache"
    return experiment(**sections)


def _write_photos(folder: pathlib.Path, count: int) -> None:
    """Writes JPEG files of smooth colours with some noise, of two classes."""
    from PIL import Image

    random = np.random.default_rng(0)
    for number in range(count):
        subfolder = folder / ("even", "odd")[number % 2]
        subfolder.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(random.integers(0, 256, (24, 32, 3)).astype(np.uint8))
        smooth = np.array(coarse.resize(PHOTO[::-1], Image.Resampling.BICUBIC), int)
        noisy = np.clip(smooth + random.normal(0, 6, smooth.shape), 0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(subfolder / f"{number:04}.jpg", quality=90)


if __name__ == "__main__":
    main(
        __doc__,
        {"step": step, "rows": rows, "waiting": waiting},
        ("jax", "flax", "pillow"),
        ("step", "rows", "waiting"),
        releases=True,
    )
