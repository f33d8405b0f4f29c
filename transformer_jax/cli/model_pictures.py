"""The pictures of `draw` that are about masks, positions, and the results of a run."""

from transformer_jax.config import UserError


def result(texts: list[str], task, params, folder: str):
    """Returns the figure of a run's results that its task defines."""
    if not callable(task.result):
        raise UserError(
            f"--workdir={folder}: a {task.config.task.name} run, whose results have no picture"
        )
    return task.result(params, texts)


def positions(task=None, params=None, folder: str = ""):
    """Returns the figure of the position vectors of a run; without one, that of the sinusoids."""
    import numpy as np

    from transformer_jax import pictures
    from transformer_jax.layers.embeddings import position_codes, sinusoids

    if task is None:
        return pictures.positions(
            np.asarray(sinusoids(np.arange(100), 128)),
            "sinusoids (Vaswani et al. 2017, section 3.5): 100 positions, d_model 128",
        )
    if "position_embed" in params:
        table = np.asarray(params["position_embed"]["embedding"], np.float32)
        return pictures.similarity(table, f"learned positions, {folder}")
    kind = task.config.model.get("positions", "none")
    if kind in ("none", "rotary") or task.model.modality != "tokens":
        name = task.config.model.name
        raise UserError(f"--workdir={folder}: config.model.name={name!r} has no position vectors")
    length = min(task.model.window, 256)
    width = task.model.position_width or task.model.d_model
    return pictures.positions(
        np.asarray(position_codes(kind, np.arange(length), width, task.model.max_length)),
        f"{kind} positions of {folder}: {length} positions, width {width}",
    )


def masks():
    """Returns the figure of the keys that a query sees under some masks."""
    import jax.numpy as jnp
    import numpy as np

    from transformer_jax import pictures
    from transformer_jax.layers.masks import Mask

    length = 12
    padding = jnp.array([[1] * 8 + [0] * 4])
    packed = jnp.array([[1] * 5 + [2] * 4 + [3] * 3])
    examples = {
        "causal": Mask(causal=True),
        "padding: 8 tokens of 12": Mask(key_segments=padding),
        "packed: 5 + 4 + 3 tokens": Mask(query_segments=packed, key_segments=packed),
        "packed and causal": Mask(causal=True, query_segments=packed, key_segments=packed),
        "local: a window of 4": Mask(causal=True, window=jnp.int32(4)),
    }
    dense = {
        name: np.broadcast_to(mask.dense(length, length)[0, 0], (length, length))
        for name, mask in examples.items()
    }
    return pictures.masks(dense, "keys that a query sees (dark)")
