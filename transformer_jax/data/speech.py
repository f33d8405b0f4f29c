"""Speech: audio files, transcripts, and rows of them."""

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int16, Int64, Shaped
from scipy import signal

from transformer_jax.config import UserError, renamed_in
from transformer_jax.data.rows import Row, generator, padded, philox_key
from transformer_jax.data.store import Record, Records
from transformer_jax.layers.convolutions import num_windows
from transformer_jax.pictures.progress import say
from transformer_jax.storage import buckets

# --------------------------------------------------------------------------------------------------
# Transcripts as character ids, with a boundary token between words. CTC needs a blank among the ids
# and no end of a text, so the tokenizers of texts do not fit.

BOUNDARY = "|"  # between words, as in the published vocabularies
_UNKNOWN = ("<unk>", "[UNK]")
# The vocabulary of published English models, in the order of their files for transformers. The
# padding token is also the blank of CTC.
ENGLISH = ("<pad>", "<s>", "</s>", "<unk>", BOUNDARY, *"ETAONIHSRDLUMWCFGYPBVK'XJQZ")


@dataclasses.dataclass(frozen=True)
class Spelling:
    """A character vocabulary, in which the token `delimiter` separates words.

    All other tokens of several characters are special tokens.
    """

    vocabulary: Sequence[str]
    blank: int = 0
    delimiter: str = BOUNDARY

    def check(self) -> None:
        """Raises UserError if the vocabulary has duplicates or lacks the boundary or the blank."""
        delimiter = self.delimiter
        if len(set(self.vocabulary)) < len(self.vocabulary) or delimiter not in self.vocabulary:
            raise UserError(
                f"config.task.vocabulary: must have different tokens, and {delimiter!r} between "
                "words, which config.task.word_delimiter names"
            )
        if not 0 <= self.blank < len(self.vocabulary) or self.blank == self.boundary:
            raise UserError(
                f"config.task.blank={self.blank}: must be the number of a token of "
                f"config.task.vocabulary other than {delimiter!r}"
            )

    @functools.cached_property
    def _numbers(self) -> dict[str, int]:
        return {token: number for number, token in enumerate(self.vocabulary)}

    @property
    def boundary(self) -> int:
        """The id of the boundary between words."""
        return self._numbers[self.delimiter]

    @property
    def unknown(self) -> str | None:
        """The token for characters outside the vocabulary, or None if there is none."""
        return next((token for token in _UNKNOWN if token in self._numbers), None)

    @functools.cached_property
    def _cased(self):
        """The function that converts a text to the case of the vocabulary."""
        letters = "".join(token for token in self.vocabulary if len(token) == 1)
        # Characters without case, such as digits and the apostrophe, decide nothing.
        has_lower, has_upper = letters != letters.upper(), letters != letters.lower()
        # A vocabulary with both cases tells them apart, and one with neither has none.
        if has_lower == has_upper:
            return str
        return str.lower if has_lower else str.upper

    def words(self, text: str) -> str:
        """Normalizes a text to the case of the vocabulary and single spaces between words."""
        return " ".join(self._cased(text).split())

    def encode(self, text: str) -> list[int]:
        """Returns the ids of a text's characters.

        Raises UserError for a character outside the vocabulary if there is no token for such.
        """
        unknown = self._numbers.get(self.unknown)
        numbers = [
            self.boundary if character == " " else self._numbers.get(character, unknown)
            for character in self.words(text)
        ]
        if None in numbers:
            raise UserError(
                f"config.task.vocabulary: lacks a character of the transcript {text!r}, and has no "
                f"{_UNKNOWN[0]}"
            )
        return numbers

    def decode(self, numbers: Iterable[int]) -> str:
        """Returns the text for ids. Special tokens are omitted."""
        tokens = [" " if number == self.boundary else self.vocabulary[number] for number in numbers]
        text = "".join(token for token in tokens if len(token) == 1)
        return " ".join(text.split())


# --------------------------------------------------------------------------------------------------
# Utterances as byte records: samples, followed by the transcript in UTF-8. One record holds both,
# so that a row needs one read.

RATE = 16_000  # samples per second, of most speech models
_FULL = 2**15  # full scale of 16-bit samples, by which soundfile divides, too
_WIDTH = "sample_width"  # a number of a record: bytes of a sample; records of earlier versions: 2
# Added to the variance of samples in [-1, 1], as in transformers, so that silence is not divided by
# zero.
_LEAST_VARIANCE = 1e-7


class Utterance(NamedTuple):
    """Samples (S,), and their transcript, which is "" if there is none.

    The samples are int16, or float32 whose full scale is from -1 to 1, see `waveform`.
    """

    samples: Shaped[np.ndarray, " S"]
    text: str = ""


