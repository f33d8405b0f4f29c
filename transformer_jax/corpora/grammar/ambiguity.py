"""Sentence pairs whose translation rests on what the words around a word tell.

Pronouns: in "The animal didn't cross the street because it was too tired", the adjective alone
tells what "it" is, because a street is not tired. With "too wide" instead of "too tired", it is the
street. German needs to know, because its pronoun has the gender of the noun: "das Tier" is "es",
and "die Straße" is "sie". These are the schemas of Winograd (1972) and of Levesque, Davis &
Morgenstern (2012).

Senses: "I arrived at the bank after crossing the road" is about money, and "... after crossing the
river" about water. German has a word for each: "die Bank" and "das Ufer".

The words stand here and not in the lexicon, because every further word there would change the
sentences that the grammar draws.
"""

from dataclasses import dataclass
from typing import NamedTuple

from transformer_jax.corpora.grammar import corpus
from transformer_jax.corpora.grammar.clauses import (
    DETERMINERS,
    IT,
    MODAL,
    PAST,
    PRESENT,
    THE,
    A,
    Both,
    Clause,
    english,
    german,
    noun_phrase,
    subclause,
)
from transformer_jax.corpora.grammar.morphology import BE, MODALS, NOM, Adjective, Noun, Verb
from transformer_jax.corpora.grammar.phrases import Draw, draw_person

VERSION = "1"  # part of the data fingerprint; must change whenever any sentence changes
SHARE = 0.3  # of the pairs for each of the two kinds; the others are sentences of the grammar

# --------------------------------------------------------------------------------------------------
# Pronouns. The nouns are in the notation of the lexicon.

ANIMALS = """
    animal n Tier -es -e
    dog m Hund -es -e
    cat f Katze - -n
    horse n Pferd -es -e
    bird m Vogel -s ¨
    cow f Kuh - ¨e
    duck f Ente - -n
    rabbit n Kaninchen -s -
    pig n Schwein -es -e
    fox m Fuchs -es ¨e
    donkey m Esel -s -
    goat f Ziege - -n"""
WAYS = """
    street f Straße - -n
    river m Fluss -es ¨e
    bridge f Brücke - -n
    field n Feld -es -er
    lake m See -s -n
    meadow f Wiese - -n
    square m Platz -es ¨e
    valley n Tal -es ¨er"""
MEALS = """
    soup f Suppe - -n
    apple m Apfel -s ¨
    cake m Kuchen -s -
    egg n Ei -s -er
    bread n Brot -es .
    meat n Fleisch -es .
    carrot f Karotte - -n
    fish m Fisch -es -e
    pear f Birne - -n"""
LOADS = """
    cart m Wagen -s -
    box f Kiste - -n
    stone m Stein -es -e
    boat n Boot -es -e
    car n Auto -s -s
    machine f Maschine - -n"""
THINGS = """
    ball m Ball -s ¨e
    book n Buch -es ¨er
    picture n Bild -es -er
    umbrella m Regenschirm -s -e
    camera f Kamera - -s
    lamp f Lampe - -n
    clock f Uhr - -en
    trophy m Pokal -s -e
    vase f Vase - -n
    radio n Radio -s -s"""
CONTAINERS = """
    suitcase m Koffer -s -
    bag f Tasche - -n
    box f Kiste - -n
    cupboard m Schrank -s ¨e
    basket m Korb -s ¨e
    parcel n Paket -s -e
    drawer f Schublade - -n
    compartment n Fach -es ¨er"""


def _nouns(table: str) -> tuple[Noun, ...]:
    return tuple(Noun(line.strip(), "thing") for line in table.strip().splitlines())


def _adjectives(text: str) -> tuple[Adjective, ...]:
    return tuple(Adjective(entry.strip()) for entry in text.split(";"))


@dataclass(frozen=True)
class Schema:
    """A clause about two things, and the adjectives that explain it by the first or the second.

    No adjective of the one fits the other, so that each sentence has one reading.
    """

    verb: Verb
    first: tuple[Noun, ...]
    second: tuple[Noun, ...]
    reasons_first: tuple[Adjective, ...]
    reasons_second: tuple[Adjective, ...]


