"""The jitted steps of training and evaluation, and the programs that a config compiles to."""

import dataclasses
import functools
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from transformer_jax import hardware, metrics
from transformer_jax.config import UserError
from transformer_jax.contracts.task import Context
from transformer_jax.distributed import hosts, sharding
from transformer_jax.layers import parameters
from transformer_jax.pictures.progress import say
from transformer_jax.training import optimizer
from transformer_jax.training import state as states
from transformer_jax.training.optimizer import gradient_point

# Folded into the key of a step for its experience, and into that of an epoch for its order. No
# microbatch, minibatch or epoch has this number.
_RESERVED = 2**31 - 1


class Optimizer(NamedTuple):
    """How parameters change: `tx`, and the learning rate of `config.optimizer` by update."""

    tx: optax.GradientTransformation
    rate: optax.Schedule


def make_train_step(task, optimizer: Optimizer, mesh, table, abstract_state):
    """Returns the jitted (state, batch) -> state.

    Batches are (microbatches, rows, ...). The state is donated, and keeps the layout of
    `abstract_state`.

    The task's `experience`, if it has one, replaces the batch. Each of its `passes` divides the
    rows into minibatches, each with an update. Where the task has `rollouts`, the step consists of
    two programs.
    """
    shardings = jax.tree.map(lambda x: x.sharding, abstract_state)
    update = _make_update(task, optimizer, shardings)

    @partial(jax.jit, donate_argnums=0, out_shardings=shardings)
    def train_step(state, batch):
        with sharding.use(mesh, table):
            key = _key(task, state)
            if task.experience is not None:
                batch, state = _experience(task, state, batch, key)
            if task.passes == (1, 1):
                state = update(state, batch, key)
            else:
                state = _passes(update, task.passes, state, batch, key)
            return state.replace(step=state.step + 1)

    if task.rollouts is None:
        return train_step

    @partial(jax.jit, out_shardings=sharding.batch_sharding(mesh, table))
    def roll(state, batch):
        with sharding.use(mesh, table):
            context = _context_of_experience(state, _key(task, state))
            rollouts = task.rollouts(state.params, _joined(batch), context)
            return _divided(rollouts, jax.tree.leaves(batch)[0].shape[0])

    return TwoPrograms(roll, task.scored, train_step)


def _key(task, state):
    """The key of a step."""
    return jax.random.fold_in(jax.random.key(task.config.train.seed), state.step)


def _context_of_experience(state, key) -> Context:
    """The context of a task's experience, whose step has this key."""
    key = jax.random.fold_in(key, _RESERVED)
    return Context(key, state.step, state.carry, train=True, memory=state.memory)


def _experience(task, state, batch, key):
    """(the batch of the task's experience, from all rows of a batch; the state with its memory).

    A memory that is not finite is not taken.
    """
    context = _context_of_experience(state, key)
    count = jax.tree.leaves(batch)[0].shape[0]
    batch, memory = task.experience(state.params, _joined(batch), context)
    finite = jnp.array([jnp.isfinite(x).all() for x in jax.tree.leaves(memory)], bool).all()
    memory = _choose(finite, memory, state.memory)
    return _divided(batch, count), state.replace(memory=memory)


def _passes(update, passes: tuple[int, int], state, batch, key):
    """The state after epochs over a batch, with an update for each minibatch.

    The order of an epoch's rows depends only on the seed, the step and the number of the epoch. An
    update that is not finite is skipped, and the others are applied.
    """
    epochs, minibatches = passes
    count = jax.tree.leaves(batch)[0].shape[0]
    rows = _joined(batch)
    num_rows = jax.tree.leaves(rows)[0].shape[0]

    def epoch(state, number):
        of_epoch = jax.random.fold_in(key, number)
        order = jax.random.permutation(jax.random.fold_in(of_epoch, _RESERVED), num_rows)
        shuffled = jax.tree.map(lambda x: x[order], rows)

        def minibatch(state, numbered):
            number, part = numbered
            return update(state, part, jax.random.fold_in(of_epoch, number)), None

        parts = _divided(shuffled, minibatches, count)
        return jax.lax.scan(minibatch, state, (jnp.arange(minibatches), parts))

    return jax.lax.scan(epoch, state, jnp.arange(epochs))[0]


