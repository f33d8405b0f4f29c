"""The sentences of a document."""

import itertools
import re
from typing import Literal

_MARKS, _CLOSING, _OPENING = ".!?…", "\"'”’»)]", "\"'“‘«`"
_ABBREVIATION = re.compile(
    r"([^\W\d_]\.)+[^\W\d_]|ph\.d|mr|mrs|ms|dr|prof|st|jr|sr|gen|col|capt|lt|sgt|rev|hon|gov|sen|rep|vs|etc|cf|viz|al|approx|resp|esp"
    r"|incl|ca|inc|ltd|co|corp|bros|dept|est",
    re.IGNORECASE,
)
_BEFORE_NUMBER = re.compile(
    r"nos?|pp?|figs?|secs?|ch|vols?|eqs?|art|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec",
    re.IGNORECASE,
)


def split(document: str, manner: Literal["line", "punctuation"]) -> list[str]:
    """`line`: each line is a sentence, as in BERT's own input. `punctuation`: lines do not matter,
    but for a blank one, which ends a sentence as punctuation does.

    That is . ! ? … with what closes a quotation or bracket, before a quotation or a word that does
    not begin with a lower-case letter. A full stop ends no sentence behind an abbreviation (Mr.
    etc. e.g. U.S.), an initial (J. Smith), or the number of an item (1. First).
    """
    if manner == "line":
        return [line.strip() for line in document.split("\n") if line.strip()]
    return [
        sentence
        for paragraph in re.split(r"\n\s*\n", document)
        for sentence in _sentences(paragraph.split())
    ]


def _sentences(words: list[str]) -> list[str]:
    starts = [0]
    for i, (word, following) in enumerate(itertools.pairwise(words)):
        unclosed = word.rstrip(_CLOSING)
        stem, first = unclosed.rstrip(_MARKS), following.lstrip("([*¿¡")[:1]
        begins = first and (first in _OPENING or first.isalnum() and not first.islower())
        if (
            stem != unclosed
            and begins
            and not (word == f"{stem}." and _goes_on(stem, first, starts[-1] == i))
        ):
            starts.append(i + 1)
    return (
        [" ".join(words[start:stop]) for start, stop in itertools.pairwise([*starts, len(words)])]
        if words
        else []
    )


def _goes_on(stem: str, following: str, alone: bool) -> bool:
    """Whether the full stop behind `stem` is part of that word. `alone`: it begins its sentence."""
    stem = re.split(r"[(\[\"'“‘«/-]", stem)[-1]
    initial = len(stem) == 1 and stem.isupper() and stem != "I"
    item = alone and re.fullmatch(r"[\d.]+|\w", stem)
    return bool(
        initial
        or item
        or _ABBREVIATION.fullmatch(stem)
        or following.isdigit()
        and _BEFORE_NUMBER.fullmatch(stem)
    )