SCHEMAS = (
    Schema(
        Verb("cross = überqueren überquert überquert : way", "accusative"),
        _nouns(ANIMALS),
        _nouns(WAYS),
        _adjectives("tired müde; weak schwach; ill krank; lazy faul; young jung; hungry hungrig"),
        _adjectives("wide breit; dangerous gefährlich; long lang; loud laut; dark dunkel"),
    ),
    Schema(
        Verb("eat/ate/eaten = essen isst gegessen : meal", "accusative"),
        _nouns(ANIMALS),
        _nouns(MEALS),
        _adjectives("tired müde; weak schwach; ill krank; lazy faul; sad traurig; shy scheu"),
        _adjectives("hot heiß; cold kalt; sour sauer; sweet süß; salty salzig; dry trocken"),
    ),
    Schema(
        Verb("pull = ziehen gezogen : load", "accusative"),
        _nouns(ANIMALS),
        _nouns(LOADS),
        _adjectives("tired müde; weak schwach; ill krank; lazy faul; young jung; hungry hungrig"),
        _adjectives("heavy schwer; wide breit; full voll; big groß"),
    ),
    Schema(
        Verb("catch/caught/caught = fangen fängt gefangen : animal", "accusative"),
        _nouns(ANIMALS),
        _nouns(ANIMALS),
        _adjectives("slow langsam; tired müde; weak schwach; lazy faul; ill krank"),
        _adjectives("fast schnell; clever klug; brave mutig; strong stark"),
    ),
    Schema(
        Verb("fit/fitted/fitted into = passen : in acc container", "prepositional"),
        _nouns(THINGS),
        _nouns(CONTAINERS),
        _adjectives("big groß; long lang; wide breit; thick dick; heavy schwer"),
        _adjectives("small klein; narrow schmal; full voll; short kurz"),
    ),
)


class Twin(NamedTuple):
    """One of two sentences that differ in their last word and in what their "it" is."""

    english: str
    german: str
    referent: str  # the English noun that "it" refers to
    other: str  # the other English noun
    pronoun: str  # in German


def draw_twins(rng: Draw) -> tuple[Twin, Twin]:
    """Draws two sentences: in one, "it" is the subject, and in the other, the other thing."""
    schema = rng.pick(SCHEMAS)
    nouns = rng.pick(schema.first), rng.pick(schema.second)
    # With equal genders, German would have the same pronoun for both.
    while nouns[0].gender == nouns[1].gender or nouns[0].english == nouns[1].english:
        nouns = rng.pick(schema.first), rng.pick(schema.second)
    subject, other = (
        noun_phrase(THE if rng.chance(0.8) else DETERMINERS["this"], noun) for noun in nouns
    )
    past = rng.chance(0.7)
    tense = PAST if past else PRESENT
    clause = Clause(subject, schema.verb, tense, negated=True)
    if past and rng.chance(0.3):
        clause.tense, clause.modal = MODAL, MODALS["could"]
    if schema.verb.preposition:
        clause.governed = other
    else:
        clause.accusative = other
    opening = english(clause)
    if rng.chance(0.5):
        opening = opening.replace(" not ", "n't ", 1)
    conjunction = ("because", "weil") if rng.chance(0.8) else ("since", "da")
    twins = []
    for noun, adjectives in zip(nouns, (schema.reasons_first, schema.reasons_second), strict=True):
        adjective = rng.pick(adjectives)
        predicate = (f"too {adjective.english}", f"zu {adjective.german}")
        reason = subclause(conjunction, Clause(IT[noun.gender], BE, tense, predicate=predicate))
        both = corpus.finish(f"{opening} {reason[0]}.", f"{german(clause)}{reason[1]}.")
        (unmeant,) = (other.english for other in nouns if other is not noun)
        twins.append(Twin(*both, noun.english, unmeant, IT[noun.gender].german(NOM)))
    return tuple(twins)


# --------------------------------------------------------------------------------------------------
# Words of two senses.


