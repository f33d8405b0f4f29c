"""The training state, and its initialisation where it will live."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer_jax import metrics
from transformer_jax.distributed import hosts, sharding
from transformer_jax.training import optimizer


@struct.dataclass
class TrainState:
    """All that update k needs, as it is before update k."""

    step: jax.Array  # int32: updates so far, applied or skipped
    params: Any
    opt_state: optax.OptState
    metrics: metrics.Metrics  # sums since the last progress line
    skipped: jax.Array  # int32: non-finite updates, which were not applied
    last_skipped: jax.Array  # int32: the latest of them, -1 if none


def abstract(task, tx: optax.GradientTransformation, mesh: Mesh, table) -> TrainState:
    """The state's shapes, dtypes and shardings; nothing is computed. Raises UserError where the
    mesh does not divide a parameter.
    """
    boxed = jax.eval_shape(lambda: _create(task, tx))
    specs = nn.get_partition_spec(boxed)  # logical axes, as PartitionSpecs of names

    def place(path, leaf, axes):
        if isinstance(leaf, optax.MaskedNode):  # the optimizer keeps nothing of a frozen parameter
            return leaf
        where = NamedSharding(
            mesh, sharding.spec(axes, table) if axes is not None else PartitionSpec()
        )
        sharding.check(leaf.shape, where, "parameter " + "/".join(optimizer.names(path)))
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where)

    return jax.tree_util.tree_map_with_path(
        place,
        nn.unbox(boxed),
        specs,
        is_leaf=lambda x: isinstance(x, (jax.ShapeDtypeStruct, optax.MaskedNode)),
    )


def abstract_params(task) -> Any:
    """Shapes and dtypes of the parameters alone, whole on the first device."""
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    shapes = nn.unbox(jax.eval_shape(task.init, jax.random.key(0)))
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), shapes)


def init_params(task) -> Any:
    """Initial parameters alone."""
    return jax.jit(lambda: nn.unbox(task.init(jax.random.key(task.config.train.seed))))()


def zeros(abstract_metrics) -> metrics.Metrics:
    """Sums of nothing, laid out as the state's."""
    return jax.tree.map(lambda x: put(np.zeros(x.shape, x.dtype), x.sharding), abstract_metrics)


def put(value: np.ndarray, where: jax.sharding.Sharding) -> jax.Array:
    """The same value on all processes. `jax.device_put` runs a program to compare it on them."""
    return jax.make_array_from_callback(value.shape, where, lambda index: value[index])


def make_init(task, tx: optax.GradientTransformation, abstract_state: TrainState):
    """Jitted () -> the initial state, each device computing only its own part."""
    shardings = jax.tree.map(lambda x: x.sharding, abstract_state)
    return jax.jit(lambda: nn.unbox(_create(task, tx)), out_shardings=shardings)


def init(task, tx: optax.GradientTransformation, abstract_state: TrainState) -> TrainState:
    """The initial state, computed: a lack of memory shows here."""
    return jax.block_until_ready(hosts.compiled(make_init(task, tx, abstract_state))())


def _create(task, tx):
    params = task.init(jax.random.key(task.config.train.seed))
    rows = {
        name: jnp.zeros((1, *spec.shape[1:]), spec.dtype)
        for name, spec in task.batch_spec(0).items()
    }
    sums = jax.eval_shape(
        lambda p, b: task.loss(p, b, jax.random.key(0), train=True)[1], nn.unbox(params), rows
    )
    sums |= {
        name: (jnp.zeros(()), jnp.zeros((), jnp.int32))
        for name in ("grad_norm", "update_norm", "param_norm")
    }
    return TrainState(
        step=jnp.int32(0),
        params=params,
        opt_state=tx.init(params),
        metrics=metrics.zeros_like(sums),
        skipped=jnp.int32(0),
        last_skipped=jnp.int32(-1),
    )
