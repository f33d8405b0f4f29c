"""The optimizer: optax chains by group of parameters, each with a schedule and weight decay.

The layers of a model are stacked, each parameter of theirs is one array (layers, ...). What an
optimizer takes over a whole parameter, such as a norm, is taken over each layer apart.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import tree_leaves_with_path, tree_map_with_path
from jaxtyping import Array, Float

from transformer_jax.config import UserError
from transformer_jax.configuration import optimizers, run_length
from transformer_jax.layers.parameters import Traits
from transformer_jax.training import adafactor, schedule_free
from transformer_jax.training.adafactor import TraitsOf

__all__ = ["by_path", "make", "names", "schedule"]

Path = tuple[str, ...]
# The root mean square of an orthogonal update, that of AdamW's: both then suit one learning rate
# (Liu et al. 2025, section 2.2).
_MUON_RMS = 0.2


def make(config, num_steps: int, task: Any, traits: Any) -> optax.GradientTransformation:
    """Returns the optimizer of all parameters, from a tree of their `Traits`.

    The task gives the group of a parameter, and the depth of its layer. Raises UserError where a
    group has no section in `config.optimizer.groups`, or a section no parameter.
    """
    by_name = {names(path): leaf for path, leaf in tree_leaves_with_path(traits)}
    sections = optimizers.sections(config)
    _check_groups({task.group(path) for path in by_name}, {*sections})

    def traits_of(path) -> Traits:
        return by_name[names(path)]

    def chain(section):
        by_layer = []
        if section.layer_decay != 1:
            trained = {path: by_name[path] for path in by_name if task.group(path) is not None}
            below_top = _below_top(trained, task.depth)
            by_layer = [_by_depth(section.layer_decay, below_top, traits_of)]
        return _chain(section, num_steps, traits_of, by_layer)

    transforms = {_label(name): chain(section) for name, section in sections.items()}
    return optax.multi_transform(
        transforms | {_label(None): optax.set_to_zero()},
        by_path(lambda path: _label(task.group(names(path)))),
    )


def _label(group: str | None) -> str:
    """Returns the name of a group in the optimizer's state."""
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
    config, num_steps: int, traits_of: TraitsOf, by_layer: list[optax.GradientTransformation]
) -> optax.GradientTransformation:
    """Returns clipping, the optimizer's direction, weight decay, decay by layer and the rate.

    Before update number `config.begin` they change neither the parameters nor their own state. The
    schedule is that of the updates from there on.
    """
    begin = run_length.span(config.begin, num_steps)
    rate = schedule(config, num_steps - begin)
    clip = [optax.clip_by_global_norm(config.clip_norm)] if config.clip_norm else []
    chain = _direction(config, traits_of)
    if config.weight_decay:
        mask = by_path(lambda path: traits_of(path).decays)
        chain.append(optax.add_decayed_weights(config.weight_decay, mask))
    if config.name == "lamb":
        chain.append(optax.stateless(lambda updates, params: _trust(updates, params, traits_of)))
    chain += [*by_layer, optax.scale_by_learning_rate(rate)]
    if config.name == "schedule_free":
        chain = [schedule_free.averaging(optax.chain(*chain), rate, config.b1)]
    chain = optax.chain(*clip, *chain)
    return optax.conditionally_mask(chain, lambda count: count >= begin) if begin else chain


def _direction(config, traits_of: TraitsOf) -> list[optax.GradientTransformation]:
    """Returns what turns a gradient into the direction of the update.

    adam: Kingma & Ba 2015; adamw: Loshchilov & Hutter 2019; lamb: You et al. 2020; adafactor:
    Shazeer & Stern 2018; rmsprop: Tieleman & Hinton 2012; adagrad: Duchi et al. 2011; adadelta:
    Zeiler 2012; lion: Chen et al. 2023; muon: Jordan et al. 2024; schedule_free: Defazio et al.
    2024.
    """
    match config.name:
        case "adafactor":
            return adafactor.direction(config.decay_exponent, traits_of)
        case "sgd":
            return [optax.trace(config.momentum)] if config.momentum else []
        case "rmsprop":
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
            # Adam without its mean of gradients: the average of the parameters takes its place.
            return [
                optax.scale_by_rms(config.b2, config.eps, eps_in_sqrt=False, bias_correction=True)
            ]
    return [optax.scale_by_adam(config.b1, config.b2, config.eps)]


