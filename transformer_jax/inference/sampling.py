"""Decoding token by token with a key/value cache: the likeliest token, or one drawn at random."""

import dataclasses
import numbers
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from transformer_jax.config import UserError

_BLOCK = 256  # tokens: about the root of a large vocabulary


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How the next token is drawn from the logits; the restrictions apply in this order."""

    # above 1: tokens that stand in the text already become less likely (Keskar et al. 2019, section
    # 4.1)
    repetition_penalty: float = 1.0
    temperature: float = 1.0  # 0: the likeliest token
    top_k: int = 0  # only the k likeliest tokens (Fan et al. 2018); 0: all
    # only the likeliest tokens that together have this probability (Holtzman et al. 2020)
    top_p: float = 1.0

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            kind = numbers.Integral if field.type is int else numbers.Real
            if not isinstance(value, kind) or isinstance(value, bool):
                number = "a whole number" if field.type is int else "a number"
                raise UserError(f"{field.name}={value!r}: must be {number}")
        for name, right, bounds in (
            ("repetition_penalty", self.repetition_penalty > 0, "above 0"),
            (
                "temperature",
                self.temperature == 0 or self.temperature >= 1e-6,
                "0 or at least 1e-6",
            ),
            ("top_k", self.top_k >= 0, "at least 0"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
        ):
            if not right:
                raise UserError(f"{name}={getattr(self, name)}: must be {bounds}")

    def draw(self, logits: jax.Array, seen: jax.Array | None, keys: jax.Array) -> jax.Array:
        """Logits (B, V), which tokens stand in each row's text (B, V), a key for each row -> tokens
        (B,) int32.
        """
        logits = logits.astype(jnp.float32)
        if self.repetition_penalty != 1:
            penalised = jnp.where(
                logits > 0, logits / self.repetition_penalty, logits * self.repetition_penalty
            )
            logits = jnp.where(seen, penalised, logits)
        if self.temperature == 0:
            return logits.argmax(axis=-1).astype(jnp.int32)
        logits = logits / self.temperature
        if 0 < self.top_k < logits.shape[-1]:
            # for [:, -1:] XLA sorts the whole vocabulary, which takes a hundred times as long
            least = jax.lax.top_k(logits, self.top_k)[0].min(axis=-1, keepdims=True)
            logits = jnp.where(logits < least, -jnp.inf, logits)
        if self.top_p < 1:
            logits = jnp.where(_nucleus(jax.nn.softmax(logits), self.top_p), logits, -jnp.inf)
        return _drawn(
            jnp.exp(logits - logits.max(axis=-1, keepdims=True)), jax.vmap(jax.random.uniform)(keys)
        )


def of_options(how: Sampling | None, options: Mapping[str, Any]) -> Sampling:
    """`how`, or the Sampling with these options by name. Raises UserError for unknown names."""
    names = [field.name for field in dataclasses.fields(Sampling)]
    if unknown := [name for name in options if name not in names]:
        name, known = unknown[0], ", ".join(names)
        raise UserError(f"{name}={options[name]!r}: no such option; sampling has {known}")
    if how is not None and options:
        raise UserError(f"how and {next(iter(options))}: give the options of sampling in one way")
    if not isinstance(how, Sampling | None):
        raise UserError(f"how={how!r}: must be a Sampling; or give its options by name")
    return how or Sampling(**options)


def _nucleus(probabilities: jax.Array, top_p: float) -> jax.Array:
    """(B, V) bool: the tokens of which all that are likelier have less than `top_p` together; so
    the one that crosses the line is in.

    Where the line is, is found by halving what float32 can be, whose bits are ordered as the
    numbers are: to sort a vocabulary takes 15 times as long on a CPU.
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
    """A token of each row (B, V) by its weight, from one number each in [0, 1): block of tokens,
    then token. Gumbel's noise for every token takes 20 times as long on a CPU.
    """
    batch, vocab = weights.shape
    blocks = jnp.pad(weights, ((0, 0), (0, -vocab % _BLOCK))).reshape(batch, -1, _BLOCK)

    def reached(sums, share):
        """The first place at which the cumulated sums (B, N) exceed `share` (B,), and how far that
        stands behind its beginning.
        """
        ends = jnp.cumsum(sums, axis=-1)
        # whatever rounding does, there is such a place
        share = jnp.minimum(share, ends[:, -1] * (1 - 2**-22))
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


class Fixed(NamedTuple):
    """What does not change while B texts are written."""

    keys: jax.Array  # (B,)
    before: jax.Array  # (B,) int32: tokens of the text that stand before its `ids`
    limits: jax.Array  # (B,) int32: the most tokens in its `ids`


def sample(
    step: Callable, texts: Texts, fixed: Fixed, steps: jax.Array, *, how: Sampling, eos_id: int
) -> Texts:
    """`texts` with up to `steps` more tokens each; a text ends before `eos_id` or at its limit.

    `step(cache, tokens (B,), positions (B,)) -> (logits (B, V), cache)`. A token's randomness is
    that of its row's key and its place in the whole text: neither the other rows nor where a call
    stops change a text.
    """
    rows = jnp.arange(len(texts.lengths))

    def running(state):
        number, texts = state
        return (number < steps) & ~texts.ended.all()

    def advance(state):
        number, texts = state
        keys = jax.vmap(jax.random.fold_in)(fixed.keys, fixed.before + texts.lengths)
        token = how.draw(texts.logits, texts.seen, keys)
        live = ~texts.ended & (token != eos_id)
        ids = texts.ids.at[rows, texts.lengths].set(
            jnp.where(live, token, texts.ids[rows, texts.lengths])
        )
        seen = None if texts.seen is None else texts.seen.at[rows, token].max(live)
        logits, cache = step(texts.cache, token, texts.lengths)
        lengths = texts.lengths + live
        ended = ~live | (lengths >= fixed.limits)
        return number + 1, Texts(ids, lengths, ended, seen, logits, cache)

    return jax.lax.while_loop(running, advance, (jnp.int32(0), texts))[1]