# Little-endian on every machine, because a cache may be shared.
_DTYPES = {2: "<i2", 4: "<f4"}  # of a sample, by its bytes


def record(utterance: Utterance) -> Record:
    """Returns a record of an utterance, with the numbers of its samples and characters."""
    # 16 bits stay 16 bits, which is half the size of float32 and loses nothing.
    is_short = utterance.samples.dtype == np.int16
    samples, width = (utterance.samples, 2) if is_short else (waveform(utterance.samples), 4)
    content = samples.astype(_DTYPES[width]).tobytes() + utterance.text.encode()
    numbers = {"samples": len(samples), "characters": len(utterance.text)}
    return Record(content, numbers | {_WIDTH: width})


class Utterances:
    """The utterances in a record store, with random access."""

    def __init__(self, records: Records):
        self._records = records
        self.samples: Int64[np.ndarray, " N"] = records.array("samples")
        self.characters: Int64[np.ndarray, " N"] = records.array("characters")
        # Records of earlier versions lack this number, and have 16 bits.
        has_widths = _WIDTH in records.names
        self._widths = records.array(_WIDTH) if has_widths else np.full_like(self.samples, 2)

    def __len__(self) -> int:
        return len(self._records)

    def read(self, numbers: Sequence[int]) -> list[Utterance]:
        """Returns these utterances, which are read in parallel."""
        contents = self._records.read(numbers)
        utterances = []
        for number, content in zip(numbers, contents):
            width = int(self._widths[number])
            size = width * int(self.samples[number])
            # A copy is aligned, wherever in the store the record begins.
            samples = np.frombuffer(content[:size].tobytes(), _DTYPES[width])
            utterances.append(Utterance(samples, content[size:].tobytes().decode()))
        return utterances


def quantized(sound: Float32[np.ndarray, " S"]) -> Int16[np.ndarray, " S"]:
    """Returns 16-bit samples of audio in [-1, 1]. Values outside this range are clipped."""
    # Clipped, because a value beyond the range would wrap around to the other sign.
    return np.clip(np.rint(sound * _FULL), -_FULL, _FULL - 1).astype(np.int16)


def waveform(samples: Shaped[np.ndarray, " S"]) -> Float32[np.ndarray, " S"]:
    """Returns samples in float32. Integers are divided by their full scale, as by soundfile.

    Floating-point samples are returned as they are, those beyond -1 and 1 included.
    """
    if np.issubdtype(samples.dtype, np.integer):
        limits = np.iinfo(samples.dtype)
        zero = (limits.max + limits.min + 1) / 2  # 128 in unsigned 8 bits
        return ((samples - zero) / (limits.max + 1 - zero)).astype(np.float32)
    return samples.astype(np.float32)


def prepared(samples: Shaped[np.ndarray, " S"], normalize: bool) -> Float32[np.ndarray, " S"]:
    """Returns an utterance as a model reads it: `normalized`, or else its `waveform`."""
    return normalized(samples) if normalize else waveform(samples)


def normalized(samples: Shaped[np.ndarray, " S"]) -> Float32[np.ndarray, " S"]:
    """Normalizes an utterance to mean 0 and variance 1, as most speech models expect it."""
    sound = waveform(samples)
    return (sound - sound.mean()) / np.sqrt(sound.var() + _LEAST_VARIANCE)


# --------------------------------------------------------------------------------------------------
# Audio files: WAV and FLAC, read with the library soundfile and resampled to a model's rate.
#
# The size that a header declares is checked before decoding, so that a small compressed file can't
# fill the memory.

# Six minutes of one channel at 16 kHz, or one minute of stereo at 48 kHz.
MOST_SAMPLES = 5_760_000
FORMATS = ("WAV", "FLAC")
_UNKNOWN_SIZE = 2**32 - 1
# Encodings whose samples 16 bits can't hold.
_WIDE = ("PCM_24", "PCM_32", "FLOAT", "DOUBLE")
_RATES = range(1_000, 400_000)  # samples per second


class DamagedSound(UserError):
    """An audio file is empty, is too long, or can't be decoded."""


