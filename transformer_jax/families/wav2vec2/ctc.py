"""Decoding for connectionist temporal classification (CTC): greedy, and by prefix beam search."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float64

from transformer_jax.config import UserError
from transformer_jax.data.speech import prepared
from transformer_jax.distributed import hosts
from transformer_jax.distributed.sharding import Placement, gathered, split_rows
from transformer_jax.inference.batching import chunks, in_order, rounded_up
from transformer_jax.scores.ngrams import NGrams

# -------------------------------------- decoding log-probabilities of frames to sequences of tokens

# A path assigns a token to each of T frames; one of the tokens is the blank. Merging repeated
# tokens and then removing blanks turns a path into a sequence (Graves et al. 2006, section 3). The
# probability of a sequence is the sum over all paths that become this sequence.

Tokens = tuple[int, ...]
# Maps the tokens so far to the log-probabilities (V,) of the next one. A sequence starts and ends
# with a word boundary.
LanguageModel = Callable[[Tokens], np.ndarray]
_IMPOSSIBLE = -math.inf


class Decoded(NamedTuple):
    """A sequence of tokens and its score; see `greedy` and `PrefixBeam`."""

    tokens: Tokens
    score: float


def greedy(log_probs: Float[np.ndarray, "T V"], blank: int = 0) -> Decoded:
    """Returns the sequence of the likeliest path, with the log-probability of this path."""
    path = log_probs.argmax(axis=1)
    # The first frame has no predecessor that it could repeat. An empty utterance has no first
    # frame.
    is_new = np.append(True, path[1:] != path[:-1]) if len(path) else np.zeros(0, bool)
    tokens = path[is_new & (path != blank)]
    return Decoded(tuple(tokens.tolist()), float(log_probs.max(axis=1, initial=-np.inf).sum()))


class _Prefix(NamedTuple):
    """The log-probability of a prefix so far, split by the last frame of its paths.

    The two parts are kept apart because a repeated token is only a new one after a blank.
    """

    blank: float  # of the paths that end with a blank
    other: float  # of the paths that end with the last token of the prefix

    @property
    def both(self) -> float:
        return np.logaddexp(self.blank, self.other)


_NONE = _Prefix(_IMPOSSIBLE, _IMPOSSIBLE)


@dataclasses.dataclass(frozen=True)
class PrefixBeam:
    """Prefix beam search (Graves & Jaitly 2014, algorithm 1; Hannun et al. 2014).

    The score of a sequence is log p(sequence | audio) + lm_weight log p(sequence) + length_bonus
    times its number of tokens. It is a lower bound if the beam is smaller than the number of
    prefixes, because the paths of pruned prefixes are lost.

    Attributes:
      beam: number of prefixes that are kept after each frame.
      blank: id of the blank.
      language_model: see `LanguageModel`; None: the search has none.
      lm_weight: factor of the language model's log-probability.
      length_bonus: added to the score for each token.
      boundary: the token before and after a sequence, for the language model.
      least: in each frame, tokens with a lower log-probability are not tried.
    """

    beam: int
    blank: int = 0
    language_model: LanguageModel | None = None
    lm_weight: float = 0.0
    length_bonus: float = 0.0
    boundary: int = 0
    least: float = -12.0

    def __call__(self, log_probs: Float[np.ndarray, "T V"], n_best: int = 1) -> list[Decoded]:
        """Returns the `n_best` sequences, best first."""
        # The part of each prefix's score that the language model and the length bonus add. It is
        # kept apart, because it counts once for a prefix, however many paths lead to it.
        prior = {(): 0.0}
        prefixes = {(): _Prefix(0.0, _IMPOSSIBLE)}
        # float64, because a score sums the log-probabilities of all frames of an utterance.
        for frame in log_probs.astype(np.float64):
            extended = self._extended(prefixes, frame, prior)
            ranked = sorted(extended, key=lambda p: prior[p] + extended[p].both, reverse=True)
            prefixes = {prefix: extended[prefix] for prefix in ranked[: self.beam]}
            prior = {prefix: prior[prefix] for prefix in prefixes}
        scores = {
            prefix: float(state.both + prior[prefix] + self._end(prefix))
            for prefix, state in prefixes.items()
        }
        ranked = sorted(scores, key=scores.get, reverse=True)
        return [Decoded(prefix, scores[prefix]) for prefix in ranked[:n_best]]

    def _extended(self, prefixes: dict, frame: np.ndarray, prior: dict) -> dict[Tokens, _Prefix]:
        """Returns the prefixes after a frame, and adds the scores of the new ones to `prior`."""
        extended: dict[Tokens, list[float]] = {}
        # Most tokens are very unlikely in a frame, and trying them would take most of the time.
        tried = [int(token) for token in np.flatnonzero(frame > self.least) if token != self.blank]

        def add(prefix: Tokens, end: int, value: float) -> None:
            state = extended.setdefault(prefix, [*_NONE])
            # Several paths lead to one prefix, whose probability is their sum.
            state[end] = np.logaddexp(state[end], value)

        for prefix, state in prefixes.items():
            add(prefix, 0, state.both + frame[self.blank])
            if prefix:
                add(prefix, 1, state.other + frame[prefix[-1]])
            for token in tried:
                # A token that equals the last one extends the prefix only after a blank. Without a
                # blank in between, the two are merged.
                before = state.blank if prefix and token == prefix[-1] else state.both
                # Prefixes of probability 0 would take up the beam.
                if before == _IMPOSSIBLE:
                    continue
                longer = (*prefix, token)
                add(longer, 1, before + frame[token])
                # The language model is asked once for each new prefix, since each answer is a
                # distribution over all tokens.
                if longer not in prior:
                    prior[longer] = prior[prefix] + self._added(prefix, token)
        return {prefix: _Prefix(*state) for prefix, state in extended.items()}

    def _added(self, prefix: Tokens, token: int) -> float:
        """Returns what a token after a prefix adds to the score."""
        if self.language_model is None:
            return self.length_bonus
        log_prob = self.language_model((self.boundary, *prefix))[token]
        return self.length_bonus + self.lm_weight * float(log_prob)

    def _end(self, prefix: Tokens) -> float:
        """Returns what the end of a sequence adds to its score."""
        if self.language_model is None or not prefix:
            return 0.0
        log_prob = self.language_model((self.boundary, *prefix))[self.boundary]
        return self.lm_weight * float(log_prob)


# -------------------------------------------- a character n-gram language model for the beam search

_HELD_OUT = 10  # one text in this many is held out to fit the interpolation weights
_MOST_CONTEXTS = 2**16  # in the cache of distributions, which would grow with the audio


@dataclasses.dataclass(frozen=True)
class SpellingModel:
    """An interpolated n-gram model of characters (scores/ngrams.py). It is a `LanguageModel`."""

    ngrams: NGrams
    weights: Float64[np.ndarray, "orders bins"]
    _known: dict[tuple, np.ndarray] = dataclasses.field(default_factory=dict)

    @classmethod
    def count_texts(
        cls, texts: Sequence[Sequence[int]], order: int, vocab_size: int, boundary: int
    ) -> "SpellingModel":
        """Counts the n-grams of up to `order` tokens in texts of character ids.

        `boundary` is the token between words; here it also separates texts. Raises UserError if
        there are fewer than two texts.
        """
        if len(texts) < 2:
            raise UserError("config.task.lm_files: has fewer than two lines of text")
        held_out = texts[::_HELD_OUT]
        others = [text for number, text in enumerate(texts) if number % _HELD_OUT]
        # Fitted on the counted texts themselves, the weights would favor the longest n-grams. The
        # final counts include the texts that were held out.
        counted = NGrams.count(_joined(others, boundary), order, vocab_size)
        weights = counted.occurrences(_joined(held_out, boundary)).fitted_weights()
        return cls(NGrams.count(_joined(texts, boundary), order, vocab_size), weights)

    def __call__(self, tokens: tuple[int, ...]) -> Float64[np.ndarray, " V"]:
        """Returns the log-probabilities of the token after `tokens`."""
        # Only what the longest n-gram reads, so that different histories share an entry of the
        # cache.
        context = tokens[max(len(tokens) - len(self.ngrams.tables) + 1, 0) :]
        if context not in self._known:
            if len(self._known) >= _MOST_CONTEXTS:
                # All at once, which needs no order of use; the frequent contexts soon come back.
                self._known.clear()
            self._known[context] = np.log(self.ngrams.following(context, self.weights))
        return self._known[context]


def _joined(texts: Sequence[Sequence[int]], boundary: int) -> np.ndarray:
    tokens = itertools.chain.from_iterable((*text, boundary) for text in texts)
    return np.array([boundary, *tokens], np.int64)


# ---------------------------------------------- transcribing audio with a model that has a CTC head

# Each utterance is padded to a multiple of this many samples, so that few shapes are compiled. The
# padding of an utterance depends only on its own length, so its transcript does not depend on the
# other utterances of its batch.
_MULTIPLE = 2**15
_SORTED_BATCHES = 8  # batches read ahead, so that enough utterances share a padded length


class Transcript(NamedTuple):
    text: str
    score: float  # as in Decoded


@dataclasses.dataclass(frozen=True)
class Transcriber:
    """Transcribes utterances on the devices of the parameters.

    Attributes:
      logits: (params, audio (B, S), lengths (B,)) -> logits (B, L, V).
      num_frames: number of samples -> number of frames.
      decoder: log-probabilities (L, V) of an utterance -> sequences, best first.
      spell: sequence of tokens -> text.
      batch: number of utterances in a batch.
      mesh: config.mesh.
      normalize: whether each utterance is normalized to mean 0 and variance 1.
    """

    logits: Callable[[Any, jax.Array, jax.Array], jax.Array]
    num_frames: Callable[[int], int]
    decoder: Callable[[np.ndarray], list[Decoded]]
    spell: Callable[[tuple[int, ...]], str]
    batch: int
    mesh: Any
    normalize: bool = True

    def __call__(self, params, utterances: Iterable[np.ndarray]) -> Iterator[list[Transcript]]:
        """Yields the transcripts of each utterance, best first.

        Its samples are (S,) at the model's rate, integers or floats as `speech.waveform` reads
        them.
        """
        placement = Placement.of(params, self.mesh)
        rows = placement.rows(self.batch)
        for chunk in chunks(utterances, _SORTED_BATCHES * rows):
            yield from in_order(self._transcribe(params, placement, rows, chunk))

    def _transcribe(self, params, placement: Placement, rows: int, chunk: list[np.ndarray]):
        """Yields (index in the chunk, transcripts)."""
        by_size = {}
        for number, samples in enumerate(chunk):
            by_size.setdefault(rounded_up(max(len(samples), 1), _MULTIPLE), []).append(number)
        for size, numbers in sorted(by_size.items()):
            for part in chunks(numbers, rows):
                audio = np.zeros((rows, size), np.float32)
                lengths = np.zeros(rows, np.int32)
                for row, number in enumerate(part):
                    lengths[row] = len(chunk[number])
                    # An empty utterance, as of a file that was skipped, has no mean to subtract.
                    if lengths[row]:
                        audio[row, : lengths[row]] = prepared(chunk[number], self.normalize)
                log_probs = hosts.run(self._log_probs, placement, params, audio, lengths)
                log_probs = jax.device_get(log_probs)
                for row, number in enumerate(part):
                    # Frames of the padding are left out, since the model may hear tokens in them.
                    frames = log_probs[row, : self.num_frames(len(chunk[number]))]
                    yield number, [self._transcript(each) for each in self.decoder(frames)]

    def _transcript(self, decoded: Decoded) -> Transcript:
        return Transcript(self.spell(decoded.tokens), decoded.score)

    @cached_property
    def _log_probs(self):
        def computed(placement: Placement, params, audio, lengths):
            with placement.use():
                logits = self.logits(params, *split_rows((audio, lengths)))
                # float32, because the decoder sums over all frames.
                return gathered(jax.nn.log_softmax(logits.astype(jnp.float32)))

        return jax.jit(computed, static_argnums=0)
