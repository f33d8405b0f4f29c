"""The optimizer: one optax chain per group of parameters, each with its schedule and weight decay.

The layers of a model are stacked, so that each of their parameters is one array (layers, ...). An
optimizer that computes a norm or a factorization over a whole parameter, such as LAMB, Muon or
Adafactor, therefore computes it for each layer separately, as if the layers were not stacked.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import tree_leaves_with_path, tree_map_with_path
from jaxtyping import Array, Float
from optax.contrib import ScheduleFreeState

from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.layers.mup import Growth
from transformer_jax.layers.parameters import Path, Traits, names, unsplit

TraitsOf = Callable[[Any], Traits]  # the argument is a parameter's key path in jax
# Orthogonal updates are scaled to the root mean square that updates of AdamW typically have, so
# that the same learning rate suits both (Liu et al. 2025, section 2.2).
_MUON_RMS = 0.2
# An epsilon with a finite inverse, which a smaller number may not have in float32.
_LEAST_EPS = 1e-30
_USUAL_RATE = 1e6  # with a larger one, the product with a gradient may not be finite


def make(
    config,
    num_steps: int,
    task: Any,
    traits: Any,
    peaks: Mapping[str, jax.Array] | None = None,
) -> optax.GradientTransformation:
    """Returns the optimizer of all parameters.

    `traits` is a tree with the `Traits` of each parameter. The task says to which group a parameter
    belongs, and how deep its layer is. `peaks` are the learning rates of the groups, (), in place
    of those in `config`. Raises UserError if a group has no section in `config.optimizer.groups`,
    or if a section has no parameter.
    """
    by_name = {names(path): leaf for path, leaf in tree_leaves_with_path(traits)}
    by_group = configs.optimizer_sections(config)
    _check_groups({task.group(path) for path in by_name}, {*by_group})

    def traits_of(path) -> Traits:
        return by_name[names(path)]

    growths = task.growths

    def chain(name, section):
        layer_decay = []
        if section.layer_decay != 1:
            trained = {path: by_name[path] for path in by_name if task.group(path) is not None}
            below_top = _below_top(trained, task.depth)
            layer_decay = [_scale_by_depth(section.layer_decay, below_top, traits_of)]
        peak = None if peaks is None else peaks[name]
        return _chain(section, num_steps, traits_of, growths, layer_decay, peak=peak)

    transforms = {_label(name): chain(name, section) for name, section in by_group.items()}
    return optax.multi_transform(
        transforms | {_label(None): optax.set_to_zero()},
        map_paths(lambda path: _label(task.group(names(path)))),
    )


def keeps_finite(config) -> bool:
    """Returns whether finite gradients always make finite updates.

    It holds where each number of an update is the sign of gradients, a decaying sum of them, or
    their mean divided by the root of a mean of squares plus epsilon, with a usual learning rate. It
    isn't claimed where norms, averages or factorizations of whole parameters come between.
    """
    sections = configs.optimizer_sections(config).values()
    return all(
        each.learning_rate <= _USUAL_RATE
        and (
            each.name in ("sgd", "lion")
            or (each.name in ("adam", "adamw") and each.eps >= _LEAST_EPS)
        )
        for each in sections
    )


def _label(group: str | None) -> str:
    """Returns the name of a group in the optimizer's state, and so in checkpoints."""
    if group is None:
        return "frozen"
    return f"trained_{group}" if group else "trained"


def _check_groups(named: set[str | None], sections: set[str]) -> None:
    if missing := sorted(named - sections - {None}):
        raise UserError(
            f"config.optimizer.groups has no section for the task's group {missing[0]!r}; "
            f'add ("{missing[0]}", (("learning_rate", 1e-3),)), or any differences'
        )
    if empty := sorted(sections - named - {""}):
        has = ", ".join(repr(name) for name in sorted(named - {None, ""})) or "none by name"
        raise UserError(
            f"config.optimizer.groups: no parameter is in group {empty[0]!r}; "
            f"the task's groups: {has}"
        )