def read(
    path: str, where: str, most_samples: int = MOST_SAMPLES, rate: int = RATE
) -> Shaped[np.ndarray, " S"]:
    """Returns the samples of a file at `rate` samples a second, averaged over its channels.

    They are int16 if the file has at most 16 bits, and float32 otherwise: a file of 24 or 32 bits,
    or of floating-point numbers, whose values may be beyond -1 and 1 and are neither clipped nor
    rounded. `waveform` has both in the same unit.

    Error messages start with `where`. `most_samples` limits the number of samples, counted over all
    channels and before resampling. Raises DamagedSound if the file is missing, empty, damaged,
    longer, or in another format.
    """
    soundfile = _library()
    file = buckets.path(path)
    if not file.is_file():
        raise DamagedSound(f"{where}: no such file")
    try:
        with file.open("rb") as content:
            # The format is told by the first bytes and not by the name. soundfile would open many
            # more formats.
            start = content.read(12)
            if not (start[:4] == b"fLaC" or (start[:4], start[8:]) == (b"RIFF", b"WAVE")):
                wrong = "the file is empty" if not start else f"not {' or '.join(FORMATS)}"
                raise DamagedSound(f"{where}: {wrong}")
            # libsndfile takes a truncated WAV file for a shorter one, so its length is compared
            # with the header.
            complete = start[:4] == b"fLaC" or _is_whole(start, buckets.size(path))
            content.seek(0)
            with soundfile.SoundFile(content) as opened:
                _check(opened, where, most_samples)
                sound = opened.read(opened.frames, dtype="float32", always_2d=True)
                complete &= len(sound) == opened.frames
                stored_rate, is_wide = opened.samplerate, opened.subtype in _WIDE
    except (soundfile.SoundFileError, OSError, RuntimeError) as error:
        line = " ".join(str(error).split())
        raise DamagedSound(f"{where}: can't be decoded ({line})") from None
    if not complete or not np.isfinite(sound).all():
        raise DamagedSound(f"{where}: damaged: it ends early, or its samples are not finite")
    # Averaged before resampling, which is then done for one channel only.
    sound = _resampled(sound.mean(axis=1), stored_rate, rate)
    # The filter may go beyond the full scale, where 16 bits would clip it.
    return sound if is_wide or np.abs(sound).max() > 1 else quantized(sound)


def _is_whole(start: bytes, size: int) -> bool:
    """Returns whether a WAV file is as long as its header says."""
    # A program that writes to a pipe does not know the size and declares the largest one.
    declared = int.from_bytes(start[4:8], "little")
    return declared == _UNKNOWN_SIZE or declared + 8 <= size


def _check(opened, where: str, most_samples: int) -> None:
    """Raises DamagedSound if the file must not be decoded."""
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


