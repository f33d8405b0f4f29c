"""Parameters and operations of a config, by shapes and formulas. No arrays and no data."""

import math

import jax

from transformer_jax.data.rows import Phase
from transformer_jax.training import frozen, state


def parameters(task) -> dict[str, int]:
    """Returns the number of parameters, without rows that only pad a vocabulary.

    For a model with pre-training heads, the heads and the encoder are also counted separately; so
    are the trained parameters where others are frozen.
    """
    params = state.abstract_params(task)
    model = task.model
    counts = {"params": _size(params) - model.num_padding()}
    if heads := [name for name in model.heads if name in params]:
        counts["params_heads"] = sum(_size(params[name]) for name in heads)
        counts["params_encoder"] = counts["params"] - counts["params_heads"]
    trained, unchanged = frozen.split(params, lambda path: task.group(path) is None)
    if unchanged:
        counts["params_trained"] = _size(trained)
    return counts


def training(task) -> tuple[float, int]:
    """Returns the FLOPs and the target positions, with padding, of the whole run.

    The FLOPs are those of forward and backward passes over the rows of each phase, as in
    metrics.jsonl. For fine-tuning they are an upper bound: rows count at full length.
    """
    train = task.config.train
    growing = Phase((), train.batch, first_batch=train.first_batch, ramp_steps=train.ramp_steps)
    steps_of_phases = task.phase_steps
    if steps_of_phases is None:
        rows = [growing.rows_before(train.num_steps)]
    else:
        rows = [train.batch * steps for steps in steps_of_phases]
    flops = sum(task.flops(shape) * count for shape, count in enumerate(rows))
    positions = sum(task.positions(shape) * count for shape, count in enumerate(rows))
    return flops, positions


def _size(tree) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))
