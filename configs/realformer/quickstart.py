"""Pre-trains a small RealFormer on the documentation strings of the Python standard library.

It takes minutes on a laptop and downloads nothing. Rows, sizes and optimizer are those of
bert/quickstart.py.

    python -m transformer_jax.train --config=configs/realformer/quickstart.py \\
        --workdir=runs/realformer
    python -m transformer_jax.fill_mask --workdir=runs/realformer --text="Return the [MASK] list."
"""

from transformer_jax.config import experiment, load_module

base = load_module("bert/quickstart")
TINY = base.TINY


def get_config():
    config = base.get_config().to_dict()
    model = config["model"] | dict(name="realformer")
    return experiment(
        model=model,
        **{name: config[name] for name in ("task", "data", "train", "optimizer", "checkpoint")},
    )
