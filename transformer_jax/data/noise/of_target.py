"""Noises that also decide the target: span corruption, the span of MASS, and the prefix."""

import dataclasses

import numpy as np

from transformer_jax.data.noise.text import Noise, Text


@dataclasses.dataclass(frozen=True)
class SpanCorruption(Noise):
    """Span corruption (Raffel et al. 2020, section 3.1.4): each span becomes a sentinel.

    The target is the spans, each after its sentinel. The numbers of spans and of their tokens are
    those of T5's code, `random_spans_noise_mask`; all divisions into spans are equally likely. The
    text begins with a token that stays and ends with a span.
    """

    share: float = 0.15
    mean: float = 3.0
    alone = True

    def __call__(self, text, pieces, random):
        num_tokens = len(text.tokens)
        num_masked, num_spans = self._counts(num_tokens)
        if not num_spans:
            return text._replace(target=text.target[:0])
        unmasked = _divided(num_tokens - num_masked, num_spans, random)
        masked = _divided(num_masked, num_spans, random)
        # The bounds of unmasked and masked spans in turn.
        ends = np.cumsum(np.stack([unmasked, masked], axis=1))
        starts = np.concatenate([[0], ends[:-1]])
        is_masked = np.repeat(np.arange(len(ends)) % 2 == 1, ends - starts)
        ids = pieces.size - 1 - np.arange(num_spans)
        return text._replace(
            tokens=_with_sentinels(text.tokens, is_masked, starts[1::2], ids),
            sentences=text.sentences[:0],
            target=_with_sentinels(text.tokens, ~is_masked, starts[::2], ids),
        )

    def _counts(self, num_tokens: int) -> tuple[int, int]:
        """Returns the numbers of masked tokens and of spans."""
        num_masked = min(max(round(num_tokens * self.share), 1), num_tokens - 1)
        num_spans = max(round(num_masked / self.mean), 1)
        return num_masked, min(num_spans, num_masked, num_tokens - num_masked)

    def lengths(self, num_tokens):
        num_masked, num_spans = self._counts(num_tokens)
        return num_tokens - num_masked + num_spans, num_masked + num_spans

    def num_sentinels(self, num_tokens):
        return self._counts(num_tokens)[1]


@dataclasses.dataclass(frozen=True)
class MaskedSpan(Noise):
    """The masked span of MASS (Song et al. 2019, section 3.2): the decoder writes the span alone.

    The encoder reads a mask for each of its tokens.
    """

    share: float = 0.5
    masks = True
    alone = True
    frames = False

    def __call__(self, text, pieces, random):
        _, length = self.lengths(len(text.tokens))
        start = int(random.integers(len(text.tokens) - length + 1))
        masked = text.tokens.copy()
        masked[start : start + length] = pieces.mask_id
        target = text.tokens[start : start + length]
        return text._replace(tokens=masked, target=target, start=start)

    def lengths(self, num_tokens):
        return num_tokens, max(round(self.share * num_tokens), 1)


@dataclasses.dataclass(frozen=True)
class Prefix(Noise):
    """Prefix language modelling (Raffel et al. 2020, section 3.2.3): the target follows the source.

    `share` is that of the source. 0 draws its length, all lengths equally likely.
    """

    share: float = 0.0
    alone = True

    def __call__(self, text, pieces, random):
        num_tokens = len(text.tokens)
        if self.share:
            length = self.lengths(num_tokens)[0]
        else:
            length = random.integers(1, max(num_tokens, 2))
        return Text(text.tokens[:length], text.sentences[:length], text.tokens[length:])

    def lengths(self, num_tokens):
        if not self.share:
            return num_tokens, num_tokens
        length = round(self.share * num_tokens)
        return length, num_tokens - length


def _divided(number: int, parts: int, random: np.random.Generator) -> np.ndarray:
    """Returns the sizes of `parts` parts of a number, at least 1 each; all are equally likely."""
    inner = np.sort(random.permutation(number - 1)[: parts - 1]) + 1
    return np.diff(np.concatenate([[0], inner, [number]]))


def _with_sentinels(
    tokens: np.ndarray, replaced: np.ndarray, starts: np.ndarray, ids: np.ndarray
) -> np.ndarray:
    """Returns the tokens with a sentinel in place of each span of replaced ones."""
    tokens = tokens.copy()
    tokens[starts] = ids
    stays = ~replaced
    stays[starts] = True
    return tokens[stays]
