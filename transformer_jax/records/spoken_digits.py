"""Spoken digits: strings of three to seven English digits, synthesised here."""

import dataclasses
from typing import Annotated

import numpy as np

from transformer_jax.config import NonNegativeFloat, Range, UserError
from transformer_jax.contracts.source import Source
from transformer_jax.data import speech, speech_synthesis
from transformer_jax.data.speech import RATE
from transformer_jax.data.speech_synthesis import Voice

_VERSION = 1  # of the synthesizer
_SPLITS = ("train", "valid", "test")


@dataclasses.dataclass
class SpokenDigits(Source):
    """Strings of digits in many voices. Those of evaluations do not occur in training.

    Speed, noise and reverberation are drawn for each utterance. Unlabelled utterances, without a
    transcript, follow the labelled ones.
    """

    minutes: NonNegativeFloat = 10.0  # of labelled speech for training
    unlabelled_minutes: NonNegativeFloat = 0.0  # of speech for training without transcripts
    held_out_minutes: NonNegativeFloat = 5.0  # of each set for evaluations
    # of the training speech; each set for evaluations has half as many
    voices: Annotated[int, Range(least=2)] = 40
    lowest_snr: float = 30.0  # least ratio of speech to noise, in dB
    highest_snr: float = 50.0  # largest ratio of speech to noise, in dB
    speech_seed: int = 0  # of voices and utterances

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
            # Other utterances than the labelled ones, however many those are.
            for record in self._utterances(split, self.unlabelled_minutes, 10**6):
                size = 2 * record.numbers["samples"]
                yield record._replace(
                    content=record.content[:size], numbers=record.numbers | {"characters": 0}
                )
        else:
            yield from self._utterances(split, self.held_out_minutes, 0)

    def _utterances(self, split: str, minutes: float, first: int):
        """Yields the records of so many minutes."""
        place = _SPLITS.index(split)
        voices = self.voices if split == "train" else self.voices // 2
        left, number = minutes * 60 * RATE, first
        while left > 0:
            voice = Voice.drawn(self._generator(0, place, number % voices))
            rng = self._generator(1, place, number)
            snr = (self.lowest_snr, self.highest_snr)
            record = speech.record(speech_synthesis.utterance(voice, rng, snr))
            left -= record.numbers["samples"]
            number += 1
            yield record

    def _generator(self, *counter: int) -> np.random.Generator:
        return np.random.Generator(np.random.Philox(key=self.speech_seed, counter=[*counter, 0]))
