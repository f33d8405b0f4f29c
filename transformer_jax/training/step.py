"""The jitted steps of training and evaluation, the state, and the program of a config."""

import dataclasses
import functools
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer_jax import hardware, losses
from transformer_jax.config import UserError
from transformer_jax.contracts.task import Context
from transformer_jax.distributed import hosts, sharding
from transformer_jax.layers import parameters, pipeline
from transformer_jax.pictures.progress import say
from transformer_jax.training import optimizer
from transformer_jax.training.optimizer import gradient_point

# Folded into the key of a step to draw its experience, and into the key of an epoch to shuffle its
# rows. Microbatches, minibatches and epochs fold in their numbers, which never get this large, so
# no two draws share a key.
_RESERVED = 2**31 - 1


class Optimizer(NamedTuple):
    """The optimizer of all parameters, and the learning rate that losses see in their context."""

    tx: optax.GradientTransformation
    rate: optax.Schedule  # of `config.optimizer`, by applied update
    keeps_finite: bool = False  # whether finite gradients always make finite updates


def make_train_step(task, optimizer: Optimizer, mesh, table, abstract_state):
    """Returns the jitted training step, (state, batch) -> state.

    The arrays of a batch are (microbatches, rows, ...). The state is donated, and the new state has
    the shardings of `abstract_state`.

    If the task has an `experience`, it replaces the batch, and the optimizer makes
    `passes` = (epochs, minibatches) over it, with one update for each minibatch. If the task has
    `rollouts`, the step is two programs, because the host computes rewards between them.
    """
    shardings = jax.tree.map(lambda x: x.sharding, abstract_state)
    step = make_step(task, optimizer, shardings.params)
    seed = dropout_seed(task.config)

    # Donation lets the new state reuse the memory of the old one. The fixed output shardings make
    # the new state a valid input of the same compiled program.
    @partial(jax.jit, donate_argnums=0, out_shardings=shardings)
    def train_step(state, batch):
        with sharding.use(mesh, table):
            return step(state, batch, jax.random.key(seed))

    if task.rollouts is None:
        return train_step

    @partial(jax.jit, out_shardings=sharding.batch_sharding(mesh, table))
    def roll(state, batch):
        with sharding.use(mesh, table):
            key = _key(state, jax.random.key(seed))
            context = _context_of_experience(state, key)
            rollouts = task.rollouts(state.params, _joined(batch), context)
            return _divided(rollouts, jax.tree.leaves(batch)[0].shape[0])

    return TwoPrograms(roll, task.scored, train_step)


def make_step(task, optimizer: Optimizer, param_shardings):
    """Returns the training step (state, batch, key of the run) -> state, to be traced with a mesh.

    It is a function of its own so that a program can contain the steps of several runs.
    """
    update = _make_update(task, optimizer, param_shardings)

    def step(state, batch, key):
        key = _key(state, key)
        if task.experience is not None:
            batch, state = _experience(task, state, batch, key)
        if task.passes == (1, 1):
            state = update(state, batch, key)
        else:
            state = _passes(update, task.passes, state, batch, key)
        return state.replace(step=state.step + 1)

    return step


def dropout_seed(config) -> int:
    """Returns the seed of dropout and of all else that a step draws."""
    train = config.train
    return train.seed if train.dropout_seed is None else train.dropout_seed


def _key(state, key: jax.Array) -> jax.Array:
    """Returns the key of a step, a function of the run's key and the step alone.

    A resumed run therefore draws the same numbers without any generator state in the checkpoint.
    """
    return jax.random.fold_in(key, state.step)


def _context_of_experience(state, key) -> Context:
    """Returns the context of a task's experience, in the step with this key."""
    key = jax.random.fold_in(key, _RESERVED)
    return Context(key, state.step, state.carry, train=True, memory=state.memory)


