"""Generating token by token: the likeliest token, or a random one."""

import dataclasses
import numbers
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from transformer_jax.config import UserError
from transformer_jax.layers.decoding import State, on_rows

# Tokens of a block: about the square root of a large vocabulary's size.
_BLOCK_TOKENS = 256


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How the next token is drawn from the logits. The options apply in this order."""

    # above 1: tokens that the text already has become less likely (Keskar et al. 2019, section 4.1)
    repetition_penalty: float = 1.0
    temperature: float = 1.0  # 0: the likeliest token
    top_k: int = 0  # draw from the k likeliest tokens (Fan et al. 2018); 0: from all
    # draw from the likeliest tokens that together have this probability (Holtzman et al. 2020)
    top_p: float = 1.0

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            kind = numbers.Integral if field.type is int else numbers.Real
            if not isinstance(value, kind) or isinstance(value, bool):
                number = "a whole number" if field.type is int else "a number"
                raise UserError(f"{field.name}={value!r}: must be {number}")
        self._check("repetition_penalty", self.repetition_penalty > 0, "above 0")
        is_temperature = self.temperature == 0 or self.temperature >= 1e-6
        self._check("temperature", is_temperature, "0 or at least 1e-6")
        self._check("top_k", self.top_k >= 0, "at least 0")
        self._check("top_p", 0 < self.top_p <= 1, "above 0 and at most 1")

    def _check(self, name: str, is_right: bool, bounds: str) -> None:
        if not is_right:
            raise UserError(f"{name}={getattr(self, name)}: must be {bounds}")

    def draw(
        self,
        logits: Float[Array, "B V"],
        seen: Bool[Array, "B V"] | None,
        keys: Key[Array, " B"],
    ) -> Int[Array, " B"]:
        """Returns a token for each row, (B,) int32.

        The arguments are the logits (B, V), the tokens that each row's text has (B, V) bool, and a
        key for each row (B,).
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
            # With [:, -1:] XLA sorts the whole vocabulary, which takes a hundred times as long.
            least = jax.lax.top_k(logits, self.top_k)[0].min(axis=-1, keepdims=True)
            logits = jnp.where(logits < least, -jnp.inf, logits)
        if self.top_p < 1:
            logits = jnp.where(_nucleus(jax.nn.softmax(logits), self.top_p), logits, -jnp.inf)
        weights = jnp.exp(logits - logits.max(axis=-1, keepdims=True))
        return drawn(weights, jax.vmap(jax.random.uniform)(keys))


def of_options(how: Any, options: Mapping[str, Any]) -> Sampling:
    """Returns `how`, or the Sampling with these options by name.

    Raises UserError for an unknown name, and where both are given.
    """
    names = [field.name for field in dataclasses.fields(Sampling)]
    if unknown := [name for name in options if name not in names]:
        name, known = unknown[0], ", ".join(names)
        raise UserError(f"{name}={options[name]!r}: unknown option; the options are {known}")
    if how is not None and options:
        raise UserError(f"how and {next(iter(options))}: give the options of sampling in one way")
    if not isinstance(how, Sampling | None):
        raise UserError(f"how={how!r}: must be a Sampling; or give its options by name")
    return how or Sampling(**options)


def _nucleus(probabilities: Float[Array, "B V"], top_p: float) -> Bool[Array, "B V"]:
    """Returns the tokens (B, V) bool whose likelier tokens have less than `top_p` together.

    The token that reaches `top_p` is among them. Bisection over the bits of float32, which have the
    same order as the numbers, finds the probability at the border. Sorting a vocabulary takes 15
    times as long on a CPU.
    """
    bits = jax.lax.bitcast_convert_type(probabilities, jnp.int32)

    def halve(_, bounds):
        low, high = bounds
        middle = (low + high) // 2
        room = jnp.where(bits > middle, probabilities, 0).sum(axis=-1, keepdims=True) < top_p
        return jnp.where(room, low, middle + 1), jnp.where(room, middle, high)

    one = jnp.full_like(bits[:, :1], jnp.float32(1).view(jnp.int32))
    return bits >= jax.lax.fori_loop(0, 31, halve, (jnp.zeros_like(one), one))[1]


