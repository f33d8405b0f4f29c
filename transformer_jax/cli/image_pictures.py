"""The pictures of `inspect` that are about images: attention rollout and reconstructions."""

import numpy as np

from transformer_jax.cli import flags as cli
from transformer_jax.config import UserError

_COUNT = 8  # evaluated images that are drawn where none is named


def rollout(options, folder: str):
    """Returns the figure of the attention rollout over images (Abnar & Zuidema 2020)."""
    from transformer_jax import pictures

    task, params, shown = _opened(options, folder, "rollout", "reads images by attention")
    maps = task.rollout(params, shown)
    title = f"attention rollout (Abnar & Zuidema 2020), {folder}"
    return pictures.shares(shown, maps, title)


def reconstruction(options, folder: str):
    """Returns the figure of images, their visible patches, and their reconstruction."""
    from transformer_jax import pictures

    task, params, shown = _opened(options, folder, "reconstruct", "reconstructs hidden patches")
    result = task.reconstruct(params, shown)
    rows = {
        "image": result.originals,
        "visible": result.visible,
        "reconstructed": result.reconstructed,
    }
    return pictures.images(rows, f"hidden patches, {folder}")


def _opened(options, folder: str, method: str, ability: str):
    """Returns (task, params, images): those of --image, or the first ones of --set."""
    from transformer_jax.data.image_rows import FileRows

    allowed = ("decode.", "data.valid_", "data.test_", "data.cache")
    task, params = cli.open_run(method, ability, allowed, folder)
    if options.image:
        component = FileRows(options.image, task.view, task.source.max_bytes)
    else:
        component = task.of_split(options.set)
        if component is None:
            raise UserError(f"--set={options.set}: this run has no such images; give --image=FILE")
    count = min(len(component), len(options.image) or _COUNT)
    rows = component.rows([(number, 0) for number in range(count)])
    return task, params, np.stack([row["images"] for row in rows])
