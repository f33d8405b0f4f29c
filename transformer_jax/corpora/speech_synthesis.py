"""A formant synthesizer for spoken digits: pulses and noise pass through resonances (Klatt 1980).

A voice has a pitch, a vocal tract length, a speaking rate, a spectral tilt, a breathiness, and an
accent, which shifts the formants of each sound. Speed, pauses, loudness, noise and reverberation
are drawn for each utterance.
"""

import dataclasses

import numpy as np
from jaxtyping import Float, Float32, Int16
from scipy import signal

from transformer_jax.data.speech import RATE, Utterance, quantized

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
MOST_DIGITS = 7
LEAST_DIGITS = 3

# In samples: 6.25 ms between two states of the vocal tract. Windows of four times this length
# overlap so that their sum is the same everywhere.
_HOP = 100
_WINDOW = 400
_FFT = 512
_FREQUENCIES = np.fft.rfftfreq(_FFT, 1 / RATE)
_FOURTH = 3500.0  # Hz, the fourth formant, which hardly differs between sounds
_WIDTHS = np.array([70.0, 100.0, 140.0, 250.0])  # Hz, bandwidths of the four resonances
# A sound changes into the next over this number of states, because a tongue can't jump.
_SMOOTHED = 7


@dataclasses.dataclass(frozen=True)
class _Sound:
    """A speech sound.

    Attributes:
      seconds: its duration at the speaking rate 1.
      first: three formants at its start, in Hz (vowels from Peterson & Barney 1952).
      last: the formants at its end, or None for the same ones.
      voiced: the amplitude of the pulses.
      noise: the amplitude of the noise.
      center: the center of the noise band, in Hz.
      width: the width of the noise band, in Hz.
      closure: seconds of silence before it, as in plosives.
    """

    seconds: float
    first: tuple[float, float, float]
    last: tuple[float, float, float] | None = None
    voiced: float = 1.0
    noise: float = 0.0
    center: float = 4000.0
    width: float = 2000.0
    closure: float = 0.0


_NEUTRAL = (450.0, 1450.0, 2450.0)
_SOUNDS = {
    "iy": _Sound(0.13, (270, 2290, 3010)),
    "ih": _Sound(0.10, (390, 1990, 2550)),
    "eh": _Sound(0.11, (530, 1840, 2480)),
    "ah": _Sound(0.11, (640, 1190, 2390)),
    "uh": _Sound(0.07, (500, 1400, 2400)),
    "ao": _Sound(0.14, (570, 840, 2410)),
    "uw": _Sound(0.15, (300, 870, 2240)),
    "ow": _Sound(0.17, (540, 950, 2400), (330, 800, 2250)),
    "ay": _Sound(0.19, (730, 1090, 2440), (350, 2050, 2600)),
    "ey": _Sound(0.15, (500, 1850, 2500), (310, 2250, 2800)),
    "r": _Sound(0.07, (340, 1100, 1500), voiced=0.7),
    "w": _Sound(0.07, (290, 620, 2150), voiced=0.6),
    "n": _Sound(0.08, (270, 1300, 2300), voiced=0.4),
    "v": _Sound(0.06, (250, 1150, 2150), voiced=0.3, noise=0.05, center=4500, width=4000),
    "z": _Sound(0.09, (260, 1500, 2500), voiced=0.25, noise=0.25, center=5800, width=1800),
    "s": _Sound(0.12, _NEUTRAL, voiced=0.0, noise=0.4, center=5800, width=1800),
    "f": _Sound(0.10, _NEUTRAL, voiced=0.0, noise=0.12, center=4500, width=5000),
    "th": _Sound(0.09, _NEUTRAL, voiced=0.0, noise=0.10, center=6300, width=3500),
    "t": _Sound(0.03, _NEUTRAL, voiced=0.0, noise=0.5, center=4300, width=2500, closure=0.05),
    "k": _Sound(0.04, _NEUTRAL, voiced=0.0, noise=0.4, center=1900, width=900, closure=0.06),
}
_SPELLED = {
    "zero": "z ih r ow",
    "one": "w ah n",
    "two": "t uw",
    "three": "th r iy",
    "four": "f ao r",
    "five": "f ay v",
    "six": "s ih k s",
    "seven": "s eh v uh n",
    "eight": "ey t",
    "nine": "n ay n",
}


