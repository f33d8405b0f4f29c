"""The programs that a config compiles to on a mesh."""

import dataclasses
import functools
import math
from typing import Any

import jax
import optax

from transformer_jax import hardware
from transformer_jax.config import UserError
from transformer_jax.distributed import sharding
from transformer_jax.layers import parameters
from transformer_jax.pictures.progress import say
from transformer_jax.training import optimizer
from transformer_jax.training import state as states
from transformer_jax.training.step import Optimizer, make_eval_step, make_train_step

# The positions of the updates between two progress lines are counted as int32.
_MAX_POSITIONS = 2**31


@dataclasses.dataclass(frozen=True)
class Program:
    """The mesh, the state, and the training and evaluation steps of a config.

    Nothing is allocated or compiled before it is used.

    Attributes:
      mesh: the device mesh.
      table: the mesh axes of each logical axis.
      tx: the optimizer.
      learning_rate: the learning rate by applied update, from 0.
      batch_sharding: of a batch's arrays (microbatches, rows, ...).
      batch: shapes, dtypes and shardings of a batch of the first row shape.
      state: a TrainState of shapes, dtypes and shardings.
      traits: the tree of the parameters' traits.
      train_step: the jitted (state, batch) -> state.
      eval_step: the jitted (params, batch, carry) -> (metrics, carry).
    """

    mesh: jax.sharding.Mesh
    table: dict[str, tuple[str, ...]]
    tx: optax.GradientTransformation
    learning_rate: optax.Schedule
    batch_sharding: jax.sharding.NamedSharding
    batch: dict[str, jax.ShapeDtypeStruct]
    state: Any
    traits: Any
    train_step: Any
    eval_step: Any

    @functools.cached_property
    def peak(self) -> float:
        """The peak FLOP/s of the mesh.

        MFU is the share of it that the FLOPs of the model take (Chowdhery et al. 2022,
        appendix B).
        """
        rate, source = hardware.peak(self.mesh)
        say(f"MFU is the share of {rate / 1e12:.4g} TFLOP/s, {source}")
        return rate

    @classmethod
    def of(cls, config, task, devices=None) -> "Program":
        """The program of a config on `devices`, by default all.

        Raises UserError where the mesh does not divide the devices, a batch or a parameter.
        """
        mesh = sharding.make_mesh(config.mesh, devices)
        table = sharding.rules(config.mesh)
        batch_sharding = sharding.batch_sharding(mesh, table)
        _check_positions(config.train, task)
        # Every row shape is checked; a program is planned for the first.
        batch, *_ = [
            _batch(config.train, task.batch_spec(row_shape), batch_sharding)
            for row_shape in range(task.num_row_shapes)
        ]
        traits = parameters.traits(task.param_shapes)
        num_updates = config.train.num_steps * math.prod(task.passes)
        tx = optimizer.make(config.optimizer, num_updates, task, traits)
        state = states.abstract(task, tx, mesh, table)
        learning_rate = optimizer.schedule(config.optimizer, num_updates)
        train_step = make_train_step(task, Optimizer(tx, learning_rate), mesh, table, state)
        if task.passes != (1, 1) and state.carry is not None:
            raise UserError(
                f"config.task.name={config.task.name!r}: has a carry, so it makes one pass over a "
                f"batch, not (epochs, minibatches)={task.passes}"
            )
        if task.experience is not None or task.passes != (1, 1):
            train_step.eval_shape(state, batch)  # raises where a batch can't be divided
        return cls(
            mesh=mesh,
            table=table,
            tx=tx,
            learning_rate=jax.jit(learning_rate),  # one program, where its ops would be ten
            batch_sharding=batch_sharding,
            batch=batch,
            state=state,
            traits=traits,
            train_step=train_step,
            eval_step=make_eval_step(task, mesh, table),
        )


def _check_positions(train, task) -> None:
    """Raises UserError where an int32 can't count the positions between two progress lines."""
    row = max(task.positions(row_shape) for row_shape in range(task.num_row_shapes))
    epochs, _ = task.passes
    positions = row * train.batch * train.log_every * epochs
    if positions >= _MAX_POSITIONS:
        raise UserError(
            f"config.train.log_every={train.log_every}: {positions:,} positions between two "
            f"progress lines, must be less than {_MAX_POSITIONS:,}; log more often"
        )


def _batch(train, specs, batch_sharding) -> dict[str, jax.ShapeDtypeStruct]:
    """The arrays of a batch, (microbatches, rows of a microbatch, ...).

    Raises UserError where the mesh does not divide the rows of a microbatch.
    """
    batch = {}
    for name, spec in specs.items():
        for size in (train.first_batch, spec.shape[0]):
            shape = (train.accumulation, size // train.accumulation, *spec.shape[1:])
            sharding.check(
                shape,
                batch_sharding,
                "batch (config.train.accumulation, rows of a microbatch, positions)",
            )
        batch[name] = jax.ShapeDtypeStruct(shape, spec.dtype, sharding=batch_sharding)
    return batch
