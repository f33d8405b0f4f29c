"""Parameters and operations of a config, counted from shapes and formulas: nothing is allocated, no
data is opened.
"""

import math

import jax

from transformer_jax.data.rows import Phase
from transformer_jax.training import state


def parameters(task) -> dict[str, int]:
    """Parameters, without rows that only fill up a vocabulary; those of pre-training heads, where
    there are any, apart.
    """
    params, model = state.abstract_params(task), task.model
    size = lambda tree: sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))
    counts = {"params": size(params) - getattr(model, "num_padding", int)()}
    if heads := [name for name in getattr(model, "HEADS", ()) if name in params]:
        counts["params_heads"] = sum(size(params[name]) for name in heads)
        counts["params_encoder"] = counts["params"] - counts["params_heads"]
    return counts


def training(task) -> tuple[float, int]:
    """(FLOPs, target positions with padding) of the whole run: forward and backward of each phase's
    rows, as metrics.jsonl counts them; of fine-tuning at most, whose rows are counted whole.
    """
    train = task.config.train
    growing = Phase((), train.batch, first_batch=train.first_batch, ramp_steps=train.ramp_steps)
    planned = getattr(task, "phase_steps", None)
    rows = (
        [growing.before(train.num_steps)]
        if planned is None
        else [train.batch * steps for steps in planned]
    )
    return sum(task.flops(phase) * count for phase, count in enumerate(rows)), sum(
        task.positions(phase) * count for phase, count in enumerate(rows)
    )
