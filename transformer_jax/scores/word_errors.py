"""The word and the character error rate of transcripts, by the library jiwer."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from transformer_jax.config import UserError


@dataclasses.dataclass(frozen=True)
class WordErrors:
    """Substitutions, deletions and insertions per 100 words, and per 100 characters.

    The rates are those of the whole set: all errors over all words.
    """

    def __post_init__(self):
        _library()  # a missing library is an error before any text is scored

    def statistics(self, outputs: Sequence[str], references: Sequence[str]) -> np.ndarray:
        """Returns float64 (N, 4): errors and number of words, errors and number of characters."""
        pairs = zip(outputs, references, strict=True)
        return np.array([_counts(*pair) for pair in pairs], np.float64).reshape(-1, 4)

    def scores(self, sums: np.ndarray, count: int) -> dict[str, float]:
        words, characters = sums.reshape(2, 2)
        return {"wer": _rate(*words), "cer": _rate(*characters)}


def _counts(output: str, reference: str) -> tuple[int, int, int, int]:
    """Returns errors and number of the words of a reference, and those of its characters."""
    if not reference.strip():  # all is inserted
        return len(output.split()), 0, len(output), 0
    jiwer = _library()
    words = jiwer.process_words(reference, output)
    characters = jiwer.process_characters(reference, output)
    errors = [x.substitutions + x.deletions + x.insertions for x in (words, characters)]
    return errors[0], len(reference.split()), errors[1], len(reference)


def _rate(errors: float, count: float) -> float:
    return float(100 * errors / max(count, 1))


def _library():
    try:
        import jiwer  # an extra
    except ImportError:
        raise UserError(
            "word error rates are counted by jiwer: pip install -e '.[audio]'"
        ) from None
    return jiwer
