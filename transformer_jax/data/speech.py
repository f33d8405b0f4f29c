"""Speech: sound files, transcripts, and rows of both."""

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int16, Int64, Shaped
from scipy import signal

from transformer_jax.config import UserError
from transformer_jax.data.rows import Row, generator, padded, philox_key
from transformer_jax.data.store import Record, Records
from transformer_jax.layers.convolutions import num_windows
from transformer_jax.pictures.progress import say
from transformer_jax.storage import buckets

# --------------------------------------------------------------------------------------------------
# Transcripts as the numbers of their characters, with a mark between words.

BOUNDARY = "|"  # between words
_UNKNOWN = ("<unk>", "[UNK]")
# The vocabulary of the published models of English, in the order of transformers' files. The
# padding is the blank.
ENGLISH = ("<pad>", "<s>", "</s>", "<unk>", BOUNDARY, *"ETAONIHSRDLUMWCFGYPBVK'XJQZ")


@dataclasses.dataclass(frozen=True)
class Spelling:
    """The characters of a vocabulary. Longer tokens are marks, which no text has."""

    vocabulary: Sequence[str]
    blank: int = 0

    def check(self) -> None:
        """Raises UserError for a vocabulary that spells no text."""
        if len(set(self.vocabulary)) < len(self.vocabulary) or BOUNDARY not in self.vocabulary:
            raise UserError(
                f"config.task.vocabulary: must have different tokens, and {BOUNDARY!r} between "
                "words"
            )
        if not 0 <= self.blank < len(self.vocabulary) or self.blank == self.boundary:
            raise UserError(
                f"config.task.blank={self.blank}: must be the number of a token of "
                f"config.task.vocabulary other than {BOUNDARY!r}"
            )

    @functools.cached_property
    def _numbers(self) -> dict[str, int]:
        return {token: number for number, token in enumerate(self.vocabulary)}

    @property
    def boundary(self) -> int:
        """The number of the mark between words."""
        return self._numbers[BOUNDARY]

    @property
    def unknown(self) -> str | None:
        """The token of characters that the vocabulary lacks; None where there is none."""
        return next((token for token in _UNKNOWN if token in self._numbers), None)

    @functools.cached_property
    def _cased(self):
        """The function that gives texts the case of the vocabulary."""
        letters = "".join(token for token in self.vocabulary if len(token) == 1)
        has_lower, has_upper = letters != letters.upper(), letters != letters.lower()
        if has_lower == has_upper:
            return str
        return str.lower if has_lower else str.upper

    def words(self, text: str) -> str:
        """Returns a text in the case of the vocabulary, with one space between words."""
        return " ".join(self._cased(text).split())

    def encode(self, text: str) -> list[int]:
        """Returns the numbers of a text's characters.

        Raises UserError for a character that the vocabulary lacks, where it has no token for such.
        """
        unknown = self._numbers.get(self.unknown)
        numbers = [
            self._numbers.get(character, unknown)
            for character in self.words(text).replace(" ", BOUNDARY)
        ]
        if None in numbers:
            raise UserError(
                f"config.task.vocabulary: lacks a character of the transcript {text!r}, and has no "
                f"{_UNKNOWN[0]}"
            )
        return numbers

    def decode(self, numbers: Iterable[int]) -> str:
        """Returns the text of numbers. Marks are left out."""
        tokens = [self.vocabulary[number] for number in numbers]
        text = "".join(token for token in tokens if len(token) == 1)
        return " ".join(text.replace(BOUNDARY, " ").split())


# --------------------------------------------------------------------------------------------------
# Utterances as byte records: 16-bit samples of 16 kHz, and then the transcript in UTF-8.

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


# --------------------------------------------------------------------------------------------------
# Sound files: WAV and FLAC by the library soundfile, resampled to 16 kHz.
#
# A file is measured before it is decoded, so that a small file can't fill the memory.

# Six minutes of one channel at 16 kHz, one minute of stereo at 48 kHz.
MOST_SAMPLES = 5_760_000
FORMATS = ("WAV", "FLAC")
_UNKNOWN_SIZE = 2**32 - 1
_RATES = range(1_000, 400_000)  # samples a second


class DamagedSound(UserError):
    """A file that is empty or too long, or that can't be decoded."""