def _experience(task, state, batch, key):
    """Returns the experience, computed from all rows of a batch, and the state with its memory.

    A memory that is not finite is discarded, and the state keeps the previous one.
    """
    context = _context_of_experience(state, key)
    count = jax.tree.leaves(batch)[0].shape[0]
    batch, memory = task.experience(state.params, _joined(batch), context)
    # Otherwise one NaN in the memory would spoil all later steps, though their updates are skipped.
    finite = jnp.array([jnp.isfinite(x).all() for x in jax.tree.leaves(memory)], bool).all()
    memory = _choose(finite, memory, state.memory)
    return _divided(batch, count), state.replace(memory=memory)


def _passes(update, passes: tuple[int, int], state, batch, key):
    """Returns the state after several epochs over a batch, with one update for each minibatch.

    The order of the rows in an epoch depends only on the seed, the step and the number of the
    epoch. Updates that are not finite are skipped one by one; the others are applied.
    """
    epochs, minibatches = passes
    count = jax.tree.leaves(batch)[0].shape[0]
    rows = _joined(batch)
    num_rows = jax.tree.leaves(rows)[0].shape[0]

    def epoch(state, number):
        epoch_key = jax.random.fold_in(key, number)
        order = jax.random.permutation(jax.random.fold_in(epoch_key, _RESERVED), num_rows)
        shuffled = jax.tree.map(lambda x: x[order], rows)

        def minibatch(state, numbered):
            number, part = numbered
            return update(state, part, jax.random.fold_in(epoch_key, number)), None

        parts = _divided(shuffled, minibatches, count)
        return jax.lax.scan(minibatch, state, (jnp.arange(minibatches), parts))

    return jax.lax.scan(epoch, state, jnp.arange(epochs))[0]


def _make_update(task, optimizer: Optimizer, param_shardings):
    """Returns the update (state, batch, key) -> state, which leaves the number of the step alone.

    The loss is the sum over its terms t of c_t * sum_t / W_t. Each sum is divided by W_t, the
    weight of the whole global batch, and not by the weight of a microbatch or device, so that
    gradient accumulation and the mesh change nothing but rounding (and dropout, whose keys differ
    by microbatch). Gradients cross the mesh axis "data" once an update, whatever the accumulation.

    If the loss, a gradient, the update or the carry is not finite, the state counts the update as
    skipped, and parameters, optimizer state and carry stay as they were.
    """

    def update(state, batch, key):
        # Schedule-free training takes gradients at another point than the parameters.
        point = gradient_point(state.params, state.opt_state)
        at_point = state.replace(params=point)
        # Schedules count applied updates, as optax does: a skipped update keeps the old opt_state.
        rate = optimizer.rate(state.updates - state.skipped)
        (grads, sums), carry = _gradients(task, at_point, batch, (key, rate), param_shardings)
        updates, opt_state = optimizer.tx.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        norms = {
            "grad_norm": optax.tree.norm(grads),
            "update_norm": optax.tree.norm(updates),
            "param_norm": optax.tree.norm(params),
        }
        # A sum is not finite as soon as one of its terms is not, so that one test covers the loss
        # and the norm of the gradients. A test of the update makes XLA compute it twice, before
        # anything is written and while the state is written, so it is tested only if finite
        # gradients may give an update that is not. Testing it instead of the new parameters is
        # enough, because finite parameters and a finite update have a finite sum, and it keeps old
        # and new parameters from being in memory at once (3 GB for GPT-3 175B on 64 chips).
        tested = sums["loss"][0] + norms["grad_norm"]
        if not optimizer.keeps_finite:
            tested += norms["update_norm"]
        finite = jnp.isfinite(tested)
        # A NaN in the carry would make all later losses NaN, even if this loss is finite.
        for array in jax.tree.leaves(carry):
            finite &= jnp.isfinite(array).all()
        sums |= {name: (norm, jnp.int32(1)) for name, norm in norms.items()}
        # A NaN in the summed metrics would spoil the whole progress line, so a skipped update adds
        # nothing to them either.
        new_or_old = partial(_choose, finite)
        return state.replace(
            params=new_or_old(params, state.params),
            opt_state=new_or_old(opt_state, state.opt_state),
            metrics=new_or_old(losses.add_metrics(state.metrics, sums), state.metrics),
            skipped=state.skipped + ~finite,
            last_skipped=jnp.where(finite, state.last_skipped, state.step),
            carry=new_or_old(carry, state.carry),
        )

    return update


