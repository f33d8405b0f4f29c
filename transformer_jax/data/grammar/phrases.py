"""Drawing of noun phrases from a random stream.

A restriction that German word order or articles depend on is applied here, when a phrase is drawn.
"""

import random

from transformer_jax.data.grammar.morphology import SINGULAR, Adjective, Noun, Verb
from transformer_jax.data.grammar.noun_phrases import (
    BARE,
    DETERMINERS,
    NAMES,
    NOT_A,
    NP,
    PRONOUNS,
    SIRS,
    THE,
    A,
    Determiner,
    conjoined,
    noun_phrase,
    numeral,
)
from transformer_jax.data.grammar.selection import (
    CERTAIN,
    COLOURS,
    DEFINITE,
    FIELDS,
    FIXTURES,
    KIN,
    OWNED,
    PAIRS,
    PEOPLE,
    PLURALS,
    RELATIVE_SIZES,
    SINGLE_KIN,
    SINGULARS,
    SIZES,
    SPEAKERS,
    UNIQUE,
)


class Draw:
    """Choices from a seeded stream.

    They use `random()` alone, which is the same in every version of Python.
    """

    def __init__(self, seed: int):
        self.random = random.Random(seed).random

    def pick(self, options):
        """Returns one of the options, all with equal probability."""
        return options[int(self.random() * len(options))]

    def chance(self, probability: float) -> bool:
        return self.random() < probability


def draw_number(rng: Draw) -> int:
    """Draws a number from 2 to 9999, mostly a small one.

    101, 201 and so on are left out, because German nouns do not follow them.
    """
    x = rng.random()
    count = 11 if x < 0.7 else 98 if x < 0.96 else 998 if x < 0.99 else 9997
    number = 2 + int(rng.random() * count)
    return number if number % 100 != 1 else number + 1


def draw_modifiers(rng: Draw, noun: Noun, determiner: Determiner) -> tuple:
    """Draws up to two adjectives, the second a colour. Definite phrases may have a superlative."""
    if rng.random() > 0.32 or not noun.adjectives or noun.kind in ("tongue", "subject"):
        return ()
    adjective = rng.pick(noun.adjectives)
    can_compare = (
        adjective.comparable and determiner in CERTAIN and noun.countable and noun not in UNIQUE
    )
    if can_compare and rng.chance(0.3):
        if adjective.english in RELATIVE_SIZES:
            is_superlative = determiner.singular != "this" and rng.chance(0.6)
            return (adjective.superlative if is_superlative else adjective.comparative,)
        if determiner is THE:
            return (adjective.superlative,)
    second = rng.pick(noun.adjectives)
    if second.english in COLOURS and adjective.english in SIZES:
        return adjective.positive, second.positive
    return (adjective.positive,)


def fitting(noun: Noun, modifiers: tuple) -> list[Adjective]:
    """Returns the adjectives that fit a noun with these modifiers: not "the old car is new"."""
    if not modifiers:
        return noun.adjectives
    modifying = {english for english, _ in modifiers}
    excluded = modifying.union(*(field for field in FIELDS if field & modifying))
    return [
        adjective
        for adjective in noun.adjectives
        if adjective.english not in excluded
        and not modifying & {adjective.comparative[0], adjective.superlative[0]}
    ]


def draw_possessive(rng: Draw, owner: NP | None) -> Determiner:
    """Draws a possessive, mostly that of `owner`."""
    if owner and owner.possessive and rng.chance(0.8):
        return DETERMINERS[owner.possessive]
    return DETERMINERS[rng.pick(("my", "my", "your", "his", "her", "our", "their"))]


