"""Writing a text to stdout while a model writes it."""

import sys
from collections.abc import Sequence


class Streamed:
    """Writes the text as it comes: the argument `watch` of `generate` and `reply`.

    A part is held back while it may be the beginning of one of the strings `stop`. `before` stands
    in front of the text.
    """

    def __init__(self, stop: Sequence[str], before: str = ""):
        self._stop = stop
        self._before = before
        self._written = ""

    def __call__(self, texts: list[str]) -> None:
        ready = texts[0].removesuffix("\ufffd")  # a character whose other bytes are still to come
        ready = ready[: len(ready) - self._held_back(ready)]
        sys.stdout.write(self._before + ready[len(self._written) :])
        sys.stdout.flush()
        self._before = ""
        self._written = max(self._written, ready, key=len)

    def end(self, text: str) -> None:
        """Writes the rest of the whole text, and ends the line."""
        print(self._before + text[len(self._written) :], flush=True)

    def _held_back(self, text: str) -> int:
        """Returns the number of last characters that may be the beginning of a stop string."""
        lengths = [
            length
            for stop in self._stop
            for length in range(len(stop))
            if text.endswith(stop[:length])
        ]
        return max(lengths, default=0)
