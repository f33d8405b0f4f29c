"""The optimizer: an optax chain with a schedule, weight decay and frozen parameters."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from transformer_jax.configuration import run_length


def schedule(config, num_steps: int) -> optax.Schedule:
    """The learning rate by applied update, from 0: a linear warm-up, then `config.schedule`.

    inverse_sqrt is peak * sqrt(warmup / s) at update s, from 1. With peak =
    (d_model * warmup)^-0.5 it is equation 3 of Vaswani et al. 2017. linear and cosine fall to
    `final_fraction` of the peak and stay there. They reach it at the update after the last of
    `decay_steps`, by default the length of the run.
    """
    warmup_steps = run_length.span(config.warmup_steps, num_steps)
    peak = config.learning_rate
    warmup = max(warmup_steps, 1)
    num_steps = run_length.span(config.decay_steps or 0, num_steps) or num_steps

    def after(step):
        progress = jnp.clip((step - 1 - warmup_steps) / max(num_steps - warmup_steps, 1), 0, 1)
        shape = {
            "constant": 1.0,
            "inverse_sqrt": jnp.sqrt(warmup / jnp.maximum(step, warmup)),
            "linear": 1 - progress,
            "cosine": (1 + jnp.cos(jnp.pi * progress)) / 2,
        }[config.schedule]
        final = config.final_fraction if config.schedule in ("linear", "cosine") else 0.0
        return final + (1 - final) * shape

    def rate(count):
        # Updates are numbered from 1, so that the first one has no rate of 0.
        step = count + 1
        return peak * jnp.where(step < warmup_steps, step / warmup, after(step))

    return rate


def decays(path: tuple[str, ...]) -> bool:
    """Whether the parameter at a path decays: matrices do, biases and norms do not."""
    return path[-1] in ("kernel", "embedding", "recurrent")


def make(
    config, num_steps: int, group: Callable[[tuple[str, ...]], str | None]
) -> optax.GradientTransformation:
    """Clipping, Adam, weight decay, LAMB's trust ratio, decay by layer, and the schedule.

    Adam: Kingma & Ba 2015; with decoupled weight decay it is AdamW, Loshchilov & Hutter 2019. LAMB:
    You et al. 2020. A parameter at a path whose `group` is None gets no update.
    """
    chain = []
    if config.clip_norm:
        chain.append(optax.clip_by_global_norm(config.clip_norm))
    chain.append(optax.scale_by_adam(b1=config.b1, b2=config.b2, eps=config.eps))
    if config.weight_decay:
        chain.append(optax.add_decayed_weights(config.weight_decay, mask=by_path(decays)))
    if config.name == "lamb":
        chain.append(optax.stateless(_trust))
    if config.layer_decay != 1:
        chain.append(optax.stateless(lambda updates, _: _by_depth(updates, config.layer_decay)))
    chain.append(optax.scale_by_learning_rate(schedule(config, num_steps)))
    return optax.multi_transform(
        {"trained": optax.chain(*chain), "frozen": optax.set_to_zero()},
        by_path(lambda path: "frozen" if group(path) is None else "trained"),
    )


def _trust(updates, params):
    """Gives each layer's update the norm of its parameters (You et al. 2020, algorithm 2).

    The layers of a stack are the first axis of its parameters.
    """

    def scaled(path, update, param):
        axes = tuple(range("layers" in names(path), param.ndim))
        param_norm = _norm(param, axes)
        update_norm = _norm(update, axes)
        nonzero = (param_norm > 0) & (update_norm > 0)
        ratio = param_norm / jnp.where(update_norm > 0, update_norm, 1)
        return update * jnp.where(nonzero, ratio, 1)

    return jax.tree_util.tree_map_with_path(scaled, updates, params)


def _norm(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    return jnp.sqrt(jnp.sum(jnp.square(x), axis=axes, keepdims=True))


def _by_depth(updates, decay: float):
    """Scales the updates by depth, for a decay of the learning rate by layer.

    The factor of layer i of N, from 1 at the bottom, is decay^(N + 1 - i). Embeddings have
    decay^(N + 1), and the parameters above the layers 1.
    """
    paths = jax.tree_util.tree_leaves_with_path(updates)
    depth = max((len(leaf) for path, leaf in paths if "layers" in names(path)), default=0)

    def scaled(path, update):
        if "layers" in names(path):
            factors = decay ** (len(update) - jnp.arange(len(update)))
            return update * factors.reshape(-1, *[1] * (update.ndim - 1))
        top = names(path)[0]
        is_embedding = "embed" in top and top != "output_embed"
        return update * (decay ** (depth + 1) if is_embedding else 1)

    return jax.tree_util.tree_map_with_path(scaled, updates)


def by_path(choose: Callable[[tuple[str, ...]], bool | str]) -> Callable:
    """Returns a function of params: the tree of choose(path) for the path of each parameter."""

    def tree(params):
        return jax.tree_util.tree_map_with_path(lambda path, _: choose(names(path)), params)

    return tree


def names(path) -> tuple[str, ...]:
    """A jax key path as words, without the boxes that hold a parameter's logical axes."""
    return tuple(str(key.key) for key in path if hasattr(key, "key"))
