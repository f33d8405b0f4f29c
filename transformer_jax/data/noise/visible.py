"""The two sides of a noised text, piece by piece, for pictures."""

import itertools
from typing import NamedTuple

import numpy as np

from transformer_jax.data import sentences
from transformer_jax.data.noise.composition import Composition
from transformer_jax.data.noise.text import Pieces, Text


class Piece(NamedTuple):
    """A piece, and its place in the text; None for a mask or a sentinel."""

    text: str
    place: int | None


def noised_pieces(
    noises: tuple, tokenizer, text: str, *, seed: int = 0, manner: str = "punctuation"
) -> tuple[list[Piece], list[Piece]]:
    """Returns the source and the target of a text with the noises of `config.task.noises`.

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