def _resampled(sound: np.ndarray, stored: int, wanted: int) -> np.ndarray:
    """Resamples audio between two rates with a linear-phase filter."""
    if stored == wanted:
        return sound
    # In lowest terms, because the length of the filter grows with the two factors.
    common = math.gcd(stored, wanted)
    return signal.resample_poly(sound, wanted // common, stored // common).astype(np.float32)


def _library():
    try:
        import soundfile
    except (ImportError, OSError):  # OSError if the shared library is missing
        raise UserError("WAV and FLAC are read by soundfile: pip install -e '.[audio]'") from None
    return soundfile


# --------------------------------------------------------------------------------------------------
# Rows of audio: crops with masked frames, and utterances with their transcripts. Masks are drawn
# with the row, so that they depend neither on the batch nor on the mesh.


@dataclasses.dataclass(frozen=True)
class Masking:
    """How the frames of a row are masked.

    Attributes:
      share: the total length of the spans, overlaps counted twice, divided by the number of frames.
      span: the number of frames in a span.
      least: the minimum number of spans in a row.
    """

    share: float
    span: int
    least: int = 0

    def drawn(self, rng: np.random.Generator, frames: int) -> np.ndarray:
        return spans(rng, frames, self.share, self.span, least=self.least)

    def most(self, frames: int) -> int:
        """Returns the maximum number of masked frames in a row."""
        return most_masked(frames, self.share, self.span, self.least)


class MaskedRows:
    """Crops of utterances, with masked frames and distractors for the contrastive loss.

    A crop has `samples` samples, unless the utterance is shorter. `windows` are the (width, stride)
    of the convolutions that produce the frames. The arrays of a row are sound (S,) float32, length
    () in samples, masked (L,), masked_positions (P,), weights (P,), and distractors (P, K), which
    are indices into masked_positions. With `normalize`, each utterance is `normalized`.
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
        normalize: bool = True,
    ):
        self._utterances = Utterances(records)
        self._key = philox_key((seed, 0, 0))
        self._samples, self._windows = samples, windows
        self._masking, self._num_distractors = masking, num_distractors
        self._normalize = normalize

    def __len__(self) -> int:
        return len(self._utterances)

    def rows(self, numbers: Sequence[tuple[int, int]]) -> list[Row]:
        utterances = self._utterances.read([number for number, _ in numbers])
        return [self._row(x.samples, *each) for x, each in zip(utterances, numbers)]

    def _row(self, samples: np.ndarray, number: int, epoch: int) -> Row:
        rng = generator(self._key, number, epoch)
        sound = prepared(samples, self._normalize)
        first = int(rng.integers(0, max(len(sound) - self._samples, 0) + 1))
        sound = sound[first : first + self._samples]
        frames = num_windows(self._samples, self._windows)
        # From the length of the utterance, so that no frame of padding is masked.
        masked = self._masking.drawn(rng, num_windows(len(sound), self._windows))
        masked_positions = np.flatnonzero(masked)
        # A single masked frame has no distractors, so it gets no weight in the loss.
        weights = np.ones(len(masked_positions)) * (len(masked_positions) > 1)
        others = distractors(rng, len(masked_positions), self._num_distractors)
        most = self._masking.most(frames)
        return {
            **_sound(sound, self._samples),
            "masked": padded(masked, frames),
            "masked_positions": padded(masked_positions, most),
            "weights": padded(weights, most),
            "distractors": padded(others, most),
        }


class TranscribedRows:
    """Whole utterances with their transcripts, and with masked frames and channels for training.

    Utterances without a transcript, and those longer than `samples` or `characters`, are skipped.
    The arrays of a row are sound (S,) float32, length () in samples, labels (N,), num_labels (),
    masked (L,) and feature_mask (M,). If an utterance has too few frames for CTC to align its
    transcript, the row has no labels. With `normalize`, each utterance is `normalized`.

    Raises UserError if no utterance is left.
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
        normalize: bool = True,
    ):
        self._utterances = Utterances(records)
        self._spelling = spelling
        self._key = philox_key((seed, 0, 0))
        self._samples, self._characters, self._windows = samples, characters, windows
        self._masking, self._channels, self._silence = masking, channels, silence
        self._normalize = normalize
        # Longer utterances are left out and not cut, because their transcripts could not be cut
        # with them.
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
        # CTC needs a frame for each character, and a blank between two equal characters. With fewer
        # frames the loss would be infinite.
        needed = len(labels) + (labels[1:] == labels[:-1]).sum()
        if needed > frames or len(labels) > self._characters:
            labels = labels[:0]
        return {
            **_sound(prepared(utterance.samples, self._normalize), self._samples),
            "labels": padded(labels, self._characters),
            "num_labels": np.int32(len(labels)),
            "masked": padded(
                self._masking.drawn(rng, frames), num_windows(self._samples, self._windows)
            ),
            "feature_mask": padded(self._silence.drawn(rng, self._channels), self._channels),
        }


def _sound(sound: np.ndarray, samples: int) -> Row:
    """Returns the audio padded with zeros, and its length."""
    whole = np.zeros(samples, np.float32)
    whole[: len(sound)] = sound
    return {"sound": whole, "length": np.int32(len(sound))}


def spans(
    generator: np.random.Generator, length: int, share: float, span: int, *, least: int = 0
) -> Bool[np.ndarray, " L"]:
    """Returns which of `length` positions are masked (Baevski et al. 2020, section 4.2).

    At least `least` spans of `span` positions are drawn, with distinct starts. `share` is their
    total length divided by `length`. Because spans may overlap, the share of masked positions is
    smaller.
    """
    masked = np.zeros(length, bool)
    num_starts = length - span + 1
    # Adding a random number in [0, 1) before rounding down makes the expected count exact.
    count = max(int(share * length / span + generator.random()), least)
    if num_starts < 1 or not count:
        return masked
    # Distinct starts, because a repeated span would mask nothing more.
    starts = generator.choice(num_starts, min(count, num_starts), replace=False)
    masked[(starts[:, None] + np.arange(span)).reshape(-1)] = True
    return masked


def most_masked(length: int, share: float, span: int, least: int = 0) -> int:
    """Returns the maximum number of positions that `spans` masks."""
    # One span more than the expectation, which is rounded up at random.
    return min(length, max(int(share * length / span + 1), least) * span)


def distractors(
    generator: np.random.Generator, count: int, number: int
) -> Int64[np.ndarray, "P K"]:
    """Draws `number` other indices below `count` for each index, with replacement (P, K).

    They are all 0 if there is no other index.
    """
    if count < 2:
        return np.zeros((count, number), np.int64)
    # Drawing from one index fewer and skipping the own index makes the others equally likely.
    drawn = generator.integers(0, count - 1, (count, number))
    return drawn + (drawn >= np.arange(count)[:, None])


__getattr__ = renamed_in(__name__, {"normalised": "normalized"})
