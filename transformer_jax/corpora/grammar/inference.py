"""Inference pairs from the grammar's English, whose labels are correct by construction.

The two clauses of a pair share subject, verb and tense. They differ in the object (a red car, a
vehicle), in adverbials and in negation. Natural logic determines the label (MacCartney & Manning
2007): "Anna buys a red car today." entails "Anna buys a vehicle.", and "Anna does not buy a
vehicle." entails "Anna does not buy a red car.". The negations of such hypotheses are
contradictions, and an object of another kind makes a pair neutral.

Other pairs consist of a statement and a hypothesis about its topic, such as "This example is about
drinks.". A topic is a noun or the name of its kind. The hypothesis is entailed if the statement has
that noun, or a noun of that kind, and it is contradicted if the statement has no noun of that kind.
The topics in UNSEEN never occur in these hypotheses, because they are the labels of zero-shot
classification.
"""

import dataclasses
import hashlib
import itertools
import re
from collections.abc import Iterator

from transformer_jax.corpora.grammar.clauses import (
    BARE,
    FUTURE,
    NOT_A,
    NP,
    PAST,
    PERFECT,
    PRESENT,
    PROGRESSIVE,
    A,
    Clause,
    english,
    noun_phrase,
    numeral,
)
from transformer_jax.corpora.grammar.corpus import split_of, statement
from transformer_jax.corpora.grammar.morphology import NOUNS, VERBS, Noun, Verb
from transformer_jax.corpora.grammar.phrases import (
    Draw,
    certain,
    draw_adverbials,
    draw_modifiers,
    draw_number,
    draw_person,
)

VERSION = "1"  # part of the data fingerprint; must change whenever any pair changes
LABELS = ("entailment", "neutral", "contradiction")
TEMPLATE = "This example is about {}."
# Topic: the kind of its nouns in the lexicon. Only these occur in hypotheses of training, so that
# the labels of zero-shot classification, which are UNSEEN, are new.
SEEN = {
    "buildings": "building",
    "devices": "device",
    "drinks": "drink",
    "events": "event",
    "furniture": "furniture",
    "languages": "tongue",
    "rooms": "room",
    "subjects": "subject",
    "texts": "reading",
}
UNSEEN = {"animals": "animal", "clothing": "wear", "food": "food", "vehicles": "vehicle"}
# For each kind, the kinds whose nouns may or may not belong to it. Pairs whose label would depend
# on this are not generated.
NEAR = {
    "building": ("room", "outdoors", "opening"),
    "device": ("thing", "vehicle", "furniture"),
    "drink": ("food",),
    "event": ("topic",),
    "food": ("drink",),
    "furniture": ("device", "thing"),
    "reading": ("topic", "thing"),
    "room": ("building", "outdoors", "opening"),
    "subject": ("tongue", "topic"),
    "tongue": ("subject", "topic"),
    "wear": ("thing",),
}
# The general noun for each kind of object. Kinds without such a noun have no pairs, because nothing
# could be said about their nouns in general.
GENERAL = {
    noun.kind: noun
    for noun in (
        Noun("animal n Tier -es -e", "animal"),
        Noun("building n Gebäude -s -", "building"),
        Noun("clothing f Kleidung - .", "wear"),
        Noun("drink n Getränk -s -e", "drink"),
        Noun("food n Essen -s .", "food"),
        NOUNS["furniture"],
        Noun("relative m Verwandte -n -n", "kin"),
        Noun("vehicle n Fahrzeug -s -e", "vehicle"),
    )
}
# (is the premise negated, is its object general, is the object of the hypothesis general). Only
# forms whose label is certain are listed: a positive premise may only become more general, and a
# negated one only more specific.
FORMS = (
    (False, False, False),
    (False, False, True),
    (False, True, True),
    (True, False, False),
    (True, True, False),
    (True, True, True),
)


def _objects(verb: Verb) -> dict[str, list[Noun]]:
    """Returns the nouns that may be the object of the verb, by kind."""
    objects = {}
    for noun in verb.nouns:
        if noun.bare and noun.kind in GENERAL and noun is not GENERAL[noun.kind]:
            objects.setdefault(noun.kind, []).append(noun)
    return objects


OBJECTS = {verb: _objects(verb) for verb in VERBS["accusative"] if verb.is_action}


def others(verb: Verb, kind: str) -> list[str]:
    """Returns the kinds of objects of a verb that certainly do not overlap with this kind."""
    return [other for other in OBJECTS[verb] if other != kind and other not in NEAR.get(kind, ())]


# For each kind, the verbs that take an object of that kind as well as one of another kind, because
# a neutral pair exchanges the one for the other.
VERBS_OF = {
    kind: [verb for verb, kinds in OBJECTS.items() if kind in kinds and others(verb, kind)]
    for kind in GENERAL
}
_TOPIC_OF = {kind: topic for topic, kind in SEEN.items()}
# Of seen and unseen topics: a contradiction about one topic must have no noun of the other topic.
_KINDS = {*SEEN.values(), *UNSEEN.values()}
_NOUN_OF = {
    form.lower(): noun for noun in NOUNS.values() for form in (noun.english, noun.english_plural)
}
# The longest forms first, because a regular expression takes the first alternative that matches.
_FORM = re.compile(rf"\b({'|'.join(sorted(_NOUN_OF, key=len, reverse=True))})\b", re.IGNORECASE)


def nouns_in(text: str) -> list[Noun]:
    """Returns the nouns in a text, in order."""
    return [_NOUN_OF[form.lower()] for form in _FORM.findall(text)]