def draw_determiner(rng: Draw, noun: Noun, plural: bool, owner: NP | None, kind: str) -> Determiner:
    """Draws a determiner that fits the noun.

    `kind` is "any", "definite", "indefinite" or "negated", which is for an object under negation.
    """
    if noun.kind == "tongue":
        return BARE if kind == "any" else DETERMINERS["not"]
    if noun.kind == "subject":
        return BARE
    if kind == "negated" and noun.bare and noun.kind != "kin":
        return NOT_A
    if kind == "indefinite" and noun.bare:
        if noun.countable:
            if not plural:
                return A
            return BARE if rng.chance(0.4) else numeral(draw_number(rng))
        return BARE
    if noun.kind == "kin":
        return draw_possessive(rng, owner)
    if noun in OWNED and rng.chance(0.25):
        return draw_possessive(rng, owner)
    if kind == "definite" or noun.kind == "sky" or not noun.bare:
        return rng.pick(DEFINITE)
    if not noun.countable:
        return THE if rng.chance(0.5) or noun.english == "people" else BARE
    if plural:
        determiner = numeral(draw_number(rng)) if rng.chance(0.15) else rng.pick(PLURALS)
        return THE if determiner is BARE and noun.kind in FIXTURES else determiner
    return rng.pick(SINGULARS)


def draw_np(
    rng: Draw,
    choice: tuple[Noun, ...],
    owner: NP | None = None,
    kind: str = "any",
    number: bool | None = None,
) -> NP:
    """Draws the phrase of a noun in `choice`.

    `owner` is the phrase that a possessive refers to. For `kind`, see `draw_determiner`. `number`
    is SINGULAR, PLURAL or None, for either.
    """
    noun = rng.pick(choice)
    if owner and noun is owner.noun:
        noun = rng.pick(choice)
    if number is None:
        plural = noun.countable and (noun in PAIRS or noun not in UNIQUE and rng.chance(0.3))
    else:
        plural = noun.countable and number
    can_belong = noun.countable and noun not in UNIQUE and (noun in OWNED or noun.kind == "kin")
    if kind in ("any", "definite") and not plural and can_belong and rng.chance(0.1):
        if rng.chance(0.5):
            possessor = rng.pick(NAMES)
        else:
            possessor = noun_phrase(draw_possessive(rng, owner), rng.pick(SINGLE_KIN))
        if possessor.noun is not noun:
            return noun_phrase(THE, noun, plural, draw_modifiers(rng, noun, A), possessor)
    determiner = draw_determiner(rng, noun, plural, owner, kind)
    return noun_phrase(determiner, noun, plural, draw_modifiers(rng, noun, determiner))


def draw_person(rng: Draw, owner: NP | None = None, pronoun: float = 0.4) -> NP:
    """Draws a pronoun, a name, a relative or a trade.

    The person is not the `owner`, which is the subject of the clause. `pronoun` is the probability
    of a pronoun.
    """
    x = rng.random()
    if x < pronoun:
        person = rng.pick(SPEAKERS)
        while owner and (person is owner or person.person in (0, 3) and owner.person in (0, 3)):
            person = rng.pick(SPEAKERS)
        return person
    x = (x - pronoun) / (1 - pronoun)
    if x < 0.36:
        person = rng.pick(NAMES if x < 0.3 else SIRS)
        return person if person is not owner else PRONOUNS["they"]
    if x < 0.4:
        first = rng.pick(NAMES)
        second = rng.pick(NAMES)
        if second is first:
            second = draw_np(rng, SINGLE_KIN, first, "any", SINGULAR)
        return conjoined(first, second)
    return draw_np(rng, KIN if x < 0.62 else PEOPLE, owner)


def draw_object(rng: Draw, verb: Verb, owner: NP, kind: str = "any") -> NP:
    """Draws an object that fits the verb."""
    if "person" in verb.objects and kind != "negated" and rng.chance(0.5):
        return draw_person(rng, owner)
    if "new" in verb.flags and kind == "any":
        kind = "indefinite"
    return draw_np(rng, verb.nouns, owner, kind)


def certain(np: NP | None) -> bool:
    """Whether the phrase is definite. Only then do "nicht" and "schon" follow it."""
    return np is None or bool(np.forms) or np.determiner in CERTAIN
