"""Constraints of beam search: they change the log-probabilities of the next tokens.

Each equals the class of the same purpose in transformers, `generation/logits_process.py`. A token
that is impossible gets -inf. The others keep their log-probabilities unless `renormalize` says
otherwise.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.inference.hypotheses import Search

LogProbs = Float[Array, "B K V"]


@dataclasses.dataclass(frozen=True)
class Constraints:
    """The constraints of all outputs of a search. The defaults change nothing."""

    never: tuple[int, ...] = ()  # tokens that no output holds
    min_length: int = 0  # fewest tokens of an output, including the end
    no_repeat_ngram: int = 0  # no sequence of so many tokens occurs twice; 0: each may
    first: tuple[int, ...] = ()  # the first tokens of each output
    force_end: bool = False  # an output that reaches its limit ends there
    renormalize: bool = False  # the probabilities of the tokens that are left sum to 1

    def __call__(self, log_p: LogProbs, search: Search, eos_id: int) -> LogProbs:
        """Returns the log-probabilities of the tokens that the open hypotheses may write next."""
        if self.no_repeat_ngram:
            text = jnp.concatenate(
                [jnp.repeat(search.before[:, None], log_p.shape[1], axis=1), search.open.ids],
                axis=2,
            )
            lengths = search.before.shape[1] + search.lengths
            log_p = without_repeats(log_p, text, lengths, self.no_repeat_ngram)
        if self.never:
            log_p = without(log_p, self.never)
        if self.min_length:
            too_short = search.lengths + 1 < self.min_length
            log_p = jnp.where(_rows(too_short), without(log_p, (eos_id,)), log_p)
        for place, token in enumerate(self.first):
            log_p = forced(log_p, search.lengths == place, token)
        if self.force_end:
            log_p = forced(log_p, search.lengths + 1 == search.limits, eos_id)
        return normalized(log_p) if self.renormalize else log_p


def without(log_p: LogProbs, tokens: tuple[int, ...]) -> LogProbs:
    """Returns the log-probabilities with -inf for `tokens`."""
    return jnp.where(np.isin(np.arange(log_p.shape[2]), tokens), -jnp.inf, log_p)


def forced(log_p: LogProbs, inputs: Bool[Array, " B"], token: int) -> LogProbs:
    """Returns the log-probabilities, where `token` is certain as the next token of `inputs`."""
    certain = jnp.where(np.arange(log_p.shape[2]) == token, 0.0, -jnp.inf)
    return jnp.where(_rows(inputs), certain, log_p)


def without_repeats(
    log_p: LogProbs, text: Int[Array, "B K T"], lengths: Int[Array, " B"], size: int
) -> LogProbs:
    """Returns the log-probabilities with -inf where a token repeats `size` tokens of its text.

    The first `lengths` (B,) tokens of a text have been written or read.
    """
    batch, beams, vocab = log_p.shape
    num_windows = text.shape[2] - size + 1
    if num_windows < 1:
        return log_p
    # A window ends with the token that must not follow its other tokens again.
    repeats = jnp.arange(num_windows) + size <= _rows(lengths)
    for place in range(size - 1):
        last = jnp.maximum(_rows(lengths) - size + 1 + place, 0)
        same = text[..., place : place + num_windows] == jnp.take_along_axis(text, last, axis=2)
        repeats = repeats & same
    # The id beyond the vocabulary is dropped.
    tokens = jnp.where(repeats, text[..., size - 1 :], vocab)
    inputs, hypotheses = jnp.ogrid[:batch, :beams]
    return log_p.at[inputs[..., None], hypotheses[..., None], tokens].set(-jnp.inf, mode="drop")


def normalized(log_p: LogProbs) -> LogProbs:
    """Returns the log-probabilities of the possible tokens among themselves."""
    total = jax.nn.logsumexp(log_p, axis=-1, keepdims=True)
    return log_p - jnp.where(jnp.isfinite(total), total, 0.0)


def _rows(x: Array) -> Array:
    """Returns x (B,) as (B, 1, 1)."""
    return x[:, None, None]
