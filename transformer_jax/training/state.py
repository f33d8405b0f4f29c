"""The training state, initialised with its final sharding."""

import math
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer_jax import metrics
from transformer_jax.config import UserError
from transformer_jax.contracts.task import Context
from transformer_jax.distributed import hosts, sharding
from transformer_jax.layers import parameters

_CARRY_AXES = ("batch",)  # the logical axes of a carry's arrays


@struct.dataclass
class TrainState:
    """All that the next update depends on, except the config and the data.

    Attributes:
      step: () int32, the batches so far; data and dropout of the next depend on it.
      params: the parameters.
      opt_state: the state of the optimizer.
      metrics: sums since the last progress line.
      skipped: () int32, the updates that were not finite and not applied.
      last_skipped: () int32, the step of the latest of them, from 0; -1 without one.
      carry: arrays (rows of a batch, ...) that pass from an update to the next, split over the
        batch; None where the task has none.
      memory: small arrays that pass from the task's experience to that of the next step; None where
        the task has none.
      updates_per_step: more than one where a task makes several passes over a batch.
    """

    step: jax.Array
    params: Any
    opt_state: optax.OptState
    metrics: metrics.Metrics
    skipped: jax.Array
    last_skipped: jax.Array
    carry: Any = None
    memory: Any = None
    updates_per_step: int = struct.field(default=1, pytree_node=False)

    @property
    def updates(self) -> jax.Array:
        """() int32, the updates of the optimizer so far, applied or skipped."""
        return self.step * self.updates_per_step

    def rest(self) -> dict[str, Any]:
        """The parts of a checkpoint beside parameters and metrics. Carry and memory may be missing.

        Decoding reads only the parameters. The metrics are saved as JSON, because their names may
        change.
        """
        fields = ["step", "opt_state", "skipped", "last_skipped"]
        fields += [field for field in ("carry", "memory") if getattr(self, field) is not None]
        return {field: getattr(self, field) for field in fields}


def abstract(task, tx: optax.GradientTransformation, mesh: Mesh, table) -> TrainState:
    """The shapes, dtypes and shardings of the state; computes nothing.

    Raises UserError where the mesh does not divide a parameter.
    """
    return _placed(jax.eval_shape(partial(_create, task, tx), task.param_shapes), mesh, table)


def _placed(boxed, mesh: Mesh, table) -> Any:
    """The shapes, dtypes and shardings of a tree whose leaves declare their logical axes."""
    logical_axes = nn.get_partition_spec(boxed)

    def place(path, leaf, axes):
        if isinstance(leaf, optax.MaskedNode):  # the optimizer has no state of a frozen parameter
            return leaf
        spec = sharding.spec(axes, table) if axes is not None else PartitionSpec()
        named = NamedSharding(mesh, spec)
        sharding.check(leaf.shape, named, "parameter " + "/".join(parameters.names(path)))
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=named)

    return jax.tree_util.tree_map_with_path(
        place,
        nn.unbox(boxed),
        logical_axes,
        is_leaf=lambda x: isinstance(x, (jax.ShapeDtypeStruct, optax.MaskedNode)),
    )


def abstract_params(task, mesh: Mesh | None = None, table=None) -> Any:
    """The shapes, dtypes and shardings of the parameters; computes nothing.

    Without a mesh, each is complete on the first local device. Raises UserError where the mesh does
    not divide a parameter.
    """
    if mesh is not None:
        return _placed(task.param_shapes, mesh, table)
    device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device),
        nn.unbox(task.param_shapes),
    )


def init_params(task) -> Any:
    """The initial parameters, on the default device."""
    return jax.jit(lambda: nn.unbox(_first_params(task)))()


def zeros(abstract_metrics) -> metrics.Metrics:
    """Metrics of zeros, with the shardings of the argument."""
    return jax.tree.map(lambda x: put(np.zeros(x.shape, x.dtype), x.sharding), abstract_metrics)


def put(value: np.ndarray, sharding: jax.sharding.Sharding) -> jax.Array:
    """A global array of a value that is the same on all processes.

    `jax.device_put` would run a program that compares the value on all of them.
    """
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])


def make_init(task, tx: optax.GradientTransformation, abstract_state: TrainState):
    """Returns the jitted () -> initial state. Each device computes only its own part."""
    shardings = jax.tree.map(lambda x: x.sharding, abstract_state)
    sums = abstract_state.metrics

    def create():
        return nn.unbox(_create(task, tx, _first_params(task), sums))

    return jax.jit(create, out_shardings=shardings)


def init(task, tx: optax.GradientTransformation, abstract_state: TrainState) -> TrainState:
    """The initial state. Waits until it is computed, so that a lack of memory shows here."""
    return jax.block_until_ready(hosts.compiled(make_init(task, tx, abstract_state))())


def make_carry(task, rows: int, mesh: Mesh, table) -> Any:
    """The carry of `rows` rows at the beginning of a stream; None where the task has none."""
    by_rows = NamedSharding(mesh, sharding.spec(_CARRY_AXES, table))
    return jax.jit(lambda: task.initial_carry(rows), out_shardings=by_rows)()


def _first_params(task):
    return task.init(jax.random.key(task.config.train.seed))


def _create(task, tx, params, sums=None):
    """The first state. `sums` has the shapes of the metrics; None: the loss is traced for them."""
    carry = task.initial_carry(task.config.train.batch)
    memory = task.initial_memory()
    if sums is None:
        sums = _first_sums(task, carry, memory, nn.unbox(params))
    return TrainState(
        step=jnp.int32(0),
        params=params,
        opt_state=tx.init(params),
        metrics=metrics.zeros_like(sums),
        skipped=jnp.int32(0),
        last_skipped=jnp.int32(-1),
        carry=jax.tree.map(lambda x: nn.LogicallyPartitioned(x, _CARRY_AXES), carry),
        memory=memory,
        updates_per_step=math.prod(task.passes),
    )


def _first_sums(task, carry, memory, params) -> metrics.Metrics:
    """The shapes of the metrics of an update.

    Raises UserError where the carry of the loss is not the carry of the next update, or the memory
    of the experience not that of the next step.
    """
    context = Context(jax.random.key(0), jnp.int32(0), carry, jnp.float32(1), True, memory)
    first = partial(_first_loss, task, context)
    loss, following = jax.eval_shape(first, params, task.batch_spec(0))
    _check_same(task, "loss", "carry", carry, loss.carry)
    _check_same(task, "experience", "memory", memory, following)
    norms = ("grad_norm", "update_norm", "param_norm")
    norm = jax.ShapeDtypeStruct((), jnp.float32), jax.ShapeDtypeStruct((), jnp.int32)
    return loss.metrics | dict.fromkeys(norms, norm)


def _first_loss(task, context, params, batch):
    """The loss of the first batch, and the memory that follows."""
    memory = context.memory
    if task.rollouts is not None:
        batch = task.rollouts(params, batch, context)
        batch["rewards"] = jnp.zeros(jax.tree.leaves(batch)[0].shape[0])
    if task.experience is not None:
        batch, memory = task.experience(params, batch, context)
    return task.loss(params, batch, context._replace(memory=None)), memory


def _check_same(task, method: str, kind: str, initial, following) -> None:
    """Raises UserError where a method of the task changes the shapes of its carry or memory."""
    before, after = (
        jax.tree.map(lambda x: f"{x.dtype}{list(x.shape)}", tree) for tree in (initial, following)
    )
    if before != after:
        raise UserError(
            f"config.task.name={task.config.task.name!r}: its {method} returns the {kind} "
            f"{after}, initial_{kind} {before}; they must have the same shapes and dtypes"
        )
