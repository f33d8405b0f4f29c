"""Arguments that the methods of several tasks share: texts, held-out splits and over-long lines."""

import bisect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from transformer_jax.config import UserError
from transformer_jax.data import sentences
from transformer_jax.pictures.progress import say

# --------------------------------------------------------------------------------------------------
# Checks of shared arguments, which are here so that all methods answer a mistake in the same words.

Data = TypeVar("Data")


def held_out(read: Callable[[str], Data | None], split: str, *endings: str) -> Data:
    """Returns `read(split)`, the data of a split that is not used for training.

    Raises UserError if `split` is neither "valid" nor "test", or if the run has no such data. In
    the latter case, the message asks for the keys `config.data.<split>_<ending>`.
    """
    if split not in ("valid", "test"):
        raise UserError(f"split {split!r}: only 'valid' and 'test' can be evaluated")
    data = read(split)
    if data is None:
        keys = " and ".join(f"--config.data.{split}_{ending}" for ending in endings)
        raise UserError(f"--set={split}: this run has no such data; give {keys}")
    return data


def as_texts(texts: Iterable[str]) -> Iterable[str]:
    """Returns `texts` unchanged. Raises TypeError for a single string.

    A string is an iterable of strings as well, so each of its characters would be taken for a text.
    """
    if isinstance(texts, str):
        raise TypeError(f"expected a list of texts, got one text: use [{texts[:30]!r}]")
    return texts


# --------------------------------------------------------------------------------------------------
# Lines that are too long for a model: splitting them, and a warning that lists them. One warning
# for all lines, because a file may have millions of them.

_RESULTS = {"split": "split into parts", "truncate": "cut to this length", "skip": "left empty"}
_MAX_NUMBERS = 20  # in a warning, which should fit on a screen
# `sentences.split` needs a space after the punctuation that ends a sentence, which scripts with
# these characters do not have.
_SENTENCE_END = re.compile(r"(?<=[。！？｡])")

Encode = Callable[[list[str]], list[list[int]]]


class LongLines:
    """Records over-long lines, and how they are treated.

    `way` must be one of `ways`, and `limit` describes the longest line that fits. On exit, the
    context manager prints a single warning if there were such lines.
    """

    def __init__(self, way: str, ways: Sequence[str], limit: str, noun: str = "line"):
        if way not in ways:
            raise UserError(f"long={way!r}: must be one of {', '.join(ways)}")
        self.way = way
        self.limit = limit
        self.noun = noun
        self.first_numbers = []
        self.count = 0

    def add(self, number: int) -> None:
        """Records a line that is too long. Raises UserError if `way` is "refuse"."""
        if self.way == "refuse":
            raise UserError(f"{self.noun} {number}: longer than {self.limit}")
        self.count += 1
        if self.count <= _MAX_NUMBERS:
            self.first_numbers.append(number)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if not self.count:
            return
        numbers = ", ".join(map(str, self.first_numbers))
        if self.count > _MAX_NUMBERS:
            numbers += f" and {self.count - _MAX_NUMBERS:,} more"
        lines = f"{self.noun}s {numbers} are" if self.count > 1 else f"{self.noun} {numbers} is"
        say(f"warning: {lines} longer than {self.limit}: {_RESULTS[self.way]}")


def split(line: str, encode: Encode, max_tokens: int) -> list[list[int]]:
    """Returns the ids of a line in parts of at most `max_tokens` tokens.

    A sentence that fits is one part. A longer sentence is split at the last space that fits, and a
    word that is too long by itself is split between tokens.
    """
    parts = []
    for sentence in sentences.split(line, "punctuation"):
        texts = [text for text in _SENTENCE_END.split(sentence) if text]
        for text, ids in zip(texts, encode(texts)):
            parts += [ids] if len(ids) <= max_tokens else _parts(text, encode, max_tokens)
    return [ids for ids in parts if ids]


def _parts(sentence: str, encode: Encode, max_tokens: int) -> Iterator[list[int]]:
    """Yields the ids of a sentence that is too long for one part."""
    words = sentence.split()
    start = 0

    def encoded(num_words: int) -> list[int]:
        """Returns the ids of the next `num_words` words."""
        return encode([" ".join(words[start : start + num_words])])[0]

    def num_tokens(num_words: int) -> int:
        return len(encoded(num_words))

    while start < len(words):
        candidates = range(1, 1 + min(max_tokens, len(words) - start))
        # As many words as fit, but at least one. The number is found by binary search, because the
        # tokens of words in a text are not simply the tokens of the single words.
        num_words = max(1, bisect.bisect_right(candidates, max_tokens, key=num_tokens))
        ids = encoded(num_words)
        # A single word may be longer than a part. It is split between tokens, because nothing in it
        # says where to split.
        yield from (ids[i : i + max_tokens] for i in range(0, len(ids), max_tokens))
        start += num_words
