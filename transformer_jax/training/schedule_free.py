"""Schedule-free training (Defazio et al. 2024): the mean of the parameters replaces a schedule.

The parameters of a run are the averaged ones, x of the paper, so that evaluations, checkpoints and
all that opens a run see them. Gradients are taken at y, a point between x and z, the parameters
that the optimizer below moves.
"""

import jax
import optax
from optax.contrib import ScheduleFreeState


def averaging(
    base: optax.GradientTransformation, rate: optax.Schedule, b1: float
) -> optax.GradientTransformation:
    """Returns `base` with averaged parameters. Its gradients are those at `point`.

    optax's own transformation is of y; this one is of x.
    """
    # optax counts from 1.
    of_y = optax.contrib.schedule_free(base, lambda count: rate(count - 1), b1)

    def update(grads, state: ScheduleFreeState, x):
        y = _between(x, state)
        change, after = of_y.update(grads, state, y)
        y = optax.apply_updates(y, change)
        new = optax.contrib.schedule_free_eval_params(after, y)
        return jax.tree.map(lambda new, old: new - old, new, x), after

    return optax.GradientTransformation(of_y.init, update)


def point(params, opt_state: optax.OptState):
    """Returns the parameters at which gradients are taken: `params` of other optimizers."""
    states = jax.tree.leaves(opt_state, is_leaf=_is_averaging)
    for state in filter(_is_averaging, states):
        params = _between(params, state)
    return params


def _is_averaging(node) -> bool:
    return isinstance(node, ScheduleFreeState)


def _between(x, state: ScheduleFreeState):
    """Returns y = (1 - b1) z + b1 x of the parameters that the state has; the others stay."""

    def mixed(z, x):
        is_other = isinstance(z, optax.MaskedNode)  # a parameter of another group
        return x if is_other else (1 - state.b1) * z + state.b1 * x

    return jax.tree.map(mixed, state.z, x, is_leaf=lambda z: isinstance(z, optax.MaskedNode))
