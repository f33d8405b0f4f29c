"""The learning rate by update."""

import jax.numpy as jnp
import optax

from transformer_jax.configuration import run_length


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
