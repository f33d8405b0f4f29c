"""Tones as letters in WAV files, where the config reads files; spoken digits need none."""

import numpy as np

from tests.examples import save

RATE = 16_000
PITCHES = {"A": 300, "E": 700, "T": 1500, "O": 3100}  # Hz
SECONDS = 0.08  # of a letter


def sound(text: str, rate: int = RATE) -> np.ndarray:
    """Returns a tone for each letter, and silence for each space, float64 from -1 to 1."""
    times = np.arange(int(SECONDS * rate)) / rate
    tones = [np.sin(2 * np.pi * PITCHES.get(letter, 0) * times) for letter in text]
    return 0.5 * np.concatenate(tones)


def text(number: int) -> str:
    """Returns two words of one to three letters, each of which is another than the one before."""
    rng = np.random.default_rng(number)
    words = [rng.choice([*PITCHES], rng.integers(1, 4), replace=False) for _ in range(2)]
    return " ".join("".join(word) for word in words)


def write_sound(folder, count: int = 16, rate: int = RATE) -> str:
    """Writes WAV and FLAC files, and returns their manifest."""
    import soundfile

    lines = []
    for number in range(count):
        name = f"{number}.{('wav', 'flac')[number % 2]}"
        soundfile.write(folder / name, sound(text(number), rate), rate)
        lines.append(f"{name}\t{text(number)}\n")
    return "".join(lines)


def write(config, folder):
    if config.source.name != "sound":
        return {}
    return save(folder / "manifest.tsv", write_sound(folder))