def pair(seed: int, split: str, index: int) -> tuple[str, str, str]:
    """Returns (premise, hypothesis, label), which is a pure function of the arguments.

    A third of the pairs has each label. Half of the pairs that are not neutral are about topics.
    """
    # Draws are repeated until the premise is in the split, so that no premise is in two splits.
    label = LABELS[index % 3]
    # From the index and not at random, so that any range of pairs is balanced.
    is_about_topic = label != "neutral" and index % 6 < 3
    for rng in _draws(f"pair/{seed}/{split}/{index}"):
        made = (_about_topic if is_about_topic else _about_object)(rng, label)
        if made and split_of(made[0]) == split:
            return (*made, label)


def labelled_text(seed: int, split: str, index: int) -> tuple[str, str]:
    """Returns a text and its topic, which is the only topic in UNSEEN that its nouns belong to."""
    topic, kind = [*UNSEEN.items()][index % len(UNSEEN)]
    others = {*UNSEEN.values(), *NEAR.get(kind, ())} - {kind}
    for rng in _draws(f"text/{seed}/{split}/{index}"):
        text = _statement(rng)
        kinds = {noun.kind for noun in nouns_in(text)}
        # A text with nouns of two topics, or of a near kind, would have more than one right label.
        if kind in kinds and not kinds & others and split_of(text) == split:
            return text, topic


def _draws(key: str) -> Iterator[Draw]:
    """Yields an endless sequence of random streams, which depends only on `key`."""
    for attempt in itertools.count():
        digest = hashlib.blake2b(f"{VERSION}/{key}/{attempt}".encode(), digest_size=8).digest()
        yield Draw(int.from_bytes(digest, "big"))


def _statement(rng: Draw) -> str:
    return _capitalized(statement(rng)[0])


def _capitalized(text: str) -> str:
    return text[0].upper() + text[1:]


def _about_topic(rng: Draw, label: str) -> tuple[str, str] | None:
    """Draws a statement and a hypothesis about a topic. Returns None if the statement has no topic.

    For a contradiction, the topic is taken from another statement, so that each topic is as
    frequent in contradictions as in entailments and does not give the label away.
    """
    text = _statement(rng)
    nouns = [noun for noun in nouns_in(text) if noun.kind in _KINDS]
    if not nouns:
        return None
    noun = rng.pick(nouns)
    topic = noun.english_plural if noun.countable else noun.english
    if noun.kind in _TOPIC_OF and rng.chance(0.5):
        topic = _TOPIC_OF[noun.kind]
    excluded = {noun.kind, *NEAR.get(noun.kind, ())}
    while label == "contradiction" and excluded & {noun.kind for noun in nouns_in(text)}:
        text = _statement(rng)
    return text, TEMPLATE.format(topic)


@dataclasses.dataclass(frozen=True)
class _Object:
    """An object whose article is not chosen yet, and which may be replaced by a general noun."""

    noun: Noun
    plural: bool
    count: int | None
    modifiers: tuple

    def phrase(self, general: bool, negated: bool) -> NP:
        noun = GENERAL[self.noun.kind] if general else self.noun
        if self.count and not general:
            determiner = numeral(self.count)
        elif negated:
            determiner = NOT_A
        else:
            determiner = A if noun.countable and not self.plural else BARE
        modifiers = () if general else self.modifiers
        return noun_phrase(determiner, noun, self.plural and noun.countable, modifiers)


def _draw_object(rng: Draw, nouns: list[Noun], plural: bool) -> _Object:
    noun = rng.pick(nouns)
    plural = plural and noun.countable
    count = draw_number(rng) if plural and rng.chance(0.5) else None
    return _Object(noun, plural, count, draw_modifiers(rng, noun, A))


def _about_object(rng: Draw, label: str) -> tuple[str, str] | None:
    """Draws a pair of clauses. Returns None if the scope of a negation would be ambiguous."""
    kind = rng.pick([*GENERAL])
    verb = rng.pick(VERBS_OF[kind])
    subject = draw_person(rng)
    # "A boy does not buy a car" may mean some boy or no boy at all.
    if not certain(subject):
        return None
    tense = rng.pick((PRESENT, PROGRESSIVE, PAST if verb.past else PERFECT, PERFECT, FUTURE))
    plural = rng.chance(0.3)
    premise = hypothesis = _draw_object(rng, OBJECTS[verb][kind], plural)
    if label == "neutral":
        other = rng.pick(others(verb, kind))
        hypothesis = _draw_object(rng, OBJECTS[verb][other], plural)
    negated, *is_general = rng.pick(FORMS)
    is_opposite = rng.chance(0.5) if label == "neutral" else label == "contradiction"
    # Adverbials make a clause more specific. An entailment therefore holds if they are in a
    # positive premise, or in the hypothesis of a negated premise.
    narrow = Clause(subject, verb, tense, accusative=premise.phrase(False, False))
    if rng.chance(0.5):
        draw_adverbials(rng, narrow, True)
    # "never" and "already" change what follows from a clause.
    narrow.frequency = narrow.already = None
    plain = Clause(subject, verb, tense)
    sides = [(premise, negated), (hypothesis, negated != is_opposite)]
    clauses = (plain, narrow) if negated else (narrow, plain)
    return tuple(
        _sentence(clause, side.phrase(general, is_negated), is_negated)
        for clause, (side, is_negated), general in zip(clauses, sides, is_general)
    )


def _sentence(clause: Clause, accusative: NP, negated: bool) -> str:
    changed = dataclasses.replace(clause, accusative=accusative, negated=negated)
    return _capitalized(f"{english(changed)}.")