def _muon(config, traits_of: TraitsOf) -> optax.GradientTransformation:
    """Returns Muon for matrices, one for each layer, and Adam for the other parameters."""

    def sides(path) -> optax.contrib.MuonDimensionNumbers:
        traits = traits_of(path)
        between = traits.is_stack + traits.inputs
        return optax.contrib.MuonDimensionNumbers(
            tuple(range(traits.is_stack, between)), tuple(range(between, len(traits.axes)))
        )

    def scaled(path, update: Float[Array, "..."]) -> Float[Array, "..."]:
        sizes = [math.prod(update.shape[axis] for axis in side) for side in sides(path)]
        return update * (_MUON_RMS * max(sizes) ** 0.5)

    orthogonal = optax.contrib.scale_by_muon(
        beta=config.muon_momentum, weight_dimension_numbers=by_path(sides)
    )
    scale = optax.stateless(lambda updates, _: tree_map_with_path(scaled, updates))
    return optax.multi_transform(
        {
            "matrices": optax.chain(orthogonal, scale),
            "others": optax.scale_by_adam(config.b1, config.b2, config.eps),
        },
        by_path(lambda path: "matrices" if traits_of(path).inputs else "others"),
    )


def _trust(updates, params, traits_of: TraitsOf):
    """Gives each layer's update the norm of its parameters (You et al. 2020, algorithm 2)."""

    def scaled(path, update, param):
        axes = tuple(range(traits_of(path).is_stack, param.ndim))
        param_norm = _norm(param, axes)
        update_norm = _norm(update, axes)
        nonzero = (param_norm > 0) & (update_norm > 0)
        ratio = param_norm / jnp.where(update_norm > 0, update_norm, 1)
        return update * jnp.where(nonzero, ratio, 1)

    return tree_map_with_path(scaled, updates, params)


def _norm(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    return jnp.sqrt(jnp.sum(jnp.square(x), axis=axes, keepdims=True))


def _below_top(by_name: Mapping[Path, Traits], depth: Callable[[Path], int | None]):
    """Returns {path: number of layers from a parameter's own to the top, with it}.

    Stacks count their layers themselves. Embeddings have one more than all layers, and the
    parameters above the layers have 0.
    """
    depths = {path: None if leaf.is_stack else depth(path) for path, leaf in by_name.items()}
    stacks = [leaf.layers for leaf in by_name.values()]
    top = 1 + max(*stacks, *(place for place in depths.values() if place is not None), 0)
    return {path: 0 if place is None else top - place for path, place in depths.items()}


def _by_depth(decay: float, below_top: Mapping[Path, int], traits_of: TraitsOf):
    """Scales the updates by depth, for a decay of the learning rate by layer.

    The factor of layer i of N, from 1 at the bottom, is decay^(N + 1 - i). Embeddings have
    decay^(N + 1), and the parameters above the layers 1.
    """

    def scaled(path, update):
        if traits_of(path).is_stack:
            factors = decay ** (len(update) - jnp.arange(len(update)))
            return update * factors.reshape(-1, *[1] * (update.ndim - 1))
        return update * decay ** below_top[names(path)]

    return optax.stateless(lambda updates, _: tree_map_with_path(scaled, updates))


def by_path(choose: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns a function of params: the tree of choose(path) for the path of each parameter."""
    return lambda params: tree_map_with_path(lambda path, _: choose(path), params)


def names(path) -> Path:
    """A jax key path as words, without the boxes that hold a parameter's logical axes."""
    return tuple(str(key.key) for key in path if hasattr(key, "key"))


def schedule(config, num_steps: int) -> optax.Schedule:
    """Returns the learning rate by applied update, from 0: a linear warm-up, then a course.

    inverse_sqrt is peak * sqrt(warmup / s) at update s, from 1. With peak =
    (d_model * warmup)^-0.5 it is equation 3 of Vaswani et al. 2017. truncated_inverse_sqrt has the
    peak from the first update on (Raffel et al. 2020, section 3.1.2). linear, cosine and polynomial
    fall to `final_fraction` of the peak and stay there; so does warmup_stable_decay (Hu et al.
    2024, section 4) in its last `cooldown_steps`. They reach it at the update after the last of
    `decay_steps`, by default the length of the run. slanted_triangular rises from peak / ratio in
    the warm-up, and falls to it likewise (Howard & Ruder 2018, section 3.2).
    """
    warmup_steps = run_length.span(config.warmup_steps, num_steps)
    peak = config.learning_rate
    warmup = max(warmup_steps, 1)
    cooldown = run_length.span(config.cooldown_steps, num_steps)
    num_steps = run_length.span(config.decay_steps or 0, num_steps) or num_steps

    def progress(step, first):
        """The part of the updates from `first` to the end that lies before `step`."""
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
        # Updates are numbered from 1, so that the first one has no rate of 0.
        step = count + 1
        if config.schedule == "slanted_triangular":
            return peak * slanted(step)
        if config.schedule == "truncated_inverse_sqrt":
            return peak * after(step)
        return peak * jnp.where(step < warmup_steps, step / warmup, after(step))

    return rate