@dataclass(frozen=True)
class Sense:
    """A sense of a word: its German noun, and the adjectives and adverbials that tell it."""

    name: str
    noun: Noun
    adjectives: tuple[Adjective, ...]
    adverbials: tuple[Both, ...]


def _sense(name: str, noun: str, adjectives: str, adverbials: str) -> Sense:
    phrases = (" ".join(phrase.split()) for phrase in adverbials.split(";"))
    return Sense(
        name,
        Noun(noun, "thing"),
        _adjectives(adjectives),
        tuple(tuple(phrase.split(" = ")) for phrase in phrases),
    )


def _verbs(text: str) -> tuple[Verb, ...]:
    """Reads verbs that govern a direct object or, behind the colon, a preposition."""
    return tuple(
        Verb(line.strip(), "prepositional" if ":" in line else "accusative")
        for line in text.split(";")
    )


# The verbs fit both senses, so that they tell nothing.
WORDS: dict[str, tuple[tuple[Verb, ...], tuple[Sense, Sense]]] = {
    "bank": (
        _verbs(
            "see/saw/seen = sehen sieht gesehen; reach = erreichen; find/found/found = finden "
            "gefunden; arrive at = an|kommen ist gekommen : an dat; paint = malen"
        ),
        (
            _sense(
                "money",
                "bank f Bank - -en",
                "rich reich; modern modern; expensive teuer:teur; famous berühmt",
                """after crossing the road = nach dem Überqueren der Straße;
                in the city = in der Stadt; with the money = mit dem Geld;
                beside the shop = neben dem Geschäft; behind the station = hinter dem Bahnhof;
                before the meeting = vor der Besprechung""",
            ),
            _sense(
                "river",
                "bank n Ufer -s -",
                "muddy schlammig; steep steil; green grün; wet nass",
                """after crossing the river = nach dem Überqueren des Flusses;
                with the boat = mit dem Boot; under the willows = unter den Weiden;
                beside the water = neben dem Wasser; near the island = bei der Insel;
                before the storm = vor dem Sturm""",
            ),
        ),
    ),
    "play": (
        _verbs(
            "see/saw/seen = sehen sieht gesehen; describe = beschreiben beschrieben; "
            "interrupt = unterbrechen unterbricht unterbrochen; praise = loben; "
            "talk about = sprechen spricht gesprochen : über acc"
        ),
        (
            _sense(
                "theatre",
                "play n Theaterstück -s -e",
                "sad traurig; funny lustig; long lang; famous berühmt",
                """in the theatre = im Theater; on the stage = auf der Bühne;
                with the actors = mit den Schauspielern; before the concert = vor dem Konzert;
                after the second act = nach dem zweiten Akt""",
            ),
            _sense(
                "sport",
                "play m Spielzug -s ¨e",
                "fast schnell; brave mutig; clever klug; dangerous gefährlich",
                """in the stadium = im Stadion; in front of the goal = vor dem Tor;
                with the striker = mit dem Stürmer; before the break = vor der Pause;
                after the foul = nach dem Foul""",
            ),
        ),
    ),
    "bat": (
        _verbs(
            "see/saw/seen = sehen sieht gesehen; find/found/found = finden gefunden; "
            "draw/drew/drawn = zeichnen; look for = suchen; touch = berühren berührt"
        ),
        (
            _sense(
                "club",
                "bat m Schläger -s -",
                "broken kaputt; heavy schwer; expensive teuer:teur; new neu",
                """before the game = vor dem Spiel; beside the ball = neben dem Ball;
                in the stadium = im Stadion; with the player = mit dem Spieler""",
            ),
            _sense(
                "animal",
                "bat f Fledermaus - ¨e",
                "hungry hungrig; young jung; wild wild; shy scheu",
                """in the cave = in der Höhle; under the roof = unter dem Dach;
                at night = in der Nacht; beside the tower = neben dem Turm""",
            ),
        ),
    ),
    "crane": (
        _verbs(
            "see/saw/seen = sehen sieht gesehen; photograph = fotografieren; "
            "draw/drew/drawn = zeichnen; hear/heard/heard = hören; "
            "wait for = warten : auf acc"
        ),
        (
            _sense(
                "machine",
                "crane m Kran -s ¨e",
                "yellow gelb; heavy schwer; broken kaputt; modern modern",
                """in the harbour = im Hafen; at the factory = bei der Fabrik;
                beside the stones = neben den Steinen; with the worker = mit dem Arbeiter""",
            ),
            _sense(
                "bird",
                "crane m Kranich -s -e",
                "hungry hungrig; young jung; wild wild; shy scheu",
                """in the meadow = auf der Wiese; above the lake = über dem See;
                in the reeds = im Schilf; beside its nest = neben seinem Nest""",
            ),
        ),
    ),
    "seal": (
        _verbs(
            "see/saw/seen = sehen sieht gesehen; find/found/found = finden gefunden; "
            "draw/drew/drawn = zeichnen; touch = berühren berührt; describe = beschreiben "
            "beschrieben"
        ),
        (
            _sense(
                "stamp",
                "seal n Siegel -s -",
                "broken kaputt; red rot; royal königlich; expensive teuer:teur",
                """on the letter = auf dem Brief; under the contract = unter dem Vertrag;
                in the office = im Büro; beside the signature = neben der Unterschrift""",
            ),
            _sense(
                "animal",
                "seal f Robbe - -n",
                "hungry hungrig; young jung; wild wild; shy scheu",
                """on the ice = auf dem Eis; in the sea = im Meer;
                at the beach = am Strand; with the fish = mit dem Fisch""",
            ),
        ),
    ),
    "chest": (
        _verbs(
            "see/saw/seen = sehen sieht gesehen; touch = berühren berührt; "
            "draw/drew/drawn = zeichnen; describe = beschreiben beschrieben; cover = bedecken"
        ),
        (
            _sense(
                "box",
                "chest f Truhe - -n",
                "old alt; empty leer; expensive teuer:teur; locked verschlossen",
                """in the cellar = im Keller; with the coins = mit den Münzen;
                beside the cupboard = neben dem Schrank; under the window = unter dem Fenster""",
            ),
            _sense(
                "body",
                "chest f Brust - ¨e",
                "hairy behaart; weak schwach; bare nackt; broad breit",
                """in the hospital = im Krankenhaus; with the bandage = mit dem Verband;
                beside the heart = neben dem Herzen; under the shirt = unter dem Hemd""",
            ),
        ),
    ),
}


