"""Transcripts as the numbers of their characters, with a mark between words."""

import dataclasses
import functools
from collections.abc import Iterable, Sequence

from transformer_jax.config import UserError

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
