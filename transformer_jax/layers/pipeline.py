"""Pipeline parallelism: the layers of a stack are divided into stages, on other devices each.

The schedule is GPipe's (Huang et al. 2019, section 2.3): the rows of a batch are divided into
microbatches, which pass through the stages one after another. While stage 1 computes the first
microbatch, stage 0 computes the second one. The backward pass is the derivative of this loop, in
which the microbatches pass through the stages in the opposite direction.

In a step of the loop, all stages compute at once, each a microbatch of its own: one function,
mapped over an axis of stages that the mesh axis "pipeline" splits (Xu et al. 2021, section 3.3).
Between two steps, the axis is rotated by one, so that each device sends its output to its neighbor
and to no other device.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree, Shaped

from transformer_jax.config import UserError
from transformer_jax.distributed import sharding

Rows = PyTree[Shaped[Array, "B ..."]]


def bubble(stages: int, microbatches: int) -> float:
    """Returns the share of the time in which a stage has nothing to compute.

    The first microbatch reaches the last stage after stages - 1 steps, in which that stage waits,
    as the first stage does at the end.
    """
    return (stages - 1) / (microbatches + stages - 1)


def run(
    layer: Callable[[Any, Int[Array, ""], Rows, Rows], Rows],
    stacked: PyTree[Shaped[Array, "N ..."]],
    x: Rows,
    others: Rows,
) -> Rows:
    """Returns the rows x after all layers, like a scan of `layer` over `stacked`.

    Args:
      layer: (parameters of a layer, number of the draw, x, others) -> x. Each pair of a layer and a
        microbatch has its own number.
      stacked: arrays (layers, ...), which the mesh splits into stages.
      x: arrays (B, ...), the input of the first layer.
      others: arrays (B, ...) that each layer reads, such as segment ids. They pass through the
        stages together with their rows.

    Raises UserError if the stages do not divide the layers or the microbatches, or the microbatches
    the rows.
    """
    stages, microbatches = sharding.parts("layers"), sharding.microbatches()
    num_layers, num_rows = (len(jax.tree.leaves(tree)[0]) for tree in (stacked, x))
    _check(stages, microbatches, num_layers, num_rows)
    by_stage = jax.tree.map(
        lambda array: array.reshape(stages, num_layers // stages, *array.shape[1:]), stacked
    )
    waiting = jax.tree.map(partial(divided, microbatches=microbatches), (x, others))
    waiting = jax.tree.map(lambda a: a.reshape(stages, -1, *a.shape[1:]), waiting)
    with sharding.without("pipeline"):
        outputs = _loop(layer, by_stage, waiting, num_layers)
    return jax.tree.map(lambda a: joined(a.reshape(-1, *a.shape[2:])), outputs)


# Outside of the stack, the axis "pipeline" splits the rows of a batch between the axes "data" and
# "fsdp"; here, it splits the microbatches. No row has to move to another device for that.


def divided(rows: Shaped[Array, "B ..."], microbatches: int) -> Shaped[Array, "N ..."]:
    """Returns the rows of a batch in microbatches, (B, ...) -> (N, B / N, ...)."""
    stages, outer, inner = _parts()
    x = rows.reshape(outer, stages, inner, microbatches // stages, -1, *rows.shape[1:])
    x = jnp.moveaxis(x, (1, 3), (0, 1)).reshape(microbatches, -1, *rows.shape[1:])
    with sharding.without("pipeline"):
        return sharding.constrain(x, "layers", "batch", *[None] * (x.ndim - 2))


def joined(x: Shaped[Array, "N ..."]) -> Shaped[Array, "B ..."]:
    """Returns the rows of microbatches in one batch, (N, B / N, ...) -> (B, ...)."""
    stages, outer, inner = _parts()
    rows = x.reshape(stages, len(x) // stages, outer, inner, -1, *x.shape[2:])
    rows = jnp.moveaxis(rows, (0, 1), (1, 3)).reshape(-1, *x.shape[2:])
    return sharding.constrain(rows, "batch", *[None] * (rows.ndim - 1))


def _parts() -> tuple[int, int, int]:
    """Returns into how many parts the axes "pipeline", "data" and "fsdp" split the rows."""
    stages = sharding.parts("layers")
    outer = sharding.parts("lookup") // stages
    return stages, outer, sharding.parts("batch") // (stages * outer)


def _check(stages: int, microbatches: int, num_layers: int, num_rows: int) -> None:
    key, devices = f"config.mesh.pipeline={stages}", sharding.parts("batch") // stages
    if num_layers % stages:
        raise UserError(f"{key} does not divide the {num_layers} layers, or patterns of layers")
    if microbatches % stages:
        raise UserError(
            f"{key} does not divide config.train.accumulation={microbatches}, the number of "
            f"microbatches that pass through the stages; set it to {stages} or {2 * stages}"
        )
    if num_rows % (devices * microbatches):
        raise UserError(
            f"{key}: {num_rows} rows can't be divided into {microbatches} microbatches on "
            f"{devices} x {stages} devices; change config.train.batch or config.train.accumulation"
        )


def _loop(layer: Callable, by_stage, waiting, num_layers: int):
    """Returns the outputs (stages, microbatches of a stage, rows, ...) of all microbatches.

    `waiting` are the microbatches, in two trees (x, others) of that shape. They wait on all
    devices, so that none holds the whole batch. In each step, those in one slot move to the device
    before, and the output of the last stage takes the place that becomes free.
    """
    stages, slots = jax.tree.leaves(waiting)[0].shape[:2]
    numbers = jnp.arange(stages)

    def stage(layers, number, step, x, others):
        def body(x, numbered):
            index, parameters = numbered
            draw = step * num_layers + number * (num_layers // stages) + index
            return layer(parameters, draw, x, others), None

        return jax.lax.scan(body, x, (jnp.arange(num_layers // stages), layers))[0]

    # `spmd_axis_name` puts "pipeline" into the sharding constraints of the layers.
    on_all = jax.vmap(stage, in_axes=(0, 0, None, 0, 0), spmd_axis_name="pipeline")

    def step(state, number):
        waiting, arrived = state
        slot = number % slots
        at_slot = partial(jax.lax.dynamic_index_in_dim, index=slot, axis=1, keepdims=False)
        leaving = jax.tree.map(at_slot, waiting)
        x, others = _where(numbers == 0, leaving, arrived)
        done = (on_all(by_stage, numbers, number, x, others), others)
        moved = _where(numbers == stages - 1, done, _rotated(leaving, -1))
        put = partial(jax.lax.dynamic_update_index_in_dim, index=slot, axis=1)
        return (jax.tree.map(put, waiting, moved), _rotated(done, 1)), None

    nothing = jax.tree.map(lambda x: jnp.zeros_like(x[:, 0]), waiting)
    count = stages * slots + stages - 1
    ((outputs, _), _), _ = jax.lax.scan(step, (waiting, nothing), jnp.arange(count))
    # The output of a microbatch is on the device where it waited, stages - 1 slots later.
    order = (jnp.arange(slots) + stages - 1) % slots
    return jax.tree.map(lambda x: x[:, order], outputs)


def _where(condition: Shaped[Array, " S"], first, second):
    """Returns arrays (stages, ...), from `first` for the stages that fulfil the condition."""

    def choose(a, b):
        return jnp.where(condition.reshape(-1, *[1] * (a.ndim - 1)), a, b)

    return jax.tree.map(choose, first, second)


def _rotated(tree, shift: int):
    """Returns arrays (stages, ...) in which each stage has what its neighbor had."""

    def rotated(x):
        x = jnp.roll(x, shift, axis=0)
        return sharding.constrain(x, "layers", "batch", *[None] * (x.ndim - 2))

    return jax.tree.map(rotated, tree)
