"""Spoken digits: synthesized strings of three to seven English digits."""

import dataclasses
from typing import Annotated

import numpy as np

from transformer_jax.config import NonNegativeFloat, Range, UserError
from transformer_jax.contracts.source import Source
from transformer_jax.corpora import speech_synthesis
from transformer_jax.corpora.speech_synthesis import Voice
from transformer_jax.data import speech
from transformer_jax.data.speech import RATE

_VERSION = 1  # raised when the synthesizer changes, so that caches notice it
_SPLITS = ("train", "valid", "test")


@dataclasses.dataclass
class SpokenDigits(Source):
    """Strings of digits in many voices. The voices of evaluations do not occur in training.

    Speed, noise and reverberation are drawn for each utterance. Unlabeled utterances, which have no
    transcript, come after the labeled ones.
    """

    minutes: NonNegativeFloat = 10.0  # minutes of labeled speech for training
    unlabelled_minutes: NonNegativeFloat = 0.0  # minutes of training speech without transcripts
    held_out_minutes: NonNegativeFloat = 5.0  # minutes of speech in each evaluation set
    # voices in the training speech; each evaluation set has half as many
    voices: Annotated[int, Range(least=2)] = 40
    lowest_snr: float = 30.0  # smallest signal-to-noise ratio, in dB
    highest_snr: float = 50.0  # largest signal-to-noise ratio, in dB
    speech_seed: int = 0  # seed of the voices and utterances

    def __post_init__(self):
        if self.minutes + self.unlabelled_minutes <= 0:
            raise UserError(f"config.source.minutes={self.minutes}: must be above 0")
        if self.lowest_snr > self.highest_snr:
            raise UserError(
                f"config.source.lowest_snr={self.lowest_snr}: must be at most "
                f"config.source.highest_snr={self.highest_snr}"
            )

    def fingerprint(self, split):
        if split != "train" and not self.held_out_minutes:
            return None
        return [_VERSION, split]

    def read(self, split):
        if split == "train":
            yield from self._utterances(split, self.minutes, 0)
            # A large first number, so that these utterances differ from the labeled ones however
            # many of those there are.
            for record in self._utterances(split, self.unlabelled_minutes, 10**6):
                # The transcript is cut off the content, so that nothing can learn from it by
                # mistake.
                size = 2 * record.numbers["samples"]
                yield record._replace(
                    content=record.content[:size], numbers=record.numbers | {"characters": 0}
                )
        else:
            yield from self._utterances(split, self.held_out_minutes, 0)

    def _utterances(self, split: str, minutes: float, first: int):
        """Yields records with `minutes` minutes in total, starting with utterance `first`."""
        split_index = _SPLITS.index(split)
        voices = self.voices if split == "train" else self.voices // 2
        left, number = minutes * 60 * RATE, first
        while left > 0:
            # Voices are drawn by their own numbers, so that a voice speaks many utterances. The
            # split is in the counter, so that evaluations have other voices.
            voice = Voice.drawn(self._generator(0, split_index, number % voices))
            rng = self._generator(1, split_index, number)
            snr = (self.lowest_snr, self.highest_snr)
            record = speech.record(speech_synthesis.utterance(voice, rng, snr))
            left -= record.numbers["samples"]
            number += 1
            yield record

    def _generator(self, *counter: int) -> np.random.Generator:
        return np.random.Generator(np.random.Philox(key=self.speech_seed, counter=[*counter, 0]))
