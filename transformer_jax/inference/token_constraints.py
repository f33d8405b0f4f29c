"""Constraints on generated texts, which modify the log-probabilities of the next tokens.

Each computes the same as its counterpart in transformers (generation/logits_process.py): a
forbidden token gets -inf, and the others keep their log-probabilities unless `renormalize` is set.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.data.tokenizers import Tokenizer

LogProbs = Float[Array, "B K V"]


def end_ids(decode: Any, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Returns the ids that end an output: those of config.decode, or else the tokenizer's end."""
    return tuple(decode.ends) or (tokenizer.eos_id,)


class Written(NamedTuple):
    """What constraints read of B outputs, each with K hypotheses of equal length."""

    # (B, K, T) int32: the tokens in front of an output and its own, -1 where there is none; may be
    # None unless `Constraints.read_text`
    text: jax.Array | None
    lengths: jax.Array  # (B,) int32: valid tokens in `text`
    tokens: jax.Array  # (B,) int32: tokens of the output
    limits: jax.Array  # (B,) int32: maximum number of tokens of the output, end token included


@dataclasses.dataclass(frozen=True)
class Constraints:
    """The constraints on all outputs. By default there are none."""

    never: tuple[int, ...] = ()  # tokens that no output may contain
    min_length: int = 0  # fewest tokens of an output, end token included
    no_repeat_ngram: int = 0  # no n-gram of this size may occur twice; 0: any may
    first: tuple[int, ...] = ()  # the first tokens of each output
    force_end: bool = False  # an output that reaches its limit gets the first end token there
    renormalize: bool = False  # the probabilities of the allowed tokens sum to 1
    bad_words: tuple[tuple[int, ...], ...] = ()  # sequences that no output may contain
    suppress: tuple[int, ...] = ()  # like `never`, but it also forbids a token of `first`
    begin_suppress: tuple[int, ...] = ()  # tokens that may not follow directly after `first`

    @classmethod
    def of(cls, decode: Any, ends: tuple[int, ...], **others) -> "Constraints":
        """Returns the constraints of config.decode. `others` are further ones."""
        return cls(
            min_length=decode.min_length,
            no_repeat_ngram=decode.no_repeat_ngram,
            force_end=decode.force_end,
            renormalize=decode.renormalize,
            # As in transformers, an end token is no bad word by itself.
            bad_words=tuple(
                word for word in decode.bad_words if len(word) > 1 or word[0] not in ends
            ),
            suppress=tuple(decode.suppress),
            begin_suppress=tuple(decode.begin_suppress),
            **others,
        )

    @property
    def read_text(self) -> bool:
        """Whether a constraint depends on the tokens that are already written."""
        return bool(self.no_repeat_ngram) or any(len(word) > 1 for word in self.bad_words)

    def __call__(self, log_p: LogProbs, written: Written, ends: tuple[int, ...]) -> LogProbs:
        """Returns the constrained log-probabilities of the next tokens.

        `ends` are the ids that end an output.
        """
        if self.no_repeat_ngram:
            log_p = without_repeats(log_p, written.text, written.lengths, self.no_repeat_ngram)
        words = [*self.bad_words, *((token,) for token in self.never)]
        # One word length at a time, so that all words of it are compared as one array.
        for size in sorted({len(word) for word in words}):
            same_size = np.array([word for word in words if len(word) == size])
            log_p = without_words(log_p, written, same_size)
        if self.min_length:
            too_short = written.tokens + 1 < self.min_length
            log_p = jnp.where(_rows(too_short), without(log_p, ends), log_p)
        # Forced tokens come after the constraints above, as in transformers, and override them.
        for position, token in enumerate(self.first):
            log_p = forced(log_p, written.tokens == position, token)
        if self.force_end:
            log_p = forced(log_p, written.tokens + 1 == written.limits, ends[0])
        # Only these come after the forced tokens, because in transformers, too, they win over them.
        if self.suppress:
            log_p = without(log_p, self.suppress)
        if self.begin_suppress:
            begins = written.tokens == len(self.first)
            log_p = jnp.where(_rows(begins), without(log_p, self.begin_suppress), log_p)
        return normalized(log_p) if self.renormalize else log_p


