"""Splitting a document into sentences."""

import itertools
import re
from typing import Literal

_END_MARKS = ".!?…"
_CLOSING = "\"'”’»)]"
_OPENING = "\"'“‘«`"
_ABBREVIATION = re.compile(
    r"([^\W\d_]\.)+[^\W\d_]|ph\.d|mr|mrs|ms|dr|prof|st|jr|sr|gen|col|capt|lt|sgt|rev|hon|gov|sen"
    r"|rep|vs|etc|cf|viz|al|approx|resp|esp|incl|ca|inc|ltd|co|corp|bros|dept|est",
    re.IGNORECASE,
)
_ABBREVIATION_BEFORE_NUMBER = re.compile(
    r"nos?|pp?|figs?|secs?|ch|vols?|eqs?|art|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec",
    re.IGNORECASE,
)


def split(
    document: str, manner: Literal["line", "punctuation"], *, exact: bool = False
) -> list[str]:
    """Returns the sentences of a document.

    With `exact`, they keep their white space and that before them: together they are the document,
    without the white space at its two ends.

    `line`: each line is a sentence, as in BERT's input files. `punctuation`: blank lines and
    punctuation end a sentence, other line ends do not.

    A sentence ends with . ! ? or … and any closing quotation marks or brackets. The next word must
    open a quotation or begin with anything but a lower-case letter. A full stop does not end a
    sentence after an abbreviation (Mr. etc. e.g. U.S.), an initial (J. Smith), or the number of an
    item (1. First).
    """
    if exact:
        return _exact(document.strip(), split(document, manner))
    if manner == "line":
        return [line.strip() for line in document.split("\n") if line.strip()]
    return [
        sentence
        for paragraph in re.split(r"\n\s*\n", document)
        for sentence in _sentences(paragraph.split())
    ]


def _exact(document: str, sentences: list[str]) -> list[str]:
    """Returns the parts of a document that hold these sentences, each with the space before it."""
    # A sentence has the words of its part, whatever stands between them.
    ends = [word.end() for word in re.finditer(r"\S+", document)]
    counts = itertools.accumulate(len(sentence.split()) for sentence in sentences)
    bounds = itertools.pairwise([0, *(ends[count - 1] for count in counts)])
    return [document[start:stop] for start, stop in bounds]


def _sentences(words: list[str]) -> list[str]:
    if not words:
        return []
    starts = [0]
    for i, (word, next_word) in enumerate(itertools.pairwise(words)):
        unclosed = word.rstrip(_CLOSING)
        stem = unclosed.rstrip(_END_MARKS)
        next_character = next_word.lstrip("([*¿¡")[:1]
        if stem == unclosed or not _may_begin(next_character):
            continue
        is_first = starts[-1] == i
        if word == f"{stem}." and _stop_belongs_to_word(stem, next_character, is_first):
            continue
        starts.append(i + 1)
    bounds = itertools.pairwise([*starts, len(words)])
    return [" ".join(words[start:stop]) for start, stop in bounds]


def _may_begin(character: str) -> bool:
    """Whether a sentence may begin with this character; "" is none."""
    if not character:
        return False
    return character in _OPENING or (character.isalnum() and not character.islower())


def _stop_belongs_to_word(stem: str, next_character: str, is_first: bool) -> bool:
    """Whether the full stop after `stem` is part of the word.

    `is_first`: the word is the first of its sentence.
    """
    stem = re.split(r"[(\[\"'“‘«/-]", stem)[-1]
    is_initial = len(stem) == 1 and stem.isupper() and stem != "I"
    is_item_number = is_first and re.fullmatch(r"[\d.]+|\w", stem)
    if is_initial or is_item_number or _ABBREVIATION.fullmatch(stem):
        return True
    return next_character.isdigit() and bool(_ABBREVIATION_BEFORE_NUMBER.fullmatch(stem))
