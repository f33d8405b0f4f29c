"""The special tokens of a row that holds one text or two texts."""

from typing import NamedTuple


class Marks(NamedTuple):
    """Ids in front of the first text, between two texts, and behind the last text."""

    begin: tuple[int, ...]
    separator: tuple[int, ...]
    end: tuple[int, ...]

    def count(self, num_texts: int) -> int:
        """Returns the number of marks in a row of one text or of two."""
        return len(self.begin) + (num_texts - 1) * len(self.separator) + len(self.end)

    def second(self, first: list[int]) -> int:
        """Returns the position at which the second text of a row begins."""
        return len(self.begin) + len(first) + len(self.separator)

    def around(self, first: list[int], second: list[int] | None = None) -> list[int]:
        """Returns the ids of a row."""
        ids = [*self.begin, *first]
        return [*ids, *self.end] if second is None else [*ids, *self.separator, *second, *self.end]