UNCONSTRAINED = Constraints()


def without(log_p: LogProbs, tokens: tuple[int, ...]) -> LogProbs:
    """Returns the log-probabilities with -inf for `tokens`."""
    return jnp.where(np.isin(np.arange(log_p.shape[2]), tokens), -jnp.inf, log_p)


def without_words(log_p: LogProbs, written: Written, words: Int[np.ndarray, "N S"]) -> LogProbs:
    """Returns the log-probabilities with -inf for tokens that would complete one of the words.

    All words have S tokens, of which the text must end with the first S - 1.
    """
    *first, last = words.T
    if not first:
        return without(log_p, tuple(last.tolist()))
    batch, beams, _ = log_p.shape
    complete = _rows(written.lengths) >= len(first)  # (B, 1, 1)
    for offset, tokens in enumerate(first):
        # A negative index would count from the end of the text. `complete` is False there anyway.
        index = jnp.maximum(_rows(written.lengths) - len(first) + offset, 0)
        complete = complete & (jnp.take_along_axis(written.text, index, axis=2) == tokens)
    bias = jnp.where(complete, -jnp.inf, 0.0)  # (B, K, N)
    inputs, hypotheses = jnp.ogrid[:batch, :beams]
    # `add`, because words may share their last token: with `set`, the 0 of one of them could undo
    # the -inf of another.
    return log_p.at[inputs[..., None], hypotheses[..., None], last].add(bias)


def forced(log_p: LogProbs, inputs: Bool[Array, " B"], token: int) -> LogProbs:
    """Returns the log-probabilities in which `token` is certain for the chosen `inputs`."""
    certain = jnp.where(np.arange(log_p.shape[2]) == token, 0.0, -jnp.inf)
    return jnp.where(_rows(inputs), certain, log_p)


def without_repeats(
    log_p: LogProbs, text: Int[Array, "B K T"], lengths: Int[Array, " B"], size: int
) -> LogProbs:
    """Returns the log-probabilities with -inf for tokens that would repeat an n-gram of `size`.

    Of each text, only the first `lengths` (B,) tokens are valid.
    """
    batch, beams, vocab = log_p.shape
    num_windows = text.shape[2] - size + 1
    if num_windows < 1:
        return log_p
    # A window is an n-gram of the text. If its first n - 1 tokens equal the last n - 1 tokens of
    # the text, its last token would repeat it and is forbidden.
    repeats = jnp.arange(num_windows) + size <= _rows(lengths)
    for offset in range(size - 1):
        last = jnp.maximum(_rows(lengths) - size + 1 + offset, 0)
        same = text[..., offset : offset + num_windows] == jnp.take_along_axis(text, last, axis=2)
        repeats = repeats & same
    # Windows that do not match write to an id beyond the vocabulary, which the scatter drops.
    tokens = jnp.where(repeats, text[..., size - 1 :], vocab)
    inputs, hypotheses = jnp.ogrid[:batch, :beams]
    return log_p.at[inputs[..., None], hypotheses[..., None], tokens].set(-jnp.inf, mode="drop")


def normalized(log_p: LogProbs) -> LogProbs:
    """Returns the log-probabilities, renormalized over the tokens that are still possible."""
    total = jax.nn.logsumexp(log_p, axis=-1, keepdims=True)
    # If no token is possible, the total is -inf, and -inf minus -inf would be NaN.
    return log_p - jnp.where(jnp.isfinite(total), total, 0.0)


def _rows(x: Array) -> Array:
    """Returns x (B,) as (B, 1, 1)."""
    return x[:, None, None]