def read(path: str, where: str, most_samples: int = MOST_SAMPLES) -> Int16[np.ndarray, " S"]:
    """Returns the samples of a file at 16 kHz, the mean of its channels.

    `where` begins the messages of errors. `most_samples` bounds the samples of all channels before
    resampling. Raises DamagedSound for a file that is missing, empty, damaged, of another format or
    longer.
    """
    soundfile = _library()
    file = buckets.path(path)
    if not file.is_file():
        raise DamagedSound(f"{where}: no such file")
    try:
        with file.open("rb") as content:
            start = content.read(12)
            if not (start[:4] == b"fLaC" or (start[:4], start[8:]) == (b"RIFF", b"WAVE")):
                wrong = "the file is empty" if not start else f"not {' or '.join(FORMATS)}"
                raise DamagedSound(f"{where}: {wrong}")
            complete = start[:4] == b"fLaC" or _is_whole(start, buckets.size(path))
            content.seek(0)
            with soundfile.SoundFile(content) as opened:
                _check(opened, where, most_samples)
                sound = opened.read(opened.frames, dtype="float32", always_2d=True)
                complete &= len(sound) == opened.frames
                rate = opened.samplerate
    except (soundfile.SoundFileError, OSError, RuntimeError) as error:
        line = " ".join(str(error).split())
        raise DamagedSound(f"{where}: can't be decoded ({line})") from None
    if not complete or not np.isfinite(sound).all():
        raise DamagedSound(f"{where}: damaged: it ends early, or its samples are not finite")
    return quantized(_resampled(sound.mean(axis=1), rate))


def _is_whole(start: bytes, size: int) -> bool:
    """Returns whether a WAV file has the size that its header says. A stream does not know it."""
    declared = int.from_bytes(start[4:8], "little")
    return declared == _UNKNOWN_SIZE or declared + 8 <= size


def _check(opened, where: str, most_samples: int) -> None:
    """Raises DamagedSound for a file that must not be decoded."""
    if opened.format not in (*FORMATS, "WAVEX"):
        raise DamagedSound(f"{where}: not {' or '.join(FORMATS)}")
    if not opened.frames:
        raise DamagedSound(f"{where}: no samples in it")
    if opened.samplerate not in _RATES:
        raise DamagedSound(f"{where}: {opened.samplerate} samples a second are not supported")
    if opened.frames * opened.channels > most_samples:
        raise DamagedSound(
            f"{where}: {opened.frames * opened.channels:,} samples, and at most {most_samples:,} "
            "are read"
        )