def _make_update(task, optimizer: Optimizer, shardings):
    """Returns (state, batch, key) -> state after an update of the optimizer, at the same step.

    The loss is the sum over terms t of c_t * sum_t / W_t. W_t is the weight of the whole global
    batch, so accumulation and mesh change only the rounding. (Dropout keys differ by microbatch.)
    Gradients cross the mesh axis "data" once an update, whatever the accumulation. If the loss, a
    gradient, the update or the carry is not finite, the state counts the update as skipped. The
    parameters, the optimizer's state and the carry then do not change.
    """

    def update(state, batch, key):
        point = gradient_point(state.params, state.opt_state)
        at_point = state.replace(params=point)
        rate = optimizer.rate(state.updates - state.skipped)
        (grads, sums), carry = _gradients(task, at_point, batch, (key, rate), shardings.params)
        updates, opt_state = optimizer.tx.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        norms = {
            "grad_norm": optax.tree.norm(grads),
            "update_norm": optax.tree.norm(updates),
            "param_norm": optax.tree.norm(params),
        }
        # Finite parameters and a finite update have a finite sum. A test of the new parameters
        # would keep old and new ones in memory (GPT-3 175B on 64 chips: 3 GB).
        finite = jnp.isfinite(sums["loss"][0] + norms["grad_norm"] + norms["update_norm"])
        for array in jax.tree.leaves(carry):
            finite &= jnp.isfinite(array).all()
        sums |= {name: (norm, jnp.int32(1)) for name, norm in norms.items()}
        new_or_old = partial(_choose, finite)
        return state.replace(
            params=new_or_old(params, state.params),
            opt_state=new_or_old(opt_state, state.opt_state),
            metrics=new_or_old(metrics.add(state.metrics, sums), state.metrics),
            skipped=state.skipped + ~finite,
            last_skipped=jnp.where(finite, state.last_skipped, state.step),
            carry=new_or_old(carry, state.carry),
        )

    return update


def _choose(condition: jax.Array, new, old):
    """The tree `new` where the condition, (), holds, else `old`."""
    return jax.tree.map(lambda n, o: jnp.where(condition, n, o), new, old)


def _gradients(task, state, batch, key_and_rate, param_shardings):
    """((gradients of the global loss, sums of the metrics), carry), over all microbatches.

    Those of frozen parameters are zeros, and only those of the others take memory. The carry is an
    argument of the update, so gradients end there: truncated back-propagation through time
    (Williams & Peng 1990).
    """
    key, rate = key_and_rate
    denominators = {term: jnp.maximum(w, 1) for term, w in task.weights(batch).items()}
    count = jax.tree.leaves(batch)[0].shape[0]
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
    of_rows = on_microbatch
    if groups > 1:
        of_trained, _ = _split(task, param_shardings)
        of_rows = partial(_by_group, on_microbatch, groups=groups, param_shardings=of_trained)
    if count == 1:
        totals, carry = of_rows(0, jax.tree.map(lambda x: x[0], batch), state.carry)
    else:
        microbatches = (jnp.arange(count), batch, _divided(state.carry, count))
        totals, carry = _summed(of_rows, microbatches)
        carry = _joined(carry)
    if groups > 1:
        totals = jax.tree.map(lambda x: x.sum(axis=0), totals)
    grads, sums = totals
    return (parameters.merged(grads, jax.tree.map(jnp.zeros_like, unchanged)), sums), carry


def _split(task, tree):
    """The trees of the trained and of the frozen parameters."""
    return parameters.split(tree, lambda path: task.group(path) is None)


def _divided(tree, *counts: int):
    """The arrays (rows, ...) as (*counts, rows of a part, ...), whose rows are split over the mesh.

    Raises UserError where the rows can't be divided.
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
        others = [None] * (x.ndim - len(counts) - 1)
        return sharding.constrain(x, *[None] * len(counts), "batch", *others)

    return jax.tree.map(divided, tree)


def _joined(tree):
    """The arrays (microbatches, rows, ...) as (microbatches * rows, ...)."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), tree)


def _summed(on_microbatch, microbatches):
    """(sum of the totals, all carries) of (totals, carry) = on_microbatch(*microbatch)."""

    def body(sums, microbatch):
        totals, carry = on_microbatch(*microbatch)
        return jax.tree.map(jnp.add, sums, totals), carry

    on_microbatch = jax.jit(on_microbatch, inline=True)  # so that it is traced once
    first = jax.tree.map(lambda x: jax.eval_shape(lambda y: y[0], x), microbatches)
    shapes, _ = jax.eval_shape(on_microbatch, *first)
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    return jax.lax.scan(body, zeros, microbatches)


