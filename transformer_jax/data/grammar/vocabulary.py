"""The words of the lexicon with their forms."""

import re

from transformer_jax.data.grammar import lexicon
from transformer_jax.data.grammar.morphology import IRREGULAR, Adjective, Modal, Noun, Verb


def _lines(table: str) -> list[str]:
    return [line.strip() for line in table.strip().splitlines()]


def _adverbs(text: str) -> tuple[tuple[str, str], ...]:
    return tuple(tuple(entry.strip().split(" = ")) for entry in text.split(";"))


def _modal(line: str) -> Modal:
    english, german = line.strip().split(" = ")
    forms, *link = english.split()
    first, third = forms.split("/")
    verb, tense = german.split()
    full_verbs = {"want": "want", "wanted": "want", "have": "have", "had": "have", "like": "like"}
    forms = IRREGULAR.get(verb)
    if forms:
        forms = forms[:4] if tense == "present" else forms[4:]
        forms = (*forms, forms[3])
    return Modal(
        first=first,
        third=third,
        link=" ".join(link),
        full=full_verbs.get(first, ""),
        past=tense == "past",
        german=forms,
    )


NOUNS = {
    (noun := Noun(line, kind)).english: noun
    for kind, table in lexicon.NOUNS.items()
    for line in _lines(table)
}


def nouns(words: list[str]) -> tuple[Noun, ...]:
    """Returns the nouns of a list of classes and single words."""
    return tuple(
        noun for word in words for noun in NOUNS.values() if word in (noun.kind, noun.english)
    )


for _kinds, _table in [*lexicon.ADJECTIVES.items(), *lexicon.NOUN_ADJECTIVES.items()]:
    for _adjective in map(Adjective, _lines(_table)):
        for _noun in nouns(_kinds.split()):
            if all(_adjective.english != other.english for other in _noun.adjectives):
                _noun.adjectives.append(_adjective)
VERBS = {
    frame: tuple(Verb(line, frame) for line in _lines(table))
    for frame, table in lexicon.VERBS.items()
}


for _verb in (verb for verbs in VERBS.values() for verb in verbs):
    _verb.nouns = nouns(_verb.objects)
BE = VERBS["copula"][0]
MODALS = {modal.first: modal for modal in map(_modal, _lines(lexicon.MODALS))}
HABEN, SEIN, WERDEN = (  # in the present, by person
    (*IRREGULAR[verb][:4], IRREGULAR[verb][3]) for verb in ("haben", "sein", "werden")
)
TIMES = {kind: _adverbs(text) for kind, text in lexicon.TIMES.items()}
MANNERS = {kind: _adverbs(text) for kind, text in lexicon.MANNERS.items()}
DEGREES = _adverbs(lexicon.DEGREES)
REGIONS = tuple(tuple(re.split("  +", line)) for line in _lines(lexicon.REGIONS))
PLACES = {
    noun: tuple(key.split())
    for key, words in lexicon.PLACES.items()
    for noun in nouns(words.split())
}
SPOTS = tuple(
    (key.split()[0].replace("_", " "), key.split()[1], noun)
    for key, words in lexicon.SPOTS.items()
    for noun in nouns(words.split())
)
VALUES = tuple(tuple(value.split(" = ")) for value in lexicon.VALUES.split("; "))
