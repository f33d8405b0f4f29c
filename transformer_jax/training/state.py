"""The training state, which is initialized directly with its final sharding."""

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
    """Everything that the next update depends on, except for the config and the data.

    Attributes:
      step: () int32, the number of batches so far; the next batch and its dropout depend on it.
      params: the parameters.
      opt_state: the state of the optimizer.
      metrics: the sums since the last progress line.
      skipped: () int32, the number of updates that were not finite and therefore not applied.
      last_skipped: () int32, the step of the latest of them, from 0; -1 if there was none.
      carry: arrays (rows of a batch, ...) that each update passes on to the next one, such as a
        recurrent state, split over the batch; None if the task has none.
      memory: small arrays that the task's experience passes on to the experience of the next step,
        such as the coefficient of a controller; None if the task has none.
      updates_per_step: more than one if the task makes several passes over a batch.
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
        """() int32, the number of optimizer updates so far, whether applied or skipped."""
        return self.step * self.updates_per_step

    def rest(self) -> dict[str, Any]:
        """Returns the part of the state that a checkpoint holds beside parameters and metrics.

        The parameters are an item of their own, because decoding reads nothing else, and the
        metrics are saved as JSON, because their names may change between versions. Carry and memory
        are left out if the task has none.
        """
        fields = ["step", "opt_state", "skipped", "last_skipped"]
        fields += [field for field in ("carry", "memory") if getattr(self, field) is not None]
        return {field: getattr(self, field) for field in fields}


def abstract(task, tx: optax.GradientTransformation, mesh: Mesh, table) -> TrainState:
    """Returns the shapes, dtypes and shardings of the state without computing it.

    Raises UserError if the mesh does not divide a parameter.
    """
    shapes = jax.eval_shape(partial(_create, task, tx), task.param_shapes)
    return _with_shardings(shapes, mesh, table)


def _with_shardings(boxed, mesh: Mesh, table) -> Any:
    """Returns the shapes, dtypes and shardings of a tree whose leaves declare their logical axes.

    optax builds its state by mapping over the boxed parameters, so that moments declare the axes
    of their parameters. Leaves without axes, such as counters, are replicated.
    """
    logical_axes = nn.get_partition_spec(boxed)

    def with_sharding(path, leaf, axes):
        if isinstance(leaf, optax.MaskedNode):  # a frozen parameter has no optimizer state
            return leaf
        spec = sharding.spec(axes, table) if axes is not None else PartitionSpec()
        named_sharding = NamedSharding(mesh, spec)
        sharding.check(leaf.shape, named_sharding, "parameter " + "/".join(parameters.names(path)))
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=named_sharding)

    return jax.tree_util.tree_map_with_path(
        with_sharding,
        nn.unbox(boxed),
        logical_axes,
        is_leaf=lambda x: isinstance(x, (jax.ShapeDtypeStruct, optax.MaskedNode)),
    )


def abstract_params(task, mesh: Mesh | None = None, table=None) -> Any:
    """Returns the shapes, dtypes and shardings of the parameters without computing them.

    Without a mesh, all of them are on the first local device. Raises UserError if the mesh does not
    divide a parameter.
    """
    if mesh is not None:
        return _with_shardings(task.param_shapes, mesh, table)
    device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device),
        nn.unbox(task.param_shapes),
    )


def init_params(task) -> Any:
    """Returns the initial parameters, on the default device."""
    return jax.jit(lambda: nn.unbox(_first_params(task)))()


def zeros(abstract_metrics) -> metrics.Metrics:
    """Returns metrics of zeros, with the shardings of `abstract_metrics`."""
    return jax.tree.map(lambda x: put(np.zeros(x.shape, x.dtype), x.sharding), abstract_metrics)


def put(value: np.ndarray, sharding: jax.sharding.Sharding) -> jax.Array:
    """Returns a global array of a value that is the same on all processes.

    `jax.device_put` would also run a program that compares the value across the processes.
    """
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])


def make_init(task, tx: optax.GradientTransformation, abstract_state: TrainState):
    """Returns the jitted function () -> initial state.

    With `out_shardings`, each device computes only its own shards, so that even a state that is too
    large for one device can be initialized.
    """
    shardings = jax.tree.map(lambda x: x.sharding, abstract_state)
    sums = abstract_state.metrics  # known by now, so that the loss is not traced once more

    def create():
        return nn.unbox(_create(task, tx, _first_params(task), sums))

    return jax.jit(create, out_shardings=shardings)


def init(task, tx: optax.GradientTransformation, abstract_state: TrainState) -> TrainState:
    """Returns the initial state. Waits for it, so that running out of memory is reported here."""
    return jax.block_until_ready(hosts.compiled(make_init(task, tx, abstract_state))())


def make_carry(task, rows: int, mesh: Mesh, table) -> Any:
    """Returns the carry of `rows` rows at the start of a stream; None if the task has none."""
    row_sharding = NamedSharding(mesh, sharding.spec(_CARRY_AXES, table))
    return jax.jit(lambda: task.initial_carry(rows), out_shardings=row_sharding)()


def _first_params(task):
    return task.init(jax.random.key(task.config.train.seed))


def _create(task, tx, params, sums=None):
    """Returns the initial state.

    `sums` has the shapes of the metrics. Without it, the loss is traced to find them, because only
    the loss knows which metrics a task has.
    """
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
    """Returns the shapes of the metrics of an update.

    Raises UserError if the shapes or dtypes of the carry that the loss returns, or of the memory
    that the experience returns, differ from the initial ones.
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
    """Returns the loss of the first batch, and the memory after it."""
    memory = context.memory
    if task.rollouts is not None:
        batch = task.rollouts(params, batch, context)
        # The host computes the rewards, and here only their shape matters.
        batch["rewards"] = jnp.zeros(jax.tree.leaves(batch)[0].shape[0])
    if task.experience is not None:
        batch, memory = task.experience(params, batch, context)
    # As in the training step, the memory is for the experience only.
    return task.loss(params, batch, context._replace(memory=None)), memory


def _check_same(task, method: str, kind: str, initial, following) -> None:
    """Raises UserError if a method of the task changes the shapes of its carry or memory."""
    before, after = (
        jax.tree.map(lambda x: f"{x.dtype}{list(x.shape)}", tree) for tree in (initial, following)
    )
    if before != after:
        raise UserError(
            f"config.task.name={task.config.task.name!r}: its {method} returns the {kind} "
            f"{after}, initial_{kind} {before}; they must have the same shapes and dtypes"
        )
