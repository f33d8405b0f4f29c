"""The optimizer: an optax chain, its schedule, and which parameters decay or stay frozen."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from transformer_jax.configuration import run_length


def schedule(config, num_steps: int) -> optax.Schedule:
    """Learning rate by update: a linear warm-up to the peak, then `config.schedule`.

    inverse_sqrt: peak * sqrt(warmup / s). With peak = (d_model * warmup)^-0.5 it is the schedule of
    Vaswani et al. 2017, equation 3. linear and cosine head for `final_fraction` of the peak, which
    the update after the last of `decay_steps` (by default the run's) would have, and stay there.
    """
    warmup_steps = run_length.span(config.warmup_steps, num_steps)
    peak, warmup = config.learning_rate, max(warmup_steps, 1)
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
        step = count + 1  # the first update is number 1: it must not be lost to a rate of 0
        return peak * jnp.where(step < warmup_steps, step / warmup, after(step))

    return rate


def decays(path: tuple[str, ...]) -> bool:
    """Weight decay is for matrices; biases and norms stay out."""
    return path[-1] in ("kernel", "embedding", "recurrent")


def make(
    config, num_steps: int, trainable: Callable[[tuple[str, ...]], bool]
) -> optax.GradientTransformation:
    """Clipping, Adam (Kingma & Ba 2015), AdamW (Loshchilov & Hutter 2019) or LAMB (You et al.
    2020), the schedule; frozen parameters get no update.
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
    labels = lambda params: jax.tree.map(
        lambda keep: "trained" if keep else "frozen", by_path(trainable)(params)
    )
    return optax.multi_transform(
        {"trained": optax.chain(*chain), "frozen": optax.set_to_zero()}, labels
    )


def _trust(updates, params):
    """Each layer's update as long as its parameters are (You et al. 2020, algorithm 2); layers of a
    stack stand on the first axis.
    """

    def scaled(path, update, param):
        axes = tuple(range("layers" in names(path), param.ndim))
        norm = lambda x: jnp.sqrt(jnp.sum(jnp.square(x), axis=axes, keepdims=True))
        length, change = norm(param), norm(update)
        return update * jnp.where(
            (length > 0) & (change > 0), length / jnp.where(change > 0, change, 1), 1
        )

    return jax.tree_util.tree_map_with_path(scaled, updates, params)


def _by_depth(updates, decay: float):
    """Layer i of N, from 1 at the bottom, by decay^(N + 1 - i), embeddings by decay^(N + 1), what
    is above the layers as it is.
    """
    paths = jax.tree_util.tree_leaves_with_path(updates)
    depth = max((len(leaf) for path, leaf in paths if "layers" in names(path)), default=0)

    def scaled(path, update):
        if "layers" in names(path):
            return update * (decay ** (len(update) - jnp.arange(len(update)))).reshape(
                -1, *[1] * (update.ndim - 1)
            )
        top = names(path)[0]
        return update * (decay ** (depth + 1) if "embed" in top and top != "output_embed" else 1)

    return jax.tree_util.tree_map_with_path(scaled, updates)


def by_path(choose: Callable[[tuple[str, ...]], bool]) -> Callable:
    """params -> a tree of what `choose` says of each parameter's path."""
    return lambda params: jax.tree_util.tree_map_with_path(
        lambda path, _: choose(names(path)), params
    )


def names(path) -> tuple[str, ...]:
    """A jax key path as words; the box that holds a parameter's logical axes is no part of it."""
    return tuple(str(key.key) for key in path if hasattr(key, "key"))
