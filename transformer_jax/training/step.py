"""The training step (state, batch) -> state and the evaluation step (params, batch) -> metrics,
compiled.
"""

from functools import partial

import jax
import jax.numpy as jnp
import optax

from transformer_jax import metrics
from transformer_jax.distributed import sharding


def make_train_step(task, tx: optax.GradientTransformation, mesh, table, abstract_state):
    """Batches have shape (microbatches, rows, ...). The state is donated, and stays laid out as
    `abstract_state` says.

    The loss is the sum over terms t of c_t * sum_t / W_t with W_t over the whole global batch, so
    accumulation and mesh change nothing but rounding (dropout keys are per microbatch). Gradients
    cross the mesh axis "data" once an update, whatever the accumulation. A non-finite loss,
    gradient or update leaves the parameters and optimizer as they are and is recorded in the state.
    """
    shardings = jax.tree.map(lambda x: x.sharding, abstract_state)

    @partial(jax.jit, donate_argnums=0, out_shardings=shardings)
    def train_step(state, batch):
        with sharding.use(mesh, table):
            grads, sums = _gradients(task, state, batch, shardings.params)
            updates, opt_state = tx.update(grads, state.opt_state, state.params)
            params = optax.apply_updates(state.params, updates)
            norms = {
                "grad_norm": optax.tree.norm(grads),
                "update_norm": optax.tree.norm(updates),
                "param_norm": optax.tree.norm(params),
            }
            # Of finite parameters and a finite update the sum is finite. To ask it of the new
            # parameters would keep both beside each other (GPT-3 175B on 64 chips: 3 GB).
            finite = jnp.isfinite(sums["loss"][0] + norms["grad_norm"] + norms["update_norm"])
            sums |= {name: (norm, jnp.int32(1)) for name, norm in norms.items()}
            keep = lambda new, old: jax.tree.map(lambda n, o: jnp.where(finite, n, o), new, old)
            return state.replace(
                step=state.step + 1,
                params=keep(params, state.params),
                opt_state=keep(opt_state, state.opt_state),
                metrics=keep(metrics.add(state.metrics, sums), state.metrics),
                skipped=state.skipped + ~finite,
                last_skipped=jnp.where(finite, state.last_skipped, state.step),
            )

    return train_step


def _gradients(task, state, batch, param_shardings):
    """Gradients of the global loss and the metrics' sums, microbatch by microbatch."""
    denominators = {term: jnp.maximum(w, 1) for term, w in task.weights(batch).items()}
    key = jax.random.fold_in(jax.random.key(task.config.train.seed), state.step)
    count = jax.tree.leaves(batch)[0].shape[0]

    def one(number, microbatch):
        rng = jax.random.fold_in(key, number)

        def objective(params):
            sums, measured = task.loss(params, microbatch, rng, train=True)
            loss = sum(task.coefficients[t] * total / denominators[t] for t, total in sums.items())
            return loss, measured

        return jax.grad(objective, has_aux=True)(state.params)

    if count == 1:
        return one(0, jax.tree.map(lambda x: x[0], batch))
    groups = sharding.row_groups(param_shardings)
    if groups == 1:
        return _summed(one, batch)
    by_group = _summed(partial(_by_group, one, groups, param_shardings), batch)
    return jax.tree.map(lambda x: x.sum(axis=0), by_group)


def _summed(one, batch):
    """The sums of one(number, microbatch) over the microbatches of a batch."""
    numbered = (jnp.arange(jax.tree.leaves(batch)[0].shape[0]), batch)

    def body(carry, numbered):
        return jax.tree.map(jnp.add, carry, one(*numbered)), None

    shapes = jax.eval_shape(lambda n: one(*jax.tree.map(lambda x: x[0], n)), numbered)
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    return jax.lax.scan(body, zeros, numbered)[0]


def _by_group(one, groups: int, param_shardings, number, microbatch):
    """one(number, microbatch) for each group of rows by itself: arrays (groups, ...), split over
    the mesh axis "data".

    Nothing is summed over the groups, so nothing crosses the axis. The sum over the microbatches
    then takes one reduction an update.
    """

    def of_group(group, rows):
        with sharding.within_group(group, groups):
            grads, sums = one(number, rows)
        return jax.lax.with_sharding_constraint(grads, param_shardings), sums

    rows = jax.tree.map(lambda x: x.reshape(groups, -1, *x.shape[1:]), microbatch)
    return jax.vmap(of_group, spmd_axis_name="data")(jnp.arange(groups), rows)


def make_eval_step(task, mesh, table):
    """Batches have shape (1, rows, ...)."""

    @jax.jit
    def eval_step(params, batch):
        with sharding.use(mesh, table):
            return task.loss(params, jax.tree.map(lambda x: x[0], batch), None, train=False)[1]

    return eval_step
