"""Questions, requests, commands, and sentences with numbers."""

from transformer_jax.data.grammar.adverbials import draw_clock, draw_place
from transformer_jax.data.grammar.clauses import (
    AM,
    FIRST,
    MODAL,
    SECOND,
    WAS,
    Clause,
    embedded,
    english,
    german,
    imperative,
    infinitive,
    negative_object,
)
from transformer_jax.data.grammar.complex_clauses import draw_control
from transformer_jax.data.grammar.morphology import ACC
from transformer_jax.data.grammar.noun_phrases import (
    DETERMINERS,
    PRONOUNS,
    A,
    Both,
    noun_phrase,
    numeral,
)
from transformer_jax.data.grammar.numbers import english_number, german_number
from transformer_jax.data.grammar.phrases import Draw, certain, draw_modifiers, draw_np, draw_number
from transformer_jax.data.grammar.questions import draw_asked
from transformer_jax.data.grammar.selection import AIMS, ANIMALS, FRAMES, KIN, PERSONAL
from transformer_jax.data.grammar.simple_clauses import draw_clause, draw_copula, draw_infinitive
from transformer_jax.data.grammar.vocabulary import BE, MODALS, VERBS, nouns

HELP = VERBS["dative-infinitive"][0]
COST = VERBS["measure"][0]
HELPED = ("I", "I", "we", "he", "she", "they")
PRICED = nouns("reading wear vehicle thing device furniture".split())
FURNISHED = tuple(noun for noun in nouns(["building", "furniture"]) if noun.countable)
SETTLEMENTS = nouns("city village island".split())
ROOMS = nouns(["room"])
OUTSIDE = nouns("garden forest park farm".split())


def polar_question(rng: Draw) -> Both:
    """Draws a question that is answered with yes or no."""
    x = rng.random()
    if x < 0.15:
        clause = draw_copula(rng, draw_asked(rng))
    elif x < 0.25:
        clause = draw_control(rng)
    elif x < 0.9:
        clause = draw_clause(rng, PERSONAL, draw_asked(rng))
    else:
        clause = draw_clause(rng, FRAMES)
    if clause.negated and not negative_object(clause):
        clause.negated = False
        clause.already = None
    embedded(clause)
    return f"{english(clause, inverted=True)}?", f"{german(clause, FIRST)}?"


def request(rng: Draw) -> Both:
    """Draws "Can you help me to translate this sentence?" and the like."""
    helped = PRONOUNS[rng.pick(HELPED)] if rng.chance(0.7) else draw_np(rng, KIN, PRONOUNS["you"])
    clause = Clause(PRONOUNS["you"], HELP, MODAL, MODALS["can"], dative=helped)
    clause.complement = infinitive(draw_infinitive(rng, helped, ("accusative",)))
    return f"{english(clause, inverted=True)}?", f"{german(clause, FIRST)}?"


def command(rng: Draw) -> Both:
    """Draws an imperative: a polite request, an order or a proposal."""
    x = rng.random()
    clause = draw_infinitive(rng, PRONOUNS["you"])
    if x > 0.85 and not clause.verb.reflexive:
        clause = draw_infinitive(rng, PRONOUNS["we"], AIMS)
    clause.negated = 0.3 < x < 0.4 and certain(clause.accusative) and certain(clause.dative)
    return imperative(clause, polite=x < 0.3)


def existential(rng: Draw) -> Both:
    """Draws "there is" or "there are": "es gibt" with the accusative, always in the singular."""
    past = rng.chance(0.3)
    plural = rng.chance(0.45)
    noun = rng.pick(FURNISHED) if rng.chance(0.5) else rng.pick(ANIMALS)
    determiner = A
    if plural and rng.chance(0.5):
        determiner = numeral(draw_number(rng))
    elif plural:
        determiner = DETERMINERS[rng.pick(("many", "some"))]
    np = noun_phrase(determiner, noun, plural, draw_modifiers(rng, noun, determiner))
    if noun.kind == "building":
        place = draw_place(rng, None, SETTLEMENTS, 0.5)
    else:
        place = draw_place(rng, None, ROOMS if noun.kind == "furniture" else OUTSIDE, 0)
    verb = (WAS if past else AM)[1 if plural else 2]
    german_verb = "gab" if past else "gibt"
    if rng.chance(0.3):
        return f"{place[0]} there {verb} {np.en}.", f"{place[1]} {german_verb} es {np.german(ACC)}."
    return f"there {verb} {np.en} {place[0]}.", f"es {german_verb} {np.german(ACC)} {place[1]}."


def age(rng: Draw) -> Both:
    """Draws "She is six years old" or the question for it."""
    clause = Clause(draw_asked(rng), BE)
    if rng.chance(0.25):
        return f"how old {english(clause, inverted=True)}?", f"{german(clause, SECOND, 'wie alt')}?"
    years = 2 + int(rng.random() * 88)
    clause.predicate = f"{english_number(years)} years old", f"{german_number(years)} Jahre alt"
    return f"{english(clause)}.", f"{german(clause)}."


def price(rng: Draw) -> Both:
    """Draws "The coat costs sixty euros" or the question for it."""
    clause = Clause(draw_np(rng, PRICED, None, "definite"), COST)
    if rng.chance(0.25):
        question = f"how much {english(clause, inverted=True)}?"
        return question, f"{german(clause, SECOND, 'wie viel')}?"
    x = rng.random()
    euros = 2 + int(rng.random() * (88 if x < 0.6 else 998 if x < 0.8 else 9998))
    if euros % 100 == 1:  # avoids "hunderteins Euro"
        euros += 1
    clause.predicate = f"{english_number(euros)} euros", f"{german_number(euros)} Euro"
    return f"{english(clause)}.", f"{german(clause)}."


def time_of_day(rng: Draw) -> Both:
    """Draws "It is half past three"."""
    clock, german_clock = draw_clock(rng)
    clock = clock.removeprefix("at ")
    german_clock = german_clock.removeprefix("um ")
    if rng.chance(0.5):
        return f"it is already {clock}.", f"es ist schon {german_clock}."
    return f"it is {clock}.", f"es ist {german_clock}."
