"""Decoding token by token with a key/value cache: the likeliest token, or one drawn at random."""
import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from transformer_jax.config import UserError

_BLOCK = 256  # tokens: about the root of a large vocabulary


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How the next token is drawn from the logits; the restrictions apply in this order."""

    repetition_penalty: float = 1.0  # above 1: tokens that stand in the text already become less likely (Keskar et al. 2019, section 4.1)
    temperature: float = 1.0  # 0: the likeliest token
    top_k: int = 0  # only the k likeliest tokens (Fan et al. 2018); 0: all
    top_p: float = 1.0  # only the likeliest tokens that together have this probability (Holtzman et al. 2020)

    def __post_init__(self):
        for name, right, bounds in (("repetition_penalty", self.repetition_penalty > 0, "above 0"), ("temperature", self.temperature == 0 or self.temperature >= 1e-6, "0 or at least 1e-6"),
                                    ("top_k", self.top_k >= 0, "at least 0"), ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1")):
            if not right:
                raise UserError(f"{name}={getattr(self, name)}: must be {bounds}")

    def draw(self, logits: jax.Array, seen: jax.Array | None, keys: jax.Array) -> jax.Array:
        """Logits (B, V), which tokens stand in each row's text (B, V), a key for each row -> tokens (B,) int32."""
        logits = logits.astype(jnp.float32)
        if self.repetition_penalty != 1:
            penalised = jnp.where(logits > 0, logits / self.repetition_penalty, logits * self.repetition_penalty)
            logits = jnp.where(seen, penalised, logits)
        if self.temperature == 0:
            return logits.argmax(axis=-1).astype(jnp.int32)
        logits = logits / self.temperature
        if 0 < self.top_k < logits.shape[-1]:
            least = jax.lax.top_k(logits, self.top_k)[0].min(axis=-1, keepdims=True)  # for [:, -1:] XLA sorts the whole vocabulary, which takes a hundred times as long
            logits = jnp.where(logits < least, -jnp.inf, logits)
        if self.top_p < 1:
            logits = jnp.where(_nucleus(jax.nn.softmax(logits), self.top_p), logits, -jnp.inf)
        return _drawn(jnp.exp(logits - logits.max(axis=-1, keepdims=True)), jax.vmap(jax.random.uniform)(keys))


def _nucleus(probabilities: jax.Array, top_p: float) -> jax.Array:
    """(B, V) bool: the tokens of which all that are likelier have less than `top_p` together; so the one that crosses the line is in.

    Where the line is, is found by halving what float32 can be, whose bits are ordered as the numbers are: to sort a vocabulary takes 15 times as long on a CPU.
    """
    bits = jax.lax.bitcast_convert_type(probabilities, jnp.int32)

    def halve(_, bounds):
        low, high = bounds
        middle = (low + high) // 2
        room = jnp.where(bits > middle, probabilities, 0).sum(axis=-1, keepdims=True) < top_p
        return jnp.where(room, low, middle + 1), jnp.where(room, middle, high)

    one = jnp.full_like(bits[:, :1], jnp.float32(1).view(jnp.int32))
    return bits >= jax.lax.fori_loop(0, 31, halve, (jnp.zeros_like(one), one))[1]


def _drawn(weights: jax.Array, uniform: jax.Array) -> jax.Array:
    """A token of each row (B, V) by its weight, from one number each in [0, 1): block of tokens, then token. Gumbel's noise for every token takes 20 times as long on a CPU."""
    batch, vocab = weights.shape
    blocks = jnp.pad(weights, ((0, 0), (0, -vocab % _BLOCK))).reshape(batch, -1, _BLOCK)

    def reached(sums, share):
        """The first place at which the cumulated sums (B, N) exceed `share` (B,), and how far that stands behind its beginning."""
        ends = jnp.cumsum(sums, axis=-1)
        share = jnp.minimum(share, ends[:, -1] * (1 - 2**-22))  # whatever rounding does, there is such a place
        begins = jnp.where(ends <= share[:, None], ends, 0).max(axis=-1)
        return jnp.sum(ends <= share[:, None], axis=-1), share - begins

    sums = blocks.sum(axis=-1)
    block, share = reached(sums, uniform * sums.sum(axis=-1))
    token, _ = reached(blocks[jnp.arange(batch), block], share)
    return (block * _BLOCK + token).astype(jnp.int32)


class Texts(NamedTuple):
    """B texts being written: what stands, and what the next token is drawn from."""

    ids: jax.Array  # (B, T) int32, prompts first
    lengths: jax.Array  # (B,) int32: tokens that stand
    ended: jax.Array  # (B,) bool
    seen: jax.Array | None  # (B, V) bool: tokens that stand; None where nobody asks
    logits: jax.Array  # (B, V) of the next token
    cache: Any


def sample(step: Callable, texts: Texts, keys: jax.Array, limits: jax.Array, steps: jax.Array, *, how: Sampling, eos_id: int) -> Texts:
    """`texts` with up to `steps` more tokens each; a text ends before `eos_id`, or with `limits` (B,) tokens.

    `step(cache, tokens (B,), positions (B,)) -> (logits (B, V), cache)`. A token's randomness is that of its row's key and its
    position: neither the other rows nor where a call stops change a text.
    """
    rows = jnp.arange(len(texts.lengths))

    def running(state):
        number, texts = state
        return (number < steps) & ~texts.ended.all()

    def advance(state):
        number, texts = state
        token = how.draw(texts.logits, texts.seen, jax.vmap(jax.random.fold_in)(keys, texts.lengths))
        live = ~texts.ended & (token != eos_id)
        ids = texts.ids.at[rows, texts.lengths].set(jnp.where(live, token, texts.ids[rows, texts.lengths]))
        seen = None if texts.seen is None else texts.seen.at[rows, token].max(live)
        logits, cache = step(texts.cache, token, texts.lengths)
        lengths = texts.lengths + live
        return number + 1, Texts(ids, lengths, ~live | (lengths >= limits), seen, logits, cache)

    return jax.lax.while_loop(running, advance, (jnp.int32(0), texts))[1]
