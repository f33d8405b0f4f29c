"""Utterances as byte records: 16-bit samples of 16 kHz, and then the transcript in UTF-8."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int16, Int64, Shaped

from transformer_jax.data.store import Record, Records

RATE = 16_000  # samples a second
_FULL = 2**15  # the amplitude that 16 bits end at
_LEAST_VARIANCE = 1e-7  # beside the variance of samples from -1 to 1, as in transformers


class Utterance(NamedTuple):
    """Samples (S,) int16, and their transcript; "" for an utterance without one."""

    samples: Int16[np.ndarray, " S"]
    text: str = ""


def record(utterance: Utterance) -> Record:
    """Returns the record of an utterance. Its numbers are those of samples and of characters."""
    content = utterance.samples.astype("<i2").tobytes() + utterance.text.encode()
    numbers = {"samples": len(utterance.samples), "characters": len(utterance.text)}
    return Record(content, numbers)


class Utterances:
    """The utterances of byte records, to be read at random."""

    def __init__(self, records: Records):
        self._records = records
        self.samples: Int64[np.ndarray, " N"] = records.array("samples")
        self.characters: Int64[np.ndarray, " N"] = records.array("characters")

    def __len__(self) -> int:
        return len(self._records)

    def read(self, numbers: Sequence[int]) -> list[Utterance]:
        """Returns these utterances, read in parallel."""
        contents = self._records.read(numbers)
        sizes = [2 * int(self.samples[number]) for number in numbers]
        return [
            Utterance(content[:size].view("<i2"), content[size:].tobytes().decode())
            for content, size in zip(contents, sizes)
        ]


def quantized(sound: Float32[np.ndarray, " S"]) -> Int16[np.ndarray, " S"]:
    """Returns the 16-bit samples of sound from -1 to 1. Larger values are cut."""
    return np.clip(np.rint(sound * _FULL), -_FULL, _FULL - 1).astype(np.int16)


def normalised(samples: Shaped[np.ndarray, " S"]) -> Float32[np.ndarray, " S"]:
    """Returns an utterance with mean 0 and variance 1, as the models of sound read it."""
    sound = samples.astype(np.float32) / _FULL
    return (sound - sound.mean()) / np.sqrt(sound.var() + _LEAST_VARIANCE)