def _chain(
    config,
    num_steps: int,
    traits_of: TraitsOf,
    growths: Mapping[Path, Growth],
    layer_decay: list[optax.GradientTransformation],
    *,
    peak: jax.Array | None,
) -> optax.GradientTransformation:
    """Returns the chain of a group: clipping, direction, weight decay, layer decay, learning rate.

    With muP, the direction is scaled as `growths` say.

    Before update number `config.begin`, the chain changes neither the parameters nor its own state.
    Its schedule covers the updates from there to the end of the run.
    """
    begin = configs.span(config.begin, num_steps)
    rate = schedule(config, num_steps - begin, peak)
    clip = [optax.clip_by_global_norm(config.clip_norm)] if config.clip_norm else []
    chain = _direction(config, traits_of)
    if growths:
        # Gradients are clipped as those of W in layers/mup.py, whose norm does not grow.
        clip = [_scale(growths, lambda growth, path: growth.multiplier), *clip]
        chain = _in_mup(config.name, chain, growths, traits_of)
    if config.weight_decay:
        # After the direction: the decay is decoupled from the gradient's statistics (Loshchilov &
        # Hutter 2019), and, before the learning rate, proportional to it.
        mask = map_paths(lambda path: traits_of(path).decays)
        chain.append(optax.add_decayed_weights(config.weight_decay, mask))
    if config.name == "lamb":
        # After weight decay, because the trust ratio takes the norm of both together.
        chain.append(optax.stateless(lambda updates, params: _trust(updates, params, traits_of)))
    chain += [*layer_decay, optax.scale_by_learning_rate(rate)]
    # The averaging takes in whole updates of the base optimizer, their learning rate included.
    if config.name == "schedule_free":
        chain = [schedule_free(optax.chain(*chain), rate, config.b1)]
    chain = optax.chain(*clip, *chain)
    return optax.conditionally_mask(chain, lambda count: count >= begin) if begin else chain


def _in_mup(
    name: str,
    direction: list[optax.GradientTransformation],
    growths: Mapping[Path, Growth],
    traits_of: TraitsOf,
) -> list[optax.GradientTransformation]:
    """Returns a direction, scaled by the rates of muP for the optimizer of that name.

    It stands before the decay of weights, which therefore does not depend on the width.
    """

    def rate(growth: Growth, path) -> float:
        is_spectral = name == "muon" and _is_matrix(traits_of(path))
        return growth.spectral_rate if is_spectral else growth.rate(name)

    # Adam's epsilon is added to gradients that are as large as the base's.
    even = [] if name == "sgd" else [_scale(growths, lambda growth, path: growth.gradient)]
    return [*even, *direction, _scale(growths, rate)]


def _scale(growths: Mapping[Path, Growth], factor: Callable) -> optax.GradientTransformation:
    """Multiplies the update of each parameter by factor(growth, path)."""

    def scaled(path, update):
        by = factor(growths[names(path)], path)
        return update if by == 1 else update * by

    return optax.stateless(lambda updates, _: tree_map_with_path(scaled, updates))


def _direction(config, traits_of: TraitsOf) -> list[optax.GradientTransformation]:
    """Returns the transformations from a gradient to the direction of the update.

    Sources: adam: Kingma & Ba 2015; adamw: Loshchilov & Hutter 2019; lamb: You et al. 2020;
    adafactor: Shazeer & Stern 2018; rmsprop: Tieleman & Hinton 2012; adagrad: Duchi et al. 2011;
    adadelta: Zeiler 2012; lion: Chen et al. 2023; muon: Jordan et al. 2024; schedule_free: Defazio
    et al. 2024.
    """
    match config.name:
        case "adafactor":
            return adafactor_direction(config.decay_exponent, traits_of)
        case "sgd":
            return [optax.trace(config.momentum)] if config.momentum else []
        case "rmsprop":
            # With epsilon outside of the root, config.optimizer.eps means the same as for Adam.
            return [optax.scale_by_rms(config.b2, config.eps, eps_in_sqrt=False)]
        case "adagrad":
            return [optax.scale_by_rss(config.initial_sum, config.eps)]
        case "adadelta":
            return [optax.scale_by_adadelta(config.b2, config.eps)]
        case "lion":
            return [optax.scale_by_lion(config.b1, config.b2)]
        case "muon":
            return [_muon(config, traits_of)]
        case "schedule_free":
            # Adam without its first moment, because averaging the parameters replaces it.
            return [
                optax.scale_by_rms(config.b2, config.eps, eps_in_sqrt=False, bias_correction=True)
            ]
    return [optax.scale_by_adam(config.b1, config.b2, config.eps)]