def _choose(condition: jax.Array, new, old):
    """Returns the tree `new` if the condition, (), holds, else the tree `old`."""
    return jax.tree.map(lambda n, o: jnp.where(condition, n, o), new, old)


def _gradients(task, state, batch, key_and_rate, param_shardings):
    """Returns ((gradients of the global loss, sums of the metrics), carry), over all microbatches.

    Gradients of frozen parameters are zeros that take no memory while gradients are accumulated.
    The carry enters as an argument of the update, so that no gradient flows to earlier updates:
    this is truncated back-propagation through time (Williams & Peng 1990).
    """
    key, rate = key_and_rate
    # A batch may have no position that counts for a term: its loss is then 0 / 1, not 0 / 0.
    denominators = {term: jnp.maximum(w, 1) for term, w in task.weights(batch).items()}
    count = jax.tree.leaves(batch)[0].shape[0]
    # The loss is differentiated by the trained parameters alone, so that no zeros for the frozen
    # ones are held and added for each microbatch.
    trained, unchanged = _split(task, state.params)

    def on_microbatch(number, microbatch, carry):
        context = Context(jax.random.fold_in(key, number), state.step, carry, rate, train=True)

        def objective(trained):
            params = parameters.merged(trained, unchanged)
            terms, measured, following = task.loss(params, microbatch, context)
            loss = sum(task.coefficients[t] * total / denominators[t] for t, total in terms.items())
            return loss, (measured, following)

        grads, (measured, following) = jax.grad(objective, has_aux=True)(trained)
        return (grads, measured), following

    groups = sharding.row_groups(param_shardings) if task.sums_over_rows else 1
    compute = on_microbatch
    if groups > 1:
        trained_shardings, _ = _split(task, param_shardings)
        compute = partial(
            _per_group, on_microbatch, groups=groups, param_shardings=trained_shardings
        )
    if sharding.parts("layers") > 1:
        # The microbatches pass through the pipeline together, within one pass of the model.
        with sharding.in_microbatches(count) as microbatches:
            totals, carry = compute(0, jax.tree.map(pipeline.joined, batch), state.carry)
        if not microbatches.are_used or carry is not None:
            raise UserError(
                f"config.mesh.pipeline={sharding.parts('layers')}: is for models whose layers are "
                "a stack, and for tasks without a carry; not for config.model.name="
                f"{task.config.model.name!r} with config.task.name={task.config.task.name!r}"
            )
    elif count == 1:
        totals, carry = compute(0, jax.tree.map(lambda x: x[0], batch), state.carry)
    else:
        microbatches = (jnp.arange(count), batch, _divided(state.carry, count))
        totals, carry = _summed(compute, microbatches)
        carry = _joined(carry)
    if groups > 1:
        # Only this sum crosses the mesh axis "data": once an update, not once a microbatch.
        totals = jax.tree.map(lambda x: x.sum(axis=0), totals)
    grads, sums = totals
    return (parameters.merged(grads, jax.tree.map(jnp.zeros_like, unchanged)), sums), carry


def _split(task, tree):
    """Returns the tree of the trained parameters and the tree of the frozen ones."""
    return parameters.split(tree, lambda path: task.group(path) is None)


