"""Transcripts of sound by a model with a CTC head."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.data.sound import normalised
from transformer_jax.distributed import hosts
from transformer_jax.distributed.placement import Placement, gathered, split_rows
from transformer_jax.inference.batching import chunks, in_order, rounded_up
from transformer_jax.inference.ctc import Decoded

# Samples to a multiple of which each utterance is padded: few shapes are compiled. The padding of
# an utterance depends on its own length alone, and so does its transcript.
_MULTIPLE = 2**15
_SORTED_BATCHES = 8  # of utterances that are held at a time


class Transcript(NamedTuple):
    text: str
    score: float  # that of the decoder, see inference/ctc.py


@dataclasses.dataclass(frozen=True)
class Transcriber:
    """Transcribes utterances, on the devices of the parameters.

    Attributes:
      logits: (params, sound (B, S), lengths (B,)) -> logits (B, L, V).
      num_frames: the number of frames of so many samples.
      decoder: log-probabilities (L, V) of an utterance -> sequences, the best first.
      spell: the text of a sequence.
      batch: utterances that are read together.
      mesh: config.mesh.
    """

    logits: Callable[[Any, jax.Array, jax.Array], jax.Array]
    num_frames: Callable[[int], int]
    decoder: Callable[[np.ndarray], list[Decoded]]
    spell: Callable[[tuple[int, ...]], str]
    batch: int
    mesh: Any

    def __call__(self, params, utterances: Iterable[np.ndarray]) -> Iterator[list[Transcript]]:
        """Yields the transcripts of samples (S,) int16 each, in order, the best first."""
        placement = Placement.of(params, self.mesh)
        rows = placement.rows(self.batch)
        for chunk in chunks(utterances, _SORTED_BATCHES * rows):
            yield from in_order(self._of_chunk(params, placement, rows, chunk))

    def _of_chunk(self, params, placement: Placement, rows: int, chunk: list[np.ndarray]):
        """Yields (number in the chunk, transcripts)."""
        by_size = {}
        for number, samples in enumerate(chunk):
            by_size.setdefault(rounded_up(max(len(samples), 1), _MULTIPLE), []).append(number)
        for size, numbers in sorted(by_size.items()):
            for part in chunks(numbers, rows):
                sound = np.zeros((rows, size), np.float32)
                lengths = np.zeros(rows, np.int32)
                for row, number in enumerate(part):
                    lengths[row] = len(chunk[number])
                    if lengths[row]:
                        sound[row, : lengths[row]] = normalised(chunk[number])
                log_probs = hosts.run(self._log_probs, placement, params, sound, lengths)
                log_probs = jax.device_get(log_probs)
                for row, number in enumerate(part):
                    frames = log_probs[row, : self.num_frames(len(chunk[number]))]
                    yield number, [self._transcript(each) for each in self.decoder(frames)]

    def _transcript(self, decoded: Decoded) -> Transcript:
        return Transcript(self.spell(decoded.tokens), decoded.score)

    @cached_property
    def _log_probs(self):
        def computed(placement: Placement, params, sound, lengths):
            with placement.use():
                logits = self.logits(params, *split_rows((sound, lengths)))
                return gathered(jax.nn.log_softmax(logits.astype(jnp.float32)))

        return jax.jit(computed, static_argnums=0)
