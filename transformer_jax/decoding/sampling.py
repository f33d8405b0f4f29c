"""Decoding token by token with a key/value cache."""
from collections.abc import Callable

import jax
import jax.numpy as jnp


def greedy(step: Callable, logits: jax.Array, cache, positions: jax.Array, limits: jax.Array, max_steps: int, eos_id: int) -> jax.Array:
    """The likeliest token each time, until every row has ended or reached its limit.

    `step(cache, tokens (B,), positions (B,)) -> (logits (B, V), cache)`; `logits` predict the first token, which will
    stand at `positions` (B,); `limits` (B,) are the most tokens of each row. Returns int32 (B, max_steps), 0 from the end on.
    """
    batch = logits.shape[0]

    def running(state):
        number, _, _, done, _, _ = state
        return (number < max_steps) & ~done.all()

    def advance(state):
        number, logits, positions, done, cache, out = state
        token = logits.argmax(axis=-1).astype(jnp.int32)
        done |= (token == eos_id) | (number >= limits)
        out = out.at[:, number].set(jnp.where(done, 0, token))
        logits, cache = step(cache, token, positions)
        return number + 1, logits, positions + 1, done, cache, out

    state = (jnp.int32(0), logits, positions, jnp.zeros(batch, bool), cache, jnp.zeros((batch, max_steps), jnp.int32))
    return jax.lax.while_loop(running, advance, state)[-1]