def _muon(config, traits_of: TraitsOf) -> optax.GradientTransformation:
    """Returns Muon for the matrices, each layer separately, and Adam for all other parameters."""

    def sides(path) -> optax.contrib.MuonDimensionNumbers:
        """Returns the input and output axes; Muon batches over layers and experts, in neither."""
        traits = traits_of(path)
        first_output = traits.num_stacked + traits.inputs
        return optax.contrib.MuonDimensionNumbers(
            tuple(range(traits.num_stacked, first_output)),
            tuple(range(first_output, len(traits.axes))),
        )

    def scaled(path, update: Float[Array, "..."]) -> Float[Array, "..."]:
        # An orthogonal matrix of m x n has the root mean square 1 / sqrt(max(m, n)), so that this
        # factor gives the update the root mean square of _MUON_RMS, whatever its shape.
        sizes = [math.prod(update.shape[axis] for axis in side) for side in sides(path)]
        return update * (_MUON_RMS * max(sizes) ** 0.5)

    orthogonal = optax.contrib.scale_by_muon(
        beta=config.muon_momentum, weight_dimension_numbers=map_paths(sides)
    )
    scale = optax.stateless(lambda updates, _: tree_map_with_path(scaled, updates))
    return optax.multi_transform(
        {
            "matrices": optax.chain(orthogonal, scale),
            "others": optax.scale_by_adam(config.b1, config.b2, config.eps),
        },
        map_paths(lambda path: "matrices" if _is_matrix(traits_of(path)) else "others"),
    )


def _is_matrix(traits: Traits) -> bool:
    """Whether Muon updates a parameter, a matrix between hidden states."""
    return traits.inputs > 0 and not traits.head


def _trust(updates, params, traits_of: TraitsOf):
    """Scales each layer's update to the norm of its parameters (You et al. 2020, algorithm 2)."""

    def scaled(path, update, param):
        axes = tuple(range(traits_of(path).num_stacked, param.ndim))
        param_norm = _norm(param, axes)
        update_norm = _norm(update, axes)
        # A ratio of 0 would never let a parameter of zeros, such as a new bias, leave zero.
        nonzero = (param_norm > 0) & (update_norm > 0)
        ratio = param_norm / jnp.where(update_norm > 0, update_norm, 1)
        return update * jnp.where(nonzero, ratio, 1)

    return tree_map_with_path(scaled, updates, params)