@dataclasses.dataclass(frozen=True)
class Voice:
    """A speaker."""

    pitch: float  # Hz
    tract: float  # factor of all formants
    rate: float  # factor of the speaking rate
    tilt: float  # exponent with which the spectrum of the pulses falls off
    breath: float  # amplitude of the noise that accompanies the pulses
    accent: dict[str, np.ndarray]  # factors of the three formants of each sound

    @classmethod
    def drawn(cls, rng: np.random.Generator) -> "Voice":
        """Draws a voice, in which a higher pitch goes with a shorter vocal tract."""
        height = rng.random()
        return cls(
            # Pitch and tract depend on the same number: a short speaker has a high voice and high
            # formants, and only the rest is drawn independently.
            pitch=90 * 2.6**height * rng.uniform(0.9, 1.1),
            tract=0.88 + 0.3 * height + rng.uniform(-0.05, 0.05),
            rate=rng.uniform(0.8, 1.3),
            tilt=rng.uniform(0.7, 1.3),
            breath=rng.uniform(0.0, 0.08),
            accent={name: np.exp(rng.normal(0, 0.07, 3)) for name in _SOUNDS},
        )


def utterance(voice: Voice, rng: np.random.Generator, snr: tuple[float, float]) -> Utterance:
    """Returns spoken digits with their transcript.

    `snr` is the range of the signal-to-noise ratio, in dB.
    """
    digits = rng.integers(0, 10, rng.integers(LEAST_DIGITS, MOST_DIGITS + 1))
    words = [DIGITS[digit] for digit in digits]
    clean = _spoken(words, voice, rng)
    return Utterance(_recorded(clean, rng, rng.uniform(*snr)), " ".join(words))


def _spoken(words: list[str], voice: Voice, rng: np.random.Generator) -> Float[np.ndarray, " S"]:
    """Returns clean speech."""
    speed = voice.rate * rng.uniform(0.85, 1.2)
    states = [_pause(rng.uniform(0.05, 0.2))]
    for word in words:
        for name in _SPELLED[word].split():
            states.append(_states(name, voice, speed * rng.uniform(0.85, 1.2)))
        # Most words continue into the next one without a pause, as in fluent speech.
        states.append(_pause(max(rng.uniform(-0.1, 0.15), 0)))
    states.append(_pause(rng.uniform(0.05, 0.2)))
    tracks = np.concatenate(states)  # (states, 7)
    tracks = _smoothed(tracks)
    pulses = _pulses(len(tracks), voice.pitch * rng.uniform(0.92, 1.08), rng)
    noise = rng.standard_normal(len(pulses))
    return _filtered(pulses, noise, tracks, voice)


def _pause(seconds: float) -> Float[np.ndarray, "states 7"]:
    count = round(seconds * RATE / _HOP)
    return np.tile([*_NEUTRAL, 0.0, 0.0, 4000.0, 2000.0], (count, 1))


def _states(name: str, voice: Voice, speed: float) -> Float[np.ndarray, "states 7"]:
    """Returns the states of the vocal tract for a sound, which start with its closure.

    The columns are three formants, the amplitudes of pulses and noise, and the center and width of
    the noise band.
    """
    sound = _SOUNDS[name]
    # At least two states, so that a diphthong has a start and an end.
    count = max(round(sound.seconds / speed * RATE / _HOP), 2)
    shifts = voice.tract * voice.accent[name]
    first, last = np.array(sound.first), np.array(sound.last or sound.first)
    formants = np.linspace(first * shifts, last * shifts, count)
    noise = sound.noise + voice.breath * sound.voiced
    # Noise depends less on the length of the tract than formants do: only the part in front of the
    # constriction resonates.
    others = [sound.voiced, noise, sound.center * voice.tract**0.5, sound.width]
    voiced = np.concatenate([formants, np.tile(others, (count, 1))], axis=1)
    return np.concatenate([_pause(sound.closure / speed), voiced])


