"""Pre-trains a small Linformer on the documentation strings of the Python standard library.

It takes minutes on a laptop and downloads nothing. Rows, sizes and optimizer are those of
roberta/quickstart.py.

    python -m transformer_jax.train --config=configs/linformer/quickstart.py \\
        --workdir=runs/linformer
    python -m transformer_jax.fill_mask --workdir=runs/linformer --text="Return the [MASK] list."
"""

from transformer_jax.config import experiment, load_module

base = load_module("roberta/quickstart")
TINY = base.TINY | dict(model=base.TINY["model"] | dict(rank=8))


def get_config():
    config = base.get_config().to_dict()
    model = config["model"] | dict(name="linformer", rank=16)
    return experiment(
        model=model,
        **{name: config[name] for name in ("task", "data", "train", "optimizer", "checkpoint")},
    )