def _norm(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    return jnp.sqrt(jnp.sum(jnp.square(x), axis=axes, keepdims=True))


def _below_top(by_name: Mapping[Path, Traits], depth: Callable[[Path], int | None]):
    """Returns {path: the number of layers from a parameter's own layer, inclusive, to the top}.

    It is one more than the number of layers for embeddings, and 0 for the parameters above the
    layers. Entries of stacks are not used, because a stack knows its own layers.
    """
    depths = {path: None if leaf.is_stack else depth(path) for path, leaf in by_name.items()}
    stacks = [leaf.layers for leaf in by_name.values()]
    top = 1 + max(*stacks, *(number for number in depths.values() if number is not None), 0)
    return {path: 0 if number is None else top - number for path, number in depths.items()}


def _scale_by_depth(decay: float, below_top: Mapping[Path, int], traits_of: TraitsOf):
    """Scales updates by the depth of their layer: layer-wise decay of the learning rate.

    The factor of layer i of N, counted from 1 at the bottom, is decay^(N + 1 - i). The factor of
    embeddings is decay^(N + 1), and parameters above the layers have a factor of 1.
    """

    def scaled(path, update):
        if traits_of(path).is_stack:
            factors = decay ** (len(update) - jnp.arange(len(update)))
            return update * factors.reshape(-1, *[1] * (update.ndim - 1))
        return update * decay ** below_top[names(path)]

    return optax.stateless(lambda updates, _: tree_map_with_path(scaled, updates))


def map_paths(choose: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns a function from params to a tree with choose(path) for each parameter's key path."""
    return lambda params: tree_map_with_path(lambda path, _: choose(path), params)


def schedule(config, num_steps: int, peak: jax.Array | None = None) -> optax.Schedule:
    """Returns the learning rate by applied update, from 0: a linear warm-up, then the schedule.

    The largest rate is `peak`, (), by default `config.learning_rate`.

    inverse_sqrt is peak * sqrt(warmup / s) at update s, counted from 1. With
    peak = (d_model * warmup)^-0.5 it is equation 3 of Vaswani et al. 2017. truncated_inverse_sqrt
    has the peak from the first update on (Raffel et al. 2020, section 3.1.2). linear, cosine and
    polynomial fall to `final_fraction` of the peak and then stay there; warmup_stable_decay (Hu et
    al. 2024, section 4) does so in its last `cooldown_steps`. They reach that value at the update
    after the last of `decay_steps`, which is by default the length of the run. slanted_triangular
    rises from peak / ratio to the peak during the warm-up, and then falls back to peak / ratio
    (Howard & Ruder 2018, section 3.2).
    """
    warmup_steps = configs.span(config.warmup_steps, num_steps)
    peak = config.learning_rate if peak is None else peak
    warmup = max(warmup_steps, 1)
    cooldown = configs.span(config.cooldown_steps, num_steps)
    num_steps = configs.span(config.decay_steps or 0, num_steps) or num_steps

    def progress(step, first):
        """Returns the fraction of the updates from `first` to the end that lies before `step`."""
        # A warm-up as long as the run leaves no updates for the decay, and must not divide by 0.
        return jnp.clip((step - 1 - first) / max(num_steps - first, 1), 0, 1)

    def after(step):
        fallen = progress(step, warmup_steps)
        root = jnp.sqrt(warmup / jnp.maximum(step, warmup))
        shape = {
            "constant": 1.0,
            "inverse_sqrt": root,
            "truncated_inverse_sqrt": root,
            "linear": 1 - fallen,
            "cosine": (1 + jnp.cos(jnp.pi * fallen)) / 2,
            "polynomial": (1 - fallen) ** config.power,
            "warmup_stable_decay": 1 - progress(step, max(num_steps - cooldown, warmup_steps)),
        }[config.schedule]
        falls = config.schedule not in ("constant", "inverse_sqrt", "truncated_inverse_sqrt")
        final = config.final_fraction if falls else 0.0
        return final + (1 - final) * shape

    def slanted(step):
        rising, falling = (step - 1) / warmup, 1 - progress(step, warmup_steps)
        return (1 + jnp.minimum(rising, falling) * (config.ratio - 1)) / config.ratio

    def rate(count):
        # Counting updates from 1 gives the first one a rate above 0 even during a warm-up.
        step = count + 1
        if config.schedule == "slanted_triangular":
            return peak * slanted(step)
        if config.schedule == "truncated_inverse_sqrt":
            return peak * after(step)
        return peak * jnp.where(step < warmup_steps, step / warmup, after(step))

    return rate


# --------------------------------------------------------------------------------------------------
# Schedule-free training (Defazio et al. 2024), in which an average of the parameters replaces the
# decay of the learning rate.
#
# The parameters in the state are the averaged ones, x in the paper, so that evaluations,
# checkpoints and everything that opens a run use them. The base optimizer moves z, which is part of
# the optimizer's state, and gradients are taken at y, a point between x and z.


def schedule_free(
    base: optax.GradientTransformation, rate: optax.Schedule, b1: float
) -> optax.GradientTransformation:
    """Returns `base` with averaged parameters; it expects gradients at `gradient_point`.

    The parameters of optax's own transformation are y. Those of this one are x, so its updates are
    differences of x.
    """
    # optax calls this schedule with counts from 1, whereas `rate` counts applied updates from 0.
    transform_y = optax.contrib.schedule_free(base, lambda count: rate(count - 1), b1)

    def update(grads, state: ScheduleFreeState, x):
        y = _between(x, state)
        change, after = transform_y.update(grads, state, y)
        y = optax.apply_updates(y, change)
        new = optax.contrib.schedule_free_eval_params(after, y)
        return jax.tree.map(lambda new, old: new - old, new, x), after

    return optax.GradientTransformation(transform_y.init, update)


def gradient_point(params, opt_state: optax.OptState):
    """Returns the parameters at which gradients are taken: `params`, unless schedule-free."""
    states = jax.tree.leaves(opt_state, is_leaf=_is_averaging)
    for state in filter(_is_averaging, states):
        params = _between(params, state)
    return params


def _is_averaging(node) -> bool:
    return isinstance(node, ScheduleFreeState)


def _between(x, state: ScheduleFreeState):
    """Returns y = (1 - b1) z + b1 x for the parameters in the state, and x for all others."""

    def mixed(z, x):
        is_other = isinstance(z, optax.MaskedNode)  # the parameter belongs to another group
        return x if is_other else (1 - state.b1) * z + state.b1 * x

    return jax.tree.map(mixed, state.z, x, is_leaf=lambda z: isinstance(z, optax.MaskedNode))


# --------------------------------------------------------------------------------------------------
# Adafactor (Shazeer & Stern 2018), which factors the second moments of a matrix into its rows and
# columns.
#
# It differs from optax.adafactor in two ways: each layer of a stack is a matrix of its own, and a
# kernel with more than two axes is one matrix from its inputs to its outputs. optax would instead
# factor the two largest axes, whatever they mean.

_LEAST = 128  # the fewest rows and columns with which a matrix is factored, as in optax
_EPSILON = 1e-30  # epsilon 1 of the paper, added to the squared gradients
_THRESHOLD = 1.0  # d of the paper, the largest root mean square of an update
_LEAST_SCALE = 1e-3  # epsilon 2 of the paper, the smallest scale of a parameter


class FactoredState(NamedTuple):
    """The running means of squared gradients.

    Attributes:
      count: the number of updates so far.
      rows: for a factored matrix, the means over its columns, whose axes have size 1; for other
        parameters, the mean squares of all elements.
      columns: for a factored matrix, the means over its rows, whose axes have size 1; for other
        parameters, no array.
    """

    count: jax.Array
    rows: Any
    columns: Any


def adafactor_direction(
    decay_exponent: float, traits_of: TraitsOf
) -> list[optax.GradientTransformation]:
    """Returns algorithms 4 and 5 of the paper: factored scaling, clipping and relative steps."""

    def clipped(path, update):
        return update / jnp.maximum(1.0, _rms(update, traits_of(path)) / _THRESHOLD)

    def scaled(path, update, param):
        return update * jnp.maximum(_rms(param, traits_of(path)), _LEAST_SCALE)

    return [
        _scale_by_factored_rms(decay_exponent, traits_of),
        optax.stateless(lambda updates, _: tree_map_with_path(clipped, updates)),
        optax.stateless(lambda updates, params: tree_map_with_path(scaled, updates, params)),
    ]


def _rms(x: Float[Array, "..."], traits: Traits) -> Float[Array, "..."]:
    """Returns the root mean square of each layer, with all other axes reduced to size 1."""
    axes = tuple(range(traits.num_stacked, x.ndim))
    return jnp.sqrt(jnp.mean(jnp.square(x), axis=axes, keepdims=True))


def _scale_by_factored_rms(
    decay_exponent: float, traits_of: TraitsOf
) -> optax.GradientTransformation:
    def zeros(path, param):
        _, outputs = _sides(param, traits_of(path))
        return jnp.zeros_like(jnp.sum(param, axis=outputs, keepdims=True))

    def zeros_of_columns(path, param):
        inputs, _ = _sides(param, traits_of(path))
        if not inputs:
            return optax.MaskedNode()
        return jnp.zeros_like(jnp.sum(param, axis=inputs, keepdims=True))

    def init(params):
        # The sums have the logical axes of their parameters, but no mesh splits an axis of size 1.
        return FactoredState(
            jnp.zeros((), jnp.int32),
            unsplit(tree_map_with_path(zeros, params)),
            unsplit(tree_map_with_path(zeros_of_columns, params)),
        )

    def update(grads, state: FactoredState, params):
        count = optax.safe_increment(state.count)
        # The decay is 0 at the first update, so the means need no correction for starting from 0.
        decay = 1.0 - count.astype(jnp.float32) ** -decay_exponent

        def mean(old, grad, axes: tuple[int, ...]):
            # Without the epsilon, rsqrt would be infinite where all gradients have been 0.
            square = jnp.square(grad) + _EPSILON
            return decay * old + (1 - decay) * square.mean(axis=axes, keepdims=True)

        def mean_of_rows(path, grad, old):
            return mean(old, grad, _sides(grad, traits_of(path))[1])

        def mean_of_columns(path, grad, old):
            inputs, _ = _sides(grad, traits_of(path))
            return mean(old, grad, inputs) if inputs else old

        def scaled(path, grad, row, column):
            inputs, _ = _sides(grad, traits_of(path))
            if not inputs:
                return grad * jax.lax.rsqrt(row)
            # The factored second moment is row * column / mean(row) (algorithm 4).
            relative = row / row.mean(axis=inputs, keepdims=True)
            return grad * jax.lax.rsqrt(relative) * jax.lax.rsqrt(column)

        rows = tree_map_with_path(mean_of_rows, grads, state.rows)
        columns = tree_map_with_path(mean_of_columns, grads, state.columns)
        updates = tree_map_with_path(scaled, grads, rows, columns)
        return updates, FactoredState(count, rows, columns)

    return optax.GradientTransformation(init, update)


def _sides(x: Float[Array, "..."], traits: Traits) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the row axes and the column axes of a matrix, or ((), ()) if it is not factored."""
    first = traits.num_stacked
    # An embedding declares no input axes, but it is a matrix, too: its rows are the tokens.
    first_column = first + max(traits.inputs, 1)
    sides = tuple(range(first, first_column)), tuple(range(first_column, x.ndim))
    least = min(math.prod(x.shape[axis] for axis in side) for side in sides)
    return sides if least >= _LEAST else ((), ())
