"""Sound files: WAV and FLAC by the library soundfile, resampled to 16 kHz.

A file is measured before it is decoded, so that a small file can't fill the memory.
"""

import math

import numpy as np
from jaxtyping import Int16
from scipy import signal

from transformer_jax.config import UserError
from transformer_jax.data.sound import RATE, quantized
from transformer_jax.storage import buckets

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
