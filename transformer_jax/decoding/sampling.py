"""Decoding token by token with a key/value cache."""
from collections.abc import Callable

import jax
import jax.numpy as jnp

from transformer_jax.decoding.beam_search import Beams, length_penalty


def greedy(step: Callable, logits: jax.Array, cache, limits: jax.Array, *, alpha: float, max_steps: int, eos_id: int) -> Beams:
    """The likeliest token each time, until every row has ended or reached its limit; one hypothesis a row.

    `step(cache, tokens (B,), position) -> (logits (B, V), cache)`; `logits` predict the first token, which will
    stand at position 1; `limits` (B,) are the most tokens of each row, the end included.
    """
    batch = logits.shape[0]

    def running(state):
        number, _, ended, *_ = state
        return (number < max_steps) & jnp.any(~ended & (number < limits))

    def advance(state):
        number, logits, ended, scores, lengths, ids, cache = state
        live = ~ended & (number < limits)
        log_p = jax.nn.log_softmax(logits.astype(jnp.float32))
        token = log_p.argmax(axis=-1).astype(jnp.int32)
        scores = scores + jnp.where(live, log_p.max(axis=-1), 0)
        lengths = lengths + live
        ended |= token == eos_id
        ids = ids.at[:, number].set(jnp.where(live & ~ended, token, 0))
        logits, cache = step(cache, token, number + 1)
        return number + 1, logits, ended, scores, lengths, ids, cache

    start = (jnp.int32(0), logits, jnp.zeros(batch, bool), jnp.zeros(batch), jnp.zeros(batch, jnp.int32),
             jnp.zeros((batch, max_steps), jnp.int32), cache)
    _, _, _, scores, lengths, ids, _ = jax.lax.while_loop(running, advance, start)
    return Beams(ids[:, None], (scores / length_penalty(lengths, alpha))[:, None])