def _divided(tree, *counts: int):
    """Reshapes arrays (rows, ...) to (*counts, rows of a part, ...), with split rows of each part.

    Raises UserError if the rows can't be divided into these parts over the mesh.
    """
    num_parts = math.prod(counts)

    def divided(x):
        if len(x) % (num_parts * sharding.parts("batch")):
            raise UserError(
                f"a batch of {len(x)} rows can't be divided into {' x '.join(map(str, counts))} "
                f"parts on a mesh that divides rows by {sharding.parts('batch')}; change "
                "config.train.batch or config.train.accumulation"
            )
        x = x.reshape(*counts, -1, *x.shape[1:])
        # Each part is contiguous, so it lies on some of the devices only. The constraint spreads
        # the rows of each part over all of them.
        others = [None] * (x.ndim - len(counts) - 1)
        return sharding.constrain(x, *[None] * len(counts), "batch", *others)

    return jax.tree.map(divided, tree)


def _joined(tree):
    """Reshapes arrays (microbatches, rows, ...) to (microbatches * rows, ...)."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), tree)


def _summed(on_microbatch, microbatches):
    """Scans `on_microbatch` and returns the sum of its totals and the carries of all microbatches.

    Microbatches are computed one after another, so that the activations of one take memory at once.
    """

    def body(sums, microbatch):
        totals, carry = on_microbatch(*microbatch)
        return jax.tree.map(jnp.add, sums, totals), carry

    # Both eval_shape and scan trace the function; jit caches the trace, and inlining leaves no call
    # in the program.
    on_microbatch = jax.jit(on_microbatch, inline=True)
    first = jax.tree.map(lambda x: jax.eval_shape(lambda y: y[0], x), microbatches)
    shapes, _ = jax.eval_shape(on_microbatch, *first)
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    return jax.lax.scan(body, zeros, microbatches)


def _per_group(on_microbatch, number, microbatch, carry, *, groups: int, param_shardings):
    """Computes on_microbatch(number, rows, carry) separately for each group of rows.

    Returns totals (groups, ...), split over the mesh axis "data", and the carry of all rows. The
    groups are not summed here, so that nothing crosses that axis until all microbatches are done,
    and each gradient is reduced once an update. Without groups, XLA reduces the gradients of every
    microbatch: GPT-2 124M in 16 microbatches on v5e:4x4 sent 497 all-reduces of 10.2 GB an update,
    and sends 6 of 0.50 GB with groups.
    """

    def on_group(group, rows, carry):
        with sharding.within_group(group, groups):
            (grads, sums), carry = on_microbatch(number, rows, carry)
        return (jax.lax.with_sharding_constraint(grads, param_shardings), sums), carry

    rows = jax.tree.map(lambda x: x.reshape(groups, -1, *x.shape[1:]), (microbatch, carry))
    # `spmd_axis_name` puts "data" into the sharding constraints within, so that each group stays on
    # its own devices.
    totals, carry = jax.vmap(on_group, spmd_axis_name="data")(jnp.arange(groups), *rows)
    return totals, _joined(carry)


def make_eval_step(task, mesh, table):
    """Returns the jitted evaluation step, (params, batch, carry) -> (sums of metrics, carry).

    The arrays of a batch are (1, rows, ...), or (microbatches, rows, ...) in a pipeline. The carry
    is None if the task has none.
    """

    @jax.jit
    def eval_step(params, batch, carry=None):
        with sharding.use(mesh, table):
            is_pipeline = sharding.parts("layers") > 1
            rows = jax.tree.map(pipeline.joined, batch) if is_pipeline else _joined(batch)
            # Without a key there is no dropout: a score depends on the parameters alone.
            with sharding.in_microbatches(jax.tree.leaves(batch)[0].shape[0]):
                _, measured, following = task.loss(params, rows, Context(carry=carry))
            return measured, following

    return eval_step


# ---------------------------------- the training step of tasks whose rewards are computed in Python

Arrays = dict[str, jax.Array]  # (microbatches, rows, ...)


class TwoPrograms(NamedTuple):
    """The training step of tasks with `Task.rollouts`, (state, batch) -> state.

    The first compiled program samples rollouts, then each host scores the rollouts of its own rows
    in Python, and the second program makes the updates.

    Attributes:
      roll: the jitted function (state, batch) -> rollouts.
      score: a pure function of rollouts, NumPy arrays (rows, ...), that returns rewards (rows,).
      learn: the jitted function (state, rollouts with "rewards") -> state.
    """

    roll: Any
    score: Callable[[dict[str, np.ndarray]], np.ndarray]
    learn: Any

    def __call__(self, state, batch: Arrays):
        rollouts = hosts.run(self.roll, state, batch)
        return self.learn(state, rollouts | {"rewards": rewards(self.score, rollouts)})

    def lower(self, state, batch: Arrays):
        """Returns the second program lowered for these shapes, as it needs the most memory."""
        return self.learn.lower(state, self._scored(state, batch))

    def eval_shape(self, state, batch: Arrays):
        """Returns the shapes of the new state."""
        return self.learn.eval_shape(state, self._scored(state, batch))

    def _scored(self, state, batch: Arrays):
        """Returns the shapes of the rollouts and their rewards, with the sharding of the batch."""
        rollouts = self.roll.eval_shape(state, batch)
        like = next(iter(rollouts.values()))
        scored = rollouts | {"rewards": jax.ShapeDtypeStruct(like.shape[:2], jnp.float32)}
        batch_sharding = next(iter(batch.values())).sharding
        return {
            name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=batch_sharding)
            for name, x in scored.items()
        }


def rewards(score: Callable, rollouts: Arrays) -> jax.Array:
    """Returns rewards (microbatches, rows) float32, sharded as the rollouts are.

    A host scores the rows of its own devices. A row that several of them hold is scored once.
    """
    shards: dict[tuple, dict[str, np.ndarray]] = {}
    for name, array in rollouts.items():
        for shard in array.addressable_shards:
            arrays = shards.setdefault(_bounds(shard.index), {})
            if name not in arrays:
                arrays[name] = np.asarray(shard.data)
    scores = {bounds: _scored_shard(score, arrays) for bounds, arrays in shards.items()}
    like = next(iter(rollouts.values()))
    return jax.make_array_from_callback(
        like.shape[:2], like.sharding, lambda index: scores[_bounds(index)]
    )


def _bounds(index: tuple[slice, ...]) -> tuple:
    """Returns the first and last microbatch and row of a shard, as a key for dictionaries."""
    # A slice is not hashable before Python 3.12.
    return tuple((part.start, part.stop) for part in index[:2])


def _scored_shard(score: Callable, arrays: dict[str, np.ndarray]) -> np.ndarray:
    shape = next(iter(arrays.values())).shape[:2]
    flat = {name: array.reshape(-1, *array.shape[2:]) for name, array in arrays.items()}
    return np.float32(score(flat)).reshape(shape)


# --------------------------------------------------------------- the programs of a config on a mesh

# The metrics count the positions between two progress lines in int32, which must not overflow.
_MAX_POSITIONS = 2**31


@dataclasses.dataclass(frozen=True)
class Program:
    """The mesh, the shapes of the state, and the jitted steps of a config.

    Nothing is allocated or compiled before it is used, so that a config can be checked, and its
    memory estimated, without the devices that it is for.

    Attributes:
      mesh: the device mesh.
      table: the mesh axes that split each logical axis.
      tx: the optimizer.
      learning_rate: the learning rate by applied update, from 0.
      batch_sharding: the sharding of a batch's arrays (microbatches, rows, ...).
      batch: the shapes, dtypes and shardings of a batch of row shape 0.
      state: a TrainState of shapes, dtypes and shardings.
      traits: a tree with the `Traits` of each parameter.
      init: the jitted function (key) -> initial state.
      train_step: the training step, (state, batch) -> state.
      eval_step: the evaluation step, (params, batch, carry) -> (metrics, carry).
    """

    mesh: jax.sharding.Mesh
    table: dict[str, tuple[str, ...]]
    tx: optax.GradientTransformation
    learning_rate: optax.Schedule
    batch_sharding: jax.sharding.NamedSharding
    batch: dict[str, jax.ShapeDtypeStruct]
    state: Any
    traits: Any
    init: Any
    train_step: Any
    eval_step: Any

    @functools.cached_property
    def peak(self) -> float:
        """The peak FLOP/s of the mesh.

        MFU is the fraction of it that the FLOPs of the model account for (Chowdhery et al. 2022,
        appendix B). FLOPs of recomputed activations do not count.
        """
        rate, source = hardware.peak(self.mesh)
        say(f"MFU is the share of {rate / 1e12:.4g} TFLOP/s, {source}")
        return rate

    @classmethod
    def of(cls, config, task, devices=None) -> "Program":
        """Returns the program of a config on `devices`, by default all of them.

        Raises UserError if the mesh does not fit the devices, or does not divide a batch or a
        parameter.
        """
        if config.mesh.seeds != 1:
            raise UserError(
                f"config.mesh.seeds={config.mesh.seeds}: is for runs that train as one program, "
                "with --together"
            )
        mesh = sharding.make_mesh(config.mesh, devices)
        table = sharding.rules(config.mesh)
        batch_sharding = sharding.batch_sharding(mesh, table)
        _check_positions(config.train, task)
        stages = config.mesh.pipeline
        pipeline.check_microbatches(stages, config.train.accumulation)
        # Every row shape is checked here, so that a later phase of the run can't fail in its
        # middle; only the batch of the first one is kept.
        batch, *_ = [
            _batch(config.train, task.batch_spec(row_shape), batch_sharding)
            for row_shape in range(task.num_row_shapes)
        ]
        traits = parameters.traits(task.param_shapes)
        # Schedules count optimizer updates, of which several passes make more than one a step.
        num_updates = config.train.num_steps * math.prod(task.passes)
        tx = optimizer.make(config.optimizer, num_updates, task, traits)
        state = abstract(task, tx, mesh, table)
        learning_rate = optimizer.schedule(config.optimizer, num_updates)
        both = Optimizer(tx, learning_rate, optimizer.keeps_finite(config.optimizer))
        train_step = make_train_step(task, both, mesh, table, state)
        if task.passes != (1, 1) and state.carry is not None:
            raise UserError(
                f"config.task.name={config.task.name!r}: has a carry, so it makes one pass over a "
                f"batch, not (epochs, minibatches)={task.passes}"
            )
        if task.experience is not None or task.passes != (1, 1) or stages > 1:
            train_step.eval_shape(state, batch)  # raises where a batch can't be divided
        return cls(
            mesh=mesh,
            table=table,
            tx=tx,
            # Op by op, a schedule would compile about ten programs.
            learning_rate=jax.jit(learning_rate),
            batch_sharding=batch_sharding,
            batch=batch,
            state=state,
            traits=traits,
            init=make_init(task, tx, state),
            train_step=train_step,
            eval_step=make_eval_step(task, mesh, table),
        )

    def with_rate(self, config, task) -> "Program":
        """Returns the program of a config that differs in seeds and in its learning rate alone.

        The training step remains that of this program, with the old rate: `training.together` has a
        step of its own, which takes the rate as an argument.
        """
        num_updates = config.train.num_steps * math.prod(task.passes)
        rate = optimizer.schedule(config.optimizer, num_updates)
        return dataclasses.replace(self, learning_rate=jax.jit(rate))


def _check_positions(train, task) -> None:
    """Raises UserError if an int32 can't count the positions between two progress lines."""
    row = max(task.positions(row_shape) for row_shape in range(task.num_row_shapes))
    epochs, _ = task.passes
    positions = row * train.batch * train.log_every * epochs
    if positions >= _MAX_POSITIONS:
        raise UserError(
            f"config.train.log_every={train.log_every}: {positions:,} positions between two "
            f"progress lines, must be less than {_MAX_POSITIONS:,}; log more often"
        )