def _by_group(on_microbatch, number, microbatch, carry, *, groups: int, param_shardings):
    """on_microbatch(number, rows, carry) for each group of rows apart.

    Returns totals (groups, ...), split over the mesh axis "data", and the carry of all rows.
    Nothing is summed over the groups, so nothing crosses that axis. The sum over the microbatches
    then needs one reduction an update.
    """

    def on_group(group, rows, carry):
        with sharding.within_group(group, groups):
            (grads, sums), carry = on_microbatch(number, rows, carry)
        return (jax.lax.with_sharding_constraint(grads, param_shardings), sums), carry

    rows = jax.tree.map(lambda x: x.reshape(groups, -1, *x.shape[1:]), (microbatch, carry))
    totals, carry = jax.vmap(on_group, spmd_axis_name="data")(jnp.arange(groups), *rows)
    return totals, _joined(carry)


def make_eval_step(task, mesh, table):
    """Returns the jitted (params, batch, carry) -> (sums of metrics, carry).

    Batches are (1, rows, ...). The carry is None where the task has none.
    """

    @jax.jit
    def eval_step(params, batch, carry=None):
        with sharding.use(mesh, table):
            rows = jax.tree.map(lambda x: x[0], batch)
            _, measured, following = task.loss(params, rows, Context(carry=carry))
            return measured, following

    return eval_step


# --------------------------------------------------------------------------------------------------
# The training step of a task whose rewards Python computes, between two compiled programs.

Arrays = dict[str, jax.Array]  # (microbatches, rows, ...)


class TwoPrograms(NamedTuple):
    """The step (state, batch) -> state: rollouts, rewards of the host, then the updates.

    It is for tasks that have `Task.rollouts`. Between its two compiled programs, each host scores
    its own rows.

    Attributes:
      roll: the jitted (state, batch) -> rollouts.
      score: rollouts, NumPy arrays (rows, ...) -> rewards (rows,). A pure function.
      learn: the jitted (state, rollouts with "rewards") -> state.
    """

    roll: Any
    score: Callable[[dict[str, np.ndarray]], np.ndarray]
    learn: Any

    def __call__(self, state, batch: Arrays):
        rollouts = hosts.run(self.roll, state, batch)
        return self.learn(state, rollouts | {"rewards": rewards(self.score, rollouts)})

    def lower(self, state, batch: Arrays):
        """Returns the second program, lowered for these shapes. It needs the more memory."""
        return self.learn.lower(state, self._scored(state, batch))

    def eval_shape(self, state, batch: Arrays):
        """Returns the shapes of the new state."""
        return self.learn.eval_shape(state, self._scored(state, batch))

    def _scored(self, state, batch: Arrays):
        """The shapes of the rollouts with their rewards."""
        rollouts = self.roll.eval_shape(state, batch)
        like = next(iter(rollouts.values()))
        scored = rollouts | {"rewards": jax.ShapeDtypeStruct(like.shape[:2], jnp.float32)}
        placed = next(iter(batch.values())).sharding
        return {
            name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=placed)
            for name, x in scored.items()
        }


def rewards(score: Callable, rollouts: Arrays) -> jax.Array:
    """Returns the rewards (microbatches, rows) float32, with the sharding of the rollouts.

    A host scores the rows of its own devices. A row that stands on more than one of them is scored
    once.
    """
    parts: dict[tuple, dict[str, np.ndarray]] = {}
    for name, array in rollouts.items():
        for shard in array.addressable_shards:
            part = parts.setdefault(_place(shard.index), {})
            if name not in part:
                part[name] = np.asarray(shard.data)
    scores = {place: _of_part(score, part) for place, part in parts.items()}
    like = next(iter(rollouts.values()))
    return jax.make_array_from_callback(
        like.shape[:2], like.sharding, lambda index: scores[_place(index)]
    )


def _place(index: tuple[slice, ...]) -> tuple:
    """The microbatches and the rows that a part of an array has."""
    return tuple((part.start, part.stop) for part in index[:2])


def _of_part(score: Callable, part: dict[str, np.ndarray]) -> np.ndarray:
    shape = next(iter(part.values())).shape[:2]
    flat = {name: array.reshape(-1, *array.shape[2:]) for name, array in part.items()}
    return np.float32(score(flat)).reshape(shape)


# --------------------------------------------------------------------------------------------------
# The programs that a config compiles to on a mesh.

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
