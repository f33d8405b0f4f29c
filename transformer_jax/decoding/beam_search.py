"""Beam search with a length penalty (Wu et al. 2016, equation 14), as in Vaswani et al. 2017, section 6.1."""
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from transformer_jax.decoding import growth

NEVER = -1e9  # log-probability of what can't be: finite, so that differences stay numbers


class Beams(NamedTuple):
    """Hypotheses of B inputs, K of each, the best first; the lowest score marks an empty place."""

    ids: jax.Array  # (B, K, T) int32, 0 after the end
    scores: jax.Array  # (B, K) float32


def length_penalty(length: jax.Array, alpha: float) -> jax.Array:
    """((5 + l) / 6)^alpha; l counts the end token."""
    return ((5.0 + length) / 6.0) ** alpha


def beam_search(step: Callable, logits: jax.Array, cache, limits: jax.Array, *, beam: int, alpha: float, max_steps: int, eos_id: int, n_best: int = 1,
                grow: Callable = lambda cache, positions: cache) -> Beams:
    """The `n_best` hypotheses with the highest log-probability over `length_penalty`, from `beam` open ones at a time.

    `logits` (B, V) predict the first token, which stands at position 1, behind the beginning at 0.
    `step(cache, tokens (B, K), position, ancestors (B, K, T)) -> (logits (B, K, V), cache)`: the beams of an input stand side by side,
    and the cache keeps what each wrote where it wrote it. `ancestors[b, k, p]` is the beam at position p that beam k goes on from, -1
    where there is none yet: to reorder this table with the beams costs nothing, to reorder the cache would cost as much as the model itself.
    `grow(cache, positions)` gives the cache room for what all beams write at so many.

    A hypothesis ends with `eos_id`; one that has `limits` (B,) tokens without it counts only if nothing else ends. An input is done when
    none of its open beams can still come among its `n_best`: the log-probability only falls, so the bound is the present one over the
    penalty of the longest allowed output.
    """
    batch, vocab = logits.shape

    def pick(x, chosen):  # (B, N, ...), (B, M) -> (B, M, ...)
        return jnp.take_along_axis(x, chosen.reshape(*chosen.shape, *[1] * (x.ndim - 2)), axis=1)

    def choose(number, logits, open_, ended, ancestors):
        """The beams with token `number` (from 0), by the logits (B, K, V) of it."""
        log_p = logits - jax.nn.logsumexp(logits, axis=-1, keepdims=True) + open_.scores[..., None]
        scores, chosen = jax.lax.top_k(log_p.reshape(batch, beam * vocab), 2 * beam)  # so many that beam of them go on, whatever ends
        parent, token = chosen // vocab, (chosen % vocab).astype(jnp.int32)
        ids = pick(open_.ids, parent).at[:, :, number].set(token)
        live = (number < limits)[:, None]  # an input past its limit changes no more
        ends = (token == eos_id) & live

        candidates = jnp.where(ends, scores / length_penalty(number + 1.0, alpha), NEVER)
        best, order = jax.lax.top_k(jnp.concatenate([ended.scores, candidates], axis=1), beam)
        without_eos = jnp.where(ids == eos_id, 0, ids)
        ended = Beams(pick(jnp.concatenate([ended.ids, without_eos], axis=1), order), best)

        going, order = jax.lax.top_k(jnp.where(token == eos_id, NEVER, scores), beam)
        open_ = jax.tree.map(lambda new, old: jnp.where(live.reshape(batch, *[1] * (new.ndim - 1)), new, old), Beams(pick(ids, order), going), open_)
        ancestors = pick(ancestors, pick(parent, order)).at[:, :, number + 1].set(jnp.arange(beam), mode="drop")
        return number + 1, open_, ended, ancestors

    def running(state):
        number, open_, ended, *_ = state
        bound = open_.scores[:, 0] / length_penalty(limits, alpha)
        return jnp.any((bound > ended.scores[:, n_best - 1]) & (number < limits))

    def advance(state):
        number, open_, ended, ancestors, cache = state
        logits, cache = step(cache, open_.ids[:, :, number - 1], number, ancestors)
        return *choose(number, logits.astype(jnp.float32), open_, ended, ancestors), cache

    blank = jnp.zeros((batch, beam, max_steps), jnp.int32)
    one = jnp.where(jnp.arange(beam) == 0, 0.0, NEVER)  # all beams begin alike: only the first may branch
    first = jnp.broadcast_to(logits[:, None].astype(jnp.float32), (batch, beam, vocab))
    start = choose(jnp.int32(0), first, Beams(blank, jnp.tile(one, (batch, 1))), Beams(blank, jnp.full((batch, beam), NEVER)), (blank - 1).at[:, :, 0].set(0))
    _, open_, ended, *_ = growth.while_loop(running, advance, (*start, cache), most=max_steps, grow=grow)
    # what has not ended stands behind whatever has
    unended = open_.scores / length_penalty(limits, alpha)[:, None]
    _, order = jax.lax.top_k(jnp.concatenate([ended.scores, unended + NEVER / 10], axis=1), n_best)
    return Beams(pick(jnp.concatenate([ended.ids, open_.ids], axis=1), order), pick(jnp.concatenate([ended.scores, unended], axis=1), order))
