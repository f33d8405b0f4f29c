"""Splitting a document into sentences."""

import itertools
import re
from typing import Literal

_ENDS = ".!?…"
# The characters that may stand between the end of a sentence and the next space.
_CLOSING = "\"'”’»)]"
_OPENING = "\"'“‘«`"
_ABBREVIATION = re.compile(
    r"([^\W\d_]\.)+[^\W\d_]|ph\.d|mr|mrs|ms|dr|prof|st|jr|sr|gen|col|capt|lt|sgt|rev|hon|gov|sen"
    r"|rep|vs|etc|cf|viz|al|approx|resp|esp|incl|ca|inc|ltd|co|corp|bros|dept|est",
    re.IGNORECASE,
)
# Some of these are also words that may end a sentence, such as "no" and "art", so they count as
# abbreviations only before a number.
_ABBREVIATION_BEFORE_NUMBER = re.compile(
    r"nos?|pp?|figs?|secs?|ch|vols?|eqs?|art|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec",
    re.IGNORECASE,
)


def split(
    document: str, manner: Literal["line", "punctuation"], *, exact: bool = False
) -> list[str]:
    """Returns the sentences of a document.

    With manner="line", each line is a sentence, as in BERT's input files. With "punctuation", blank
    lines and punctuation end a sentence, but other line ends do not.

    With `exact`, sentences keep their white space and the white space before them, so that they
    concatenate to the document without the white space at its two ends.

    A sentence ends with . ! ? or … and any closing quotation marks or brackets, if the next word
    opens a quotation or starts with a letter that is not lower-case, or with a digit. A period does
    not end a sentence after an abbreviation (Mr. etc. e.g. U.S.), an initial (J. Smith), or the
    number of a list item (1. First).
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
    """Returns the parts of a document for these sentences, each with the white space before it."""
    # Sentences and document have the same words and differ only in the white space between them, so
    # counting words gives the bounds.
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
        stem = unclosed.rstrip(_ENDS)
        next_character = next_word.lstrip("([*¿¡")[:1]
        # Punctuation inside a sentence, as in "Yahoo! is", is followed by a lower-case word.
        if stem == unclosed or not _may_start(next_character):
            continue
        is_first = starts[-1] == i
        if word == f"{stem}." and _stop_belongs_to_word(stem, next_character, is_first):
            continue
        starts.append(i + 1)
    bounds = itertools.pairwise([*starts, len(words)])
    return [" ".join(words[start:stop]) for start, stop in bounds]


def _may_start(character: str) -> bool:
    """Returns whether a sentence may start with this character, which may be ""."""
    if not character:
        return False
    return character in _OPENING or (character.isalnum() and not character.islower())


def _stop_belongs_to_word(stem: str, next_character: str, is_first: bool) -> bool:
    """Returns whether the period after `stem` is part of the word.

    `is_first` is true if the word is the first of its sentence.
    """
    # Abbreviations are compared as a whole, so the bracket of "(cf." would hide "cf".
    stem = re.split(r"[(\[\"'“‘«/-]", stem)[-1]
    # "I" is far more often the pronoun at the end of a sentence than an initial.
    is_initial = len(stem) == 1 and stem.isupper() and stem != "I"
    is_item_number = is_first and re.fullmatch(r"[\d.]+|\w", stem)
    if is_initial or is_item_number or _ABBREVIATION.fullmatch(stem):
        return True
    return next_character.isdigit() and bool(_ABBREVIATION_BEFORE_NUMBER.fullmatch(stem))