def _resampled(sound: np.ndarray, rate: int) -> np.ndarray:
    """Returns sound of 16 kHz, through a filter with a linear phase."""
    common = math.gcd(rate, RATE)
    if rate == RATE:
        return sound
    return signal.resample_poly(sound, RATE // common, rate // common).astype(np.float32)


def _library():
    try:
        import soundfile
    except (ImportError, OSError):  # OSError: without its shared library
        raise UserError("WAV and FLAC are read by soundfile: pip install -e '.[audio]'") from None
    return soundfile


# --------------------------------------------------------------------------------------------------
# Rows of sound: crops with masked frames, and utterances with their transcripts.


@dataclasses.dataclass(frozen=True)
class Masking:
    """How the frames of a row are masked.

    Attributes:
      share: total length of the spans over the frames of the row.
      span: frames of a span.
      least: the fewest spans of a row.
    """

    share: float
    span: int
    least: int = 0

    def drawn(self, rng: np.random.Generator, frames: int) -> np.ndarray:
        return spans(rng, frames, self.share, self.span, least=self.least)

    def most(self, frames: int) -> int:
        """Returns the largest number of masked frames of a row."""
        return most_masked(frames, self.share, self.span, self.least)


class MaskedRows:
    """Crops of utterances, with the masked frames and the distractors of each.

    A crop has `samples`, and a shorter utterance all of its own. `windows` are (width, stride) of
    the convolutions that make the frames. The arrays of a row are sound (S,) float32, length () in
    samples, masked (L,), places (P,) of the masked frames with their weights (P,), and distractors
    (P, K), numbers of other places.
    """

    def __init__(
        self,
        records: Records,
        *,
        seed: int,
        samples: int,
        windows: Sequence[tuple[int, int]],
        masking: Masking,
        num_distractors: int,
    ):
        self._utterances = Utterances(records)
        self._key = philox_key((seed, 0, 0))
        self._samples, self._windows = samples, windows
        self._masking, self._num_distractors = masking, num_distractors

    def __len__(self) -> int:
        return len(self._utterances)

    def rows(self, numbers: Sequence[tuple[int, int]]) -> list[Row]:
        utterances = self._utterances.read([number for number, _ in numbers])
        return [self._row(x.samples, *each) for x, each in zip(utterances, numbers)]

    def _row(self, samples: np.ndarray, number: int, epoch: int) -> Row:
        rng = generator(self._key, number, epoch)
        sound = normalised(samples)
        first = int(rng.integers(0, max(len(sound) - self._samples, 0) + 1))
        sound = sound[first : first + self._samples]
        frames = num_windows(self._samples, self._windows)
        masked = self._masking.drawn(rng, num_windows(len(sound), self._windows))
        places = np.flatnonzero(masked)
        # Without another place, nothing is told apart.
        weights = np.ones(len(places)) * (len(places) > 1)
        others = distractors(rng, len(places), self._num_distractors)
        most = self._masking.most(frames)
        return {
            **_sound(sound, self._samples),
            "masked": padded(masked, frames),
            "places": padded(places, most),
            "weights": padded(weights, most),
            "distractors": padded(others, most),
        }


class TranscribedRows:
    """Whole utterances with their transcripts, and in training with masked frames and channels.

    Utterances without a transcript, and those longer than `samples` or `characters`, are left out.
    The arrays of a row are sound (S,) float32, length () in samples, labels (N,), num_labels (),
    masked (L,) and feature_mask (M,). A transcript without a path through the frames has no label.
    """

    def __init__(
        self,
        records: Records,
        spelling: Spelling,
        *,
        seed: int,
        samples: int,
        characters: int,
        windows: Sequence[tuple[int, int]],
        masking: Masking,
        channels: int,
        silence: Masking,
    ):
        self._utterances = Utterances(records)
        self._spelling = spelling
        self._key = philox_key((seed, 0, 0))
        self._samples, self._characters, self._windows = samples, characters, windows
        self._masking, self._channels, self._silence = masking, channels, silence
        is_short = self._utterances.samples <= samples
        is_short &= self._utterances.characters <= characters
        has_text = self._utterances.characters > 0
        self._numbers = np.flatnonzero(is_short & has_text)
        if not len(self._numbers):
            raise UserError(
                "config.source: no utterance has a transcript, and is short enough for "
                "config.task.seconds and config.task.characters"
            )
        if left_out := int((has_text & ~is_short).sum()):
            say(
                f"{left_out:,} of {int(has_text.sum()):,} utterances left out: longer than "
                "config.task.seconds or config.task.characters"
            )

    def __len__(self) -> int:
        return len(self._numbers)

    def rows(self, numbers: Sequence[tuple[int, int]]) -> list[Row]:
        utterances = self._utterances.read([self._numbers[number] for number, _ in numbers])
        return [self._row(x, *each) for x, each in zip(utterances, numbers)]

    def _row(self, utterance, number: int, epoch: int) -> Row:
        rng = generator(self._key, number, epoch)
        frames = num_windows(len(utterance.samples), self._windows)
        labels = np.array(self._spelling.encode(utterance.text), np.int32)
        # A blank must stand between equal characters.
        needed = len(labels) + (labels[1:] == labels[:-1]).sum()
        if needed > frames or len(labels) > self._characters:
            labels = labels[:0]
        return {
            **_sound(normalised(utterance.samples), self._samples),
            "labels": padded(labels, self._characters),
            "num_labels": np.int32(len(labels)),
            "masked": padded(
                self._masking.drawn(rng, frames), num_windows(self._samples, self._windows)
            ),
            "feature_mask": padded(self._silence.drawn(rng, self._channels), self._channels),
        }


def _sound(sound: np.ndarray, samples: int) -> Row:
    """Returns sound padded with zeros, and its length."""
    whole = np.zeros(samples, np.float32)
    whole[: len(sound)] = sound
    return {"sound": whole, "length": np.int32(len(sound))}


def spans(
    generator: np.random.Generator, length: int, share: float, span: int, *, least: int = 0
) -> Bool[np.ndarray, " L"]:
    """Returns True at the masked positions of `length` (Baevski et al. 2020, section 4.2).

    Spans of `span` positions begin at different places, at `least` so many. They may overlap, so
    that the masked part is below `share`, their total length over `length`.
    """
    masked = np.zeros(length, bool)
    places = length - span + 1
    count = max(int(share * length / span + generator.random()), least)
    if places < 1 or not count:
        return masked
    starts = generator.choice(places, min(count, places), replace=False)
    masked[(starts[:, None] + np.arange(span)).reshape(-1)] = True
    return masked


def most_masked(length: int, share: float, span: int, least: int = 0) -> int:
    """Returns the largest number of positions that `spans` masks."""
    return min(length, max(int(share * length / span + 1), least) * span)


def distractors(
    generator: np.random.Generator, count: int, number: int
) -> Int64[np.ndarray, "P K"]:
    """Returns `number` others of `count` positions for each, drawn with replacement (P, K).

    All are 0 where there is no other position.
    """
    if count < 2:
        return np.zeros((count, number), np.int64)
    drawn = generator.integers(0, count - 1, (count, number))
    return drawn + (drawn >= np.arange(count)[:, None])