def _smoothed(tracks: np.ndarray) -> np.ndarray:
    """Smooths the states over time. Amplitudes change faster than formants."""
    smoothed = np.empty_like(tracks)
    for column in range(tracks.shape[1]):
        size = _SMOOTHED if column < 3 else 3
        kernel = np.hanning(size + 2)[1:-1]
        # With the first and the last state repeated, the edges are not smoothed toward 0.
        values = np.pad(tracks[:, column], size // 2, mode="edge")
        smoothed[:, column] = np.convolve(values, kernel / kernel.sum(), mode="valid")
    return smoothed


def _pulses(states: int, pitch: float, rng: np.random.Generator) -> Float[np.ndarray, " S"]:
    """Returns glottal pulses, whose pitch varies randomly and falls over the utterance."""
    size = states * _HOP + _WINDOW
    # The random factor of the pitch changes ten times a second, with interpolation in between:
    # white noise would sound hoarse.
    jitter = rng.normal(0, 0.03, size // 1600 + 2)
    jitter = np.interp(np.arange(size), 1600 * np.arange(len(jitter)), jitter)
    contour = pitch * (1 + jitter) * np.linspace(1.1, 0.85, size)
    phase = np.cumsum(contour) / RATE
    pulses = np.zeros(size)
    starts = np.flatnonzero(np.diff(np.floor(phase)) > 0)
    pulses[starts] = 1.0 + rng.normal(0, 0.05, len(starts))
    # Pulses get a mean power of 1, which the noise has as well, whatever the pitch.
    return pulses * np.sqrt(RATE / pitch)


def _filtered(
    pulses: np.ndarray, noise: np.ndarray, tracks: np.ndarray, voice: Voice
) -> Float[np.ndarray, " S"]:
    """Filters pulses and noise with the vocal tract, by overlap-add with a window per state."""
    # Without the last point, shifted windows add up to a constant.
    window = np.hanning(_WINDOW + 1)[:-1]
    starts = np.arange(len(tracks)) * _HOP
    indices = starts[:, None] + np.arange(_WINDOW)
    voiced = np.fft.rfft(pulses[indices] * window, _FFT) * _tract(tracks[:, :3], voice)
    unvoiced = np.fft.rfft(noise[indices] * window, _FFT) * _band(tracks[:, 5], tracks[:, 6])
    spectra = tracks[:, 3, None] * voiced + tracks[:, 4, None] * unvoiced
    return _overlapped(np.fft.irfft(spectra, _FFT))


def _overlapped(parts: Float[np.ndarray, "states W"]) -> Float[np.ndarray, " S"]:
    """Returns the overlap-add of parts, each of which starts `_HOP` samples after the previous one.

    Parts are padded to whole hops, so that one addition per hop replaces one per part.
    """
    count, width = parts.shape
    hops = -(-width // _HOP)
    parts = np.pad(parts, ((0, 0), (0, hops * _HOP - width))).reshape(count, hops, _HOP)
    sound = np.zeros((count + hops - 1, _HOP))
    for hop in range(hops):
        sound[hop : hop + count] += parts[:, hop]
    return sound.reshape(-1)


def _tract(formants: Float[np.ndarray, "states 3"], voice: Voice) -> np.ndarray:
    """Returns the gain of the four resonances at each frequency (states, F)."""
    fourth = np.full((len(formants), 1), _FOURTH * voice.tract)
    centers = np.concatenate([formants, fourth], axis=1)[..., None]
    ratio = _FREQUENCIES / centers
    damping = ratio * _WIDTHS[:, None] / centers
    gains = np.square(1 - ratio * ratio) + np.square(damping)
    # The gains are multiplied, because the resonances follow each other (Klatt's cascade branch).
    return (1 + _FREQUENCIES / 300) ** -voice.tilt / np.sqrt(gains.prod(axis=1))


def _band(centers: Float[np.ndarray, " N"], widths: Float[np.ndarray, " N"]) -> np.ndarray:
    """Returns the gain of the noise band at each frequency (states, F)."""
    return 3 * np.exp(-(((_FREQUENCIES - centers[:, None]) / widths[:, None]) ** 2))


def _recorded(
    sound: Float[np.ndarray, " S"], rng: np.random.Generator, snr: float
) -> Int16[np.ndarray, " S"]:
    """Adds reverberation, and noise with this signal-to-noise ratio in dB; scales the loudness."""
    seconds = rng.uniform(0.1, 0.5)  # RT60: the time in which reverberation decays by 60 dB
    times = np.arange(int(seconds * RATE)) / RATE
    room = rng.standard_normal(len(times)) * np.exp(-6.9 * times / seconds)
    room *= rng.uniform(0.05, 0.6) / np.sqrt(np.square(room).sum())
    # The direct sound.
    room[0] += 1.0
    sound = signal.fftconvolve(sound, room)[: len(sound)]
    # Between white and brown noise, so that utterances differ in more than the level of their
    # noise.
    color = (1 + np.fft.rfftfreq(len(sound), 1 / RATE) / 200) ** -rng.uniform(0.0, 1.0)
    noise = np.fft.irfft(np.fft.rfft(rng.standard_normal(len(sound))) * color, len(sound))
    power = np.square(sound).mean() / np.square(noise).mean() / 10 ** (snr / 10)
    sound = sound + noise * np.sqrt(power)
    loudness: Float32[np.ndarray, " S"] = sound / np.abs(sound).max() * rng.uniform(0.2, 0.9)
    return quantized(loudness.astype(np.float32))