class InContext(NamedTuple):
    """A sentence with a word of two senses, and the sense that its context gives the word."""

    english: str
    german: str
    word: str
    sense: str


def draw_in_context(rng: Draw, word: str | None = None) -> InContext:
    """Draws a sentence with `word`, or with any of WORDS."""
    word = word or rng.pick(tuple(WORDS))
    verbs, senses = WORDS[word]
    sense = rng.pick(senses)
    # An adjective, an adverbial or both, so that each sentence tells the sense.
    tells = rng.random()
    modifiers = (rng.pick(sense.adjectives).positive,) if tells < 0.5 else ()
    adverbial = rng.pick(sense.adverbials) if tells > 0.25 else None
    noun = noun_phrase(THE if rng.chance(0.7) else A, sense.noun, modifiers=modifiers)
    verb = rng.pick(verbs)
    clause = Clause(draw_person(rng), verb, PAST if rng.chance(0.6) else PRESENT, place=adverbial)
    if verb.preposition:
        clause.governed = noun
    else:
        clause.accusative = noun
    both = corpus.finish(f"{english(clause)}.", f"{german(clause)}.")
    return InContext(*both, word, sense.name)


def sentence(rng: Draw) -> Both:
    """Draws a sentence of the grammar or, with probability SHARE each, of one of the kinds here."""
    kind = rng.random()
    if kind < SHARE:
        twin = rng.pick(draw_twins(rng))
        return twin.english, twin.german
    if kind < 2 * SHARE:
        in_context = draw_in_context(rng)
        return in_context.english, in_context.german
    return corpus.sentence(rng)