def drawn(weights: Float[Array, "B V"], uniform: Float[Array, " B"]) -> Int[Array, " B"]:
    """Returns a token for each row of weights (B, V), from a number (B,) in [0, 1) each.

    A block of tokens is drawn first, then a token of the block. Gumbel noise for each token takes
    20 times as long on a CPU.
    """
    batch, vocab = weights.shape
    blocks = jnp.pad(weights, ((0, 0), (0, -vocab % _BLOCK_TOKENS)))
    blocks = blocks.reshape(batch, -1, _BLOCK_TOKENS)

    def reached(sums, share):
        """Returns the first place where the cumulated `sums` (B, N) exceed `share` (B,), and the
        part of `share` beyond the beginning of that place.
        """
        ends = jnp.cumsum(sums, axis=-1)
        # Rounding must not put the share beyond the last place.
        share = jnp.minimum(share, ends[:, -1] * (1 - 2**-22))
        begins = jnp.where(ends <= share[:, None], ends, 0).max(axis=-1)
        return jnp.sum(ends <= share[:, None], axis=-1), share - begins

    sums = blocks.sum(axis=-1)
    block, share = reached(sums, uniform * sums.sum(axis=-1))
    token, _ = reached(blocks[jnp.arange(batch), block], share)
    return (block * _BLOCK_TOKENS + token).astype(jnp.int32)


class Texts(NamedTuple):
    """B texts during generation: their tokens, and the state that the next token is drawn from."""

    ids: jax.Array  # (B, T) int32, prompts first
    lengths: jax.Array  # (B,) int32: number of `ids`
    ended: jax.Array  # (B,) bool
    seen: jax.Array | None  # (B, V) bool: the tokens in each text; None where no penalty needs them
    logits: jax.Array  # (B, V) of the next token
    state: State  # the tokens that the model has read


class Fixed(NamedTuple):
    """Values that do not change while B texts are generated."""

    keys: jax.Array  # (B,)
    num_before: jax.Array  # (B,) int32: tokens of the text before its `ids`
    limits: jax.Array  # (B,) int32: most tokens in its `ids`


def sample(
    step: Callable, texts: Texts, fixed: Fixed, steps: Int[Array, ""], *, how: Sampling, eos_id: int
) -> Texts:
    """Returns `texts` with up to `steps` more tokens each.

    A text ends before `eos_id` or at its limit. `step(state, tokens (B, 1))` returns
    (logits (B, 1, V), state).

    The randomness of a token comes from its row's key and its place in the whole text. So a text
    depends neither on the other rows nor on the number of steps of a call.
    """

    def running(loop):
        number, texts = loop
        return (number < steps) & ~texts.ended.all()

    def write(texts, fixed):
        rows = jnp.arange(len(texts.lengths))
        keys = jax.vmap(jax.random.fold_in)(fixed.keys, fixed.num_before + texts.lengths)
        token = how.draw(texts.logits, texts.seen, keys)
        live = ~texts.ended & (token != eos_id)
        ids = texts.ids.at[rows, texts.lengths].set(
            jnp.where(live, token, texts.ids[rows, texts.lengths])
        )
        seen = None if texts.seen is None else texts.seen.at[rows, token].max(live)
        lengths = texts.lengths + live
        ended = ~live | (lengths >= fixed.limits)
        return Texts(ids, lengths, ended, seen, None, None), token

    def advance(loop):
        number, texts = loop
        written, token = on_rows(write, texts._replace(state=None), fixed)
        logits, state = step(texts.state, token[:, None])
        return number + 1, written._replace(logits=logits[:, 0], state=state)

    return jax.lax.while_loop(running, advance, (jnp.int32(0), texts))[1]
