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
    _check(stages, microbatches, num_layers, num_rows // (sharding.parts("batch") // stages))
    by_stage = jax.tree.map(
        lambda array: array.reshape(stages, num_layers // stages, *array.shape[1:]), stacked
    )
    waiting = jax.tree.map(partial(divided, microbatches=microbatches), (x, others))
    waiting = jax.tree.map(lambda a: a.reshape(stages, -1, *a.shape[1:]), waiting)
    with sharding.without("pipeline"):
        outputs = _loop(layer, by_stage, waiting, num_layers)
    return jax.tree.map(lambda a: joined(a.reshape(-1, *a.shape[2:])), outputs)


# Outside of the stack, the axis "pipeline" splits the rows of a batch between the axis "data" and
# the others; here, it splits the microbatches. No row has to move to another device for that.


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
    """Returns into how many parts "pipeline", the axes before it and those after it split rows."""
    stages = sharding.parts("layers")
    outer = sharding.parts_before("batch", "pipeline")
    return stages, outer, sharding.parts("batch") // (stages * outer)


def check_microbatches(stages: int, microbatches: int) -> None:
    """Raises UserError if the stages do not divide the number of microbatches."""
    if microbatches % stages:
        raise UserError(
            f"config.mesh.pipeline={stages} does not divide config.train.accumulation="
            f"{microbatches}, the number of microbatches that pass through the stages; set it to "
            f"{stages} or {2 * stages}"
        )


def _check(stages: int, microbatches: int, num_layers: int, num_rows: int) -> None:
    """Checks what `run` divides. `num_rows` are the rows for one of the devices of a stage."""
    check_microbatches(stages, microbatches)
    key = f"config.mesh.pipeline={stages}"
    if num_layers % stages:
        raise UserError(f"{key} does not divide the {num_layers} layers, or patterns of layers")
    if num_rows % microbatches:
        raise UserError(
            f"{key}: {num_rows} rows of a batch for each device of a stage can't be divided into "
            f"{microbatches} microbatches; change config.train.batch or config.train.accumulation"
        )


def _loop(layer: Callable, by_stage, waiting, num_layers: int):
    """Returns the outputs (stages, microbatches of a stage, rows, ...) of all microbatches.

    `waiting` are the microbatches, in two trees (x, others) of that shape: they wait on all
    devices, so that none holds the whole batch. Each device has slots, one for each of its
    microbatches. In each step, one slot is next on all devices: stage 0 computes the microbatch
    that its device has there, the others move to the device before theirs, and the last device
    puts there what its stage has computed. With two stages, and four microbatches a, b, c and d
    whose outputs are A, B, C and D:

        step                      0      1      2      3      4      end
        stage 0 computes          a      b      c      d      -
        stage 1 computes          -      a      b      c      d
        device 0 has, before it   a b    c b    c d    - d    - A    B A
        device 1 has, before it   c d    - d    - A    B A    B C    D C
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
        left, right = _exchanged(leaving, done)
        moved = _where(numbers == stages - 1, done, left)
        put = partial(jax.lax.dynamic_update_index_in_dim, index=slot, axis=1)
        return (jax.tree.map(put, waiting, moved), right), None

    # Stages without a microbatch compute something that nobody reads. They are given rows of the
    # batch rather than zeros, for which a layer may have a derivative that is not finite.
    anything = jax.tree.map(lambda x: x[:, 0], waiting)
    count = stages * slots + stages - 1
    ((outputs, _), _), _ = jax.lax.scan(step, (waiting, anything), jnp.arange(count))
    # The output of a microbatch is on the device where it waited, stages - 1 slots later.
    order = (jnp.arange(slots) + stages - 1) % slots
    return jax.tree.map(lambda x: x[:, order], outputs)


def _where(condition: Shaped[Array, " S"], first, second):
    """Returns arrays (stages, ...), from `first` for the stages that fulfil the condition."""

    def choose(a, b):
        return jnp.where(condition.reshape(-1, *[1] * (a.ndim - 1)), a, b)

    return jax.tree.map(choose, first, second)


def _exchanged(leaving, done):
    """Returns what arrives from the next stage of `leaving`, and from the one before of `done`."""
    is_cpu = sharding.platform() == "cpu"
    if is_cpu:
        leaving, done = jax.lax.optimization_barrier((leaving, done))
    arrays, structure = jax.tree.flatten((leaving, done))
    shifts, _ = jax.tree.flatten(
        (jax.tree.map(lambda x: -1, leaving), jax.tree.map(lambda x: 1, done))
    )
    arrived = []
    for x, shift in zip(arrays, shifts):
        if is_cpu and arrived:
            # XLA on CPU runs collectives that do not depend on each other in any order, another one
            # on each device, so that devices may wait for each other for ever.
            x, arrived[-1] = jax.lax.optimization_barrier((x, arrived[-1]))
        x = jnp.roll(x, shift, axis=0)
        arrived.append(sharding.constrain(x, "layers", "batch", *[None] * (x.ndim - 2)))
    return jax.tree.unflatten(structure, arrived)
