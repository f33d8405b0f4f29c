"""The jitted steps: training, (state, batch) -> state; evaluation, (params, batch) -> sums."""

from functools import partial

import jax
import jax.numpy as jnp
import optax

from transformer_jax import metrics
from transformer_jax.distributed import sharding
from transformer_jax.tasks.task import Context
from transformer_jax.training import schedule_free


def make_train_step(task, tx: optax.GradientTransformation, mesh, table, abstract_state):
    """Returns the jitted (state, batch) -> state.

    Batches are (microbatches, rows, ...). The state is donated, and keeps the layout of
    `abstract_state`.

    The loss is the sum over terms t of c_t * sum_t / W_t. W_t is the weight of the whole global
    batch, so accumulation and mesh change only the rounding. (Dropout keys differ by microbatch.)
    Gradients cross the mesh axis "data" once an update, whatever the accumulation. If the loss, a
    gradient or the update is not finite, the state counts the update as skipped. The parameters and
    the optimizer's state then do not change.
    """
    shardings = jax.tree.map(lambda x: x.sharding, abstract_state)

    @partial(jax.jit, donate_argnums=0, out_shardings=shardings)
    def train_step(state, batch):
        with sharding.use(mesh, table):
            point = schedule_free.point(state.params, state.opt_state)
            grads, sums = _gradients(task, state.replace(params=point), batch, shardings.params)
            updates, opt_state = tx.update(grads, state.opt_state, state.params)
            params = optax.apply_updates(state.params, updates)
            norms = {
                "grad_norm": optax.tree.norm(grads),
                "update_norm": optax.tree.norm(updates),
                "param_norm": optax.tree.norm(params),
            }
            # Finite parameters and a finite update have a finite sum. A test of the new parameters
            # would keep old and new ones in memory (GPT-3 175B on 64 chips: 3 GB).
            finite = jnp.isfinite(sums["loss"][0] + norms["grad_norm"] + norms["update_norm"])
            sums |= {name: (norm, jnp.int32(1)) for name, norm in norms.items()}
            new_or_old = partial(_choose, finite)
            return state.replace(
                step=state.step + 1,
                params=new_or_old(params, state.params),
                opt_state=new_or_old(opt_state, state.opt_state),
                metrics=new_or_old(metrics.add(state.metrics, sums), state.metrics),
                skipped=state.skipped + ~finite,
                last_skipped=jnp.where(finite, state.last_skipped, state.step),
            )

    return train_step


def _choose(condition: jax.Array, new, old):
    """The tree `new` where the condition, (), holds, else `old`."""
    return jax.tree.map(lambda n, o: jnp.where(condition, n, o), new, old)


def _gradients(task, state, batch, param_shardings):
    """The gradients of the global loss and the sums of the metrics, over all microbatches."""
    denominators = {term: jnp.maximum(w, 1) for term, w in task.weights(batch).items()}
    key = jax.random.fold_in(jax.random.key(task.config.train.seed), state.step)
    count = jax.tree.leaves(batch)[0].shape[0]

    def of_microbatch(number, microbatch):
        context = Context(jax.random.fold_in(key, number), state.step, train=True)

        def objective(params):
            sums, measured, _ = task.loss(params, microbatch, context)
            loss = sum(task.coefficients[t] * total / denominators[t] for t, total in sums.items())
            return loss, measured

        return jax.grad(objective, has_aux=True)(state.params)

    if count == 1:
        return of_microbatch(0, jax.tree.map(lambda x: x[0], batch))
    groups = sharding.row_groups(param_shardings)
    if groups == 1:
        return _summed(of_microbatch, batch)
    by_group = _summed(partial(_by_group, of_microbatch, groups, param_shardings), batch)
    return jax.tree.map(lambda x: x.sum(axis=0), by_group)


def _summed(of_microbatch, batch):
    """The sums of of_microbatch(number, microbatch) over the microbatches of a batch."""
    numbered = (jnp.arange(jax.tree.leaves(batch)[0].shape[0]), batch)

    def body(carry, numbered):
        return jax.tree.map(jnp.add, carry, of_microbatch(*numbered)), None

    shapes = jax.eval_shape(lambda n: of_microbatch(*jax.tree.map(lambda x: x[0], n)), numbered)
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    return jax.lax.scan(body, zeros, numbered)[0]


def _by_group(of_microbatch, groups: int, param_shardings, number, microbatch):
    """of_microbatch(number, rows) for each group of rows apart.

    Returns arrays (groups, ...), split over the mesh axis "data". Nothing is summed over the
    groups, so nothing crosses that axis. The sum over the microbatches then needs one reduction
    an update.
    """

    def of_group(group, rows):
        with sharding.within_group(group, groups):
            grads, sums = of_microbatch(number, rows)
        return jax.lax.with_sharding_constraint(grads, param_shardings), sums

    rows = jax.tree.map(lambda x: x.reshape(groups, -1, *x.shape[1:]), microbatch)
    return jax.vmap(of_group, spmd_axis_name="data")(jnp.arange(groups), rows)


def make_eval_step(task, mesh, table):
    """Returns the jitted (params, batch) -> sums of metrics. Batches are (1, rows, ...)."""

    @jax.jit
    def eval_step(params, batch):
        with sharding.use(mesh, table):
            return task.loss(params, jax.tree.map(lambda x: x[0], batch), Context()).metrics

    return eval_step