def _batch(train, specs, batch_sharding) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes of a batch's arrays, (microbatches, rows of a microbatch, ...).

    Raises UserError if the mesh does not divide the rows of a microbatch.
    """
    batch = {}
    for name, spec in specs.items():
        for size in filter(None, (train.first_batch, spec.shape[0])):
            shape = (train.accumulation, size // train.accumulation, *spec.shape[1:])
            sharding.check(
                shape,
                batch_sharding,
                "batch (config.train.accumulation, rows of a microbatch, positions)",
            )
        batch[name] = jax.ShapeDtypeStruct(shape, spec.dtype, sharding=batch_sharding)
    return batch


# ------------------------------------------------------------------------------- the training state

_CARRY_AXES = ("batch",)  # each row has its own carry; the other axes depend on the model


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
    metrics: losses.Metrics
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


def init_params(task, seed: int | None = None) -> Any:
    """Returns the initial parameters of a seed, by default the run's, on the default device."""
    return jax.jit(lambda: nn.unbox(_first_params(task, seed)))()


def zeros(abstract_metrics) -> losses.Metrics:
    """Returns metrics of zeros, with the shardings of `abstract_metrics`."""
    return jax.tree.map(lambda x: put(np.zeros(x.shape, x.dtype), x.sharding), abstract_metrics)


