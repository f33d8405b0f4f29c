"""The noises that a config lists, one after the other."""

import dataclasses
import itertools
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.config import UserError
from transformer_jax.configuration import suggestions
from transformer_jax.data import sentences
from transformer_jax.data.noise import of_source, of_target
from transformer_jax.data.noise.text import Noise, Pieces, Text

KINDS = {
    "masking": of_source.Masking,
    "deletion": of_source.Deletion,
    "infilling": of_source.Infilling,
    "permutation": of_source.Permutation,
    "rotation": of_source.Rotation,
    "span_corruption": of_target.SpanCorruption,
    "mass": of_target.MaskedSpan,
    "prefix": of_target.Prefix,
}
_FORM = "(name, numbers of its own), as in (('permutation',),('infilling',0.3))"


@dataclasses.dataclass(frozen=True)
class Composition:
    """Noises one after the other. Without noises, the target is a copy of the source."""

    noises: tuple[Noise, ...]

    @classmethod
    def of(cls, entries: tuple) -> "Composition":
        """Returns the noises of `config.task.noises`. Raises UserError for other values."""
        noises = tuple(_noise(entry) for entry in entries)
        for entry, noise in zip(entries, noises):
            if noise.alone and len(noises) > 1:
                raise UserError(
                    f"config.task.noises: {entry[0]!r} decides the target and stands alone; "
                    f"here are {len(noises)} noises"
                )
        return cls(noises)

    @property
    def masks(self) -> bool:
        return any(noise.masks for noise in self.noises)

    @property
    def frames(self) -> bool:
        return all(noise.frames for noise in self.noises)

    @property
    def whole_sentences(self) -> bool:
        return any(noise.whole_sentences for noise in self.noises)

    def __call__(self, text: Text, pieces: Pieces, random: np.random.Generator) -> Text:
        for noise in self.noises:
            text = noise(text, pieces, random)
        return text

    def lengths(self, num_tokens: int) -> tuple[int, int]:
        """Returns the most tokens of both sides, for a text of so many tokens."""
        return (*self.noises, Noise())[0].lengths(num_tokens)

    def num_sentinels(self, num_tokens: int) -> int:
        """Returns the number of sentinels that a text of so many tokens needs."""
        return sum(noise.num_sentinels(num_tokens) for noise in self.noises)


def _noise(entry: Any) -> Noise:
    """Returns the noise of an entry of `config.task.noises`."""
    if not isinstance(entry, tuple) or not entry or not isinstance(entry[0], str):
        raise UserError(f"config.task.noises: {entry!r} is not {_FORM}")
    name, *numbers = entry
    if name not in KINDS:
        near = suggestions.near(name, KINDS)
        raise UserError(
            f"config.task.noises: no noise {name!r}{near}; there are: {', '.join(KINDS)}"
        )
    fields = [field.name for field in dataclasses.fields(KINDS[name])]
    if len(numbers) > len(fields) or not {*map(type, numbers)} <= {int, float}:
        takes = ", ".join(fields) or "no numbers"
        raise UserError(f"config.task.noises: {entry!r}: {name} takes {takes}")
    noise = KINDS[name](*numbers)
    for field, number in zip(fields, numbers):
        if field == "share" and not 0 <= number <= 1:
            raise UserError(f"config.task.noises: {entry!r}: the share must be from 0 to 1")
        if field == "mean" and not 1 <= number <= 1000:
            raise UserError(f"config.task.noises: {entry!r}: the mean must be from 1 to 1000")
    return noise


class Piece(NamedTuple):
    """A piece, and its place in the text; None for a mask or a sentinel."""

    text: str
    place: int | None


def noised_pieces(
    noises: tuple, tokenizer, text: str, *, seed: int = 0, manner: str = "punctuation"
) -> tuple[list[Piece], list[Piece]]:
    """Returns the source and the target of a text with the noises of `config.task.noises`, piece by
    piece, for pictures.

    `manner` is `config.data.sentences`. Masks are written "[MASK]", sentinels "<0>", "<1>", ...
    """
    encoded = tokenizer.encode(sentences.split(text, manner, exact=True))
    ids = list(itertools.chain.from_iterable(encoded))
    numbers = np.repeat(np.arange(len(encoded)), [len(part) for part in encoded])
    of_tokenizer = Pieces.of(tokenizer)
    # The noise reads places, which tell where each piece comes from.
    places = np.arange(len(ids))
    mask = len(ids)
    size = mask + 1 + of_tokenizer.num_sentinels
    of_places = Pieces(of_tokenizer.begins_word[ids], mask, of_tokenizer.num_sentinels, size)
    noise = Composition.of(noises)
    noised = noise(Text(places, numbers, places), of_places, np.random.default_rng(seed))
    names = tokenizer.pieces(ids)

    def piece(place: int) -> Piece:
        if place < mask:
            return Piece(names[place], place)
        return Piece("[MASK]" if place == mask else f"<{size - 1 - place}>", None)

    return [*map(piece, noised.tokens.tolist())], [*map(piece, noised.target.tolist())]
