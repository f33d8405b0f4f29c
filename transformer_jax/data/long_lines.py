"""Lines that are longer than a model can read: splitting them, and one warning that names them."""

import bisect
import re
from collections.abc import Callable, Iterator, Sequence

from transformer_jax.config import UserError
from transformer_jax.data import sentences
from transformer_jax.pictures.progress import say

_TREATED = {"split": "split into parts", "truncate": "cut to this length", "skip": "left empty"}
_NAMED = 20  # lines that a warning names at most
_END = re.compile(r"(?<=[。！？｡])")  # of a sentence, in writing without spaces

Encode = Callable[[list[str]], list[list[int]]]


class LongLines:
    """The way to treat lines that are too long, and their numbers.

    `way` is one of `ways`; `limit` says in words how long a line may be. As a context it ends with
    one warning, if there are such lines.
    """

    def __init__(self, way: str, ways: Sequence[str], limit: str, noun: str = "line"):
        if way not in ways:
            raise UserError(f"long={way!r}: must be one of {', '.join(ways)}")
        self.way, self.limit, self.noun = way, limit, noun
        self.first, self.count = [], 0

    def add(self, number: int) -> None:
        """Remembers a line. Raises UserError where the way is to refuse it."""
        if self.way == "refuse":
            raise UserError(f"{self.noun} {number}: longer than {self.limit}")
        self.count += 1
        if self.count <= _NAMED:
            self.first.append(number)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if not self.count:
            return
        numbers, more = ", ".join(map(str, self.first)), self.count - _NAMED
        numbers += f" and {more:,} more" if more > 0 else ""
        lines = f"{self.noun}s {numbers} are" if self.count > 1 else f"{self.noun} {numbers} is"
        say(f"warning: {lines} longer than {self.limit}: {_TREATED[self.way]}")


def split(line: str, encode: Encode, most: int) -> list[list[int]]:
    """The ids of a line in parts of at most `most` tokens: its sentences, or parts of them.

    A sentence that is longer is cut at the last space that fits, a longer word between tokens.
    """
    found = []
    for sentence in sentences.split(line, "punctuation"):
        parts = [part for part in _END.split(sentence) if part]
        for part, ids in zip(parts, encode(parts)):
            found += [ids] if len(ids) <= most else _cut(part, encode, most)
    return [ids for ids in found if ids]


def _cut(sentence: str, encode: Encode, most: int) -> Iterator[list[int]]:
    words, start = sentence.split(), 0

    def length(count):
        return len(encode([" ".join(words[start : start + count])])[0])

    while start < len(words):
        counts = range(1, 1 + min(most, len(words) - start))
        count = max(1, bisect.bisect_right(counts, most, key=length))  # as many words as fit
        ids = encode([" ".join(words[start : start + count])])[0]
        yield from (ids[place : place + most] for place in range(0, len(ids), most))
        start += count