def put(value: np.ndarray, sharding: jax.sharding.Sharding) -> jax.Array:
    """Returns a global array of a value that is the same on all processes.

    `jax.device_put` would also run a program that compares the value across the processes.
    """
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])


def make_init(task, tx: optax.GradientTransformation, abstract_state: TrainState):
    """Returns the jitted function (key) -> initial state.

    With `out_shardings`, each device computes only its own shards, so that even a state that is too
    large for one device can be initialized.
    """
    shardings = jax.tree.map(lambda x: x.sharding, abstract_state)
    sums = abstract_state.metrics  # known by now, so that the loss is not traced once more

    def create(key):
        return nn.unbox(_create(task, tx, task.traced_init(key), sums))

    return jax.jit(create, out_shardings=shardings)


def init(config, program: Program) -> TrainState:
    """Returns the initial state. Waits for it, so that running out of memory is reported here."""
    key = jax.random.key(config.train.seed)
    return jax.block_until_ready(hosts.compiled(program.init, key)(key))


def make_carry(task, rows: int, mesh: Mesh, table) -> Any:
    """Returns the carry of `rows` rows at the start of a stream; None if the task has none."""
    row_sharding = NamedSharding(mesh, sharding.spec(_CARRY_AXES, table))
    return jax.jit(lambda: task.initial_carry(rows), out_shardings=row_sharding)()


def _first_params(task, seed: int | None = None):
    return task.traced_init(jax.random.key(task.config.train.seed if seed is None else seed))


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
        metrics=losses.zero_metrics(sums),
        skipped=jnp.int32(0),
        # -1 means that none was skipped: 0 would be the first step.
        last_skipped=jnp.int32(-1),
        carry=jax.tree.map(lambda x: nn.LogicallyPartitioned(x, _CARRY_AXES), carry),
        memory=memory,
        updates_per_step=math.prod(task.passes),
    )


def _first_sums(task, carry, memory, params) -> losses.Metrics:
    """Returns the shapes of the metrics of an update.

    Raises UserError if the shapes or dtypes of the carry that the loss returns, or of the memory
    that the experience returns, differ from the initial ones.
    """
    # Only shapes are traced, so any key and any learning rate will do.
    context = Context(jax.random.key(0), jnp.int32(0), carry, jnp.float32(1), True, memory)
    first = partial(_first_loss, task, context)
    loss, following = jax.eval_shape(first, params, task.batch_spec(0))
    _check_same(task, "loss", "carry", carry, loss.carry)
    _check_same(task, "experience", "memory", memory, following)
    # As `_make_update` adds them: otherwise the first update would change the state's structure.
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
