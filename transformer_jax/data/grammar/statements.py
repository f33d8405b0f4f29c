"""Statements: simple, relative, complex, reported, coordinated and with pronouns for things."""

from transformer_jax.data.grammar.clauses import (
    FUTURE,
    MODAL,
    PAST,
    PRESENT,
    PROGRESSIVE,
    SECOND,
    SHARED,
    Clause,
    english,
    german,
    infinitive,
    subclause,
)
from transformer_jax.data.grammar.complex_clauses import (
    attach_relative,
    coreferent,
    draw_control,
    draw_report,
)
from transformer_jax.data.grammar.morphology import Noun, Verb
from transformer_jax.data.grammar.noun_phrases import DUMMY, IT, NP, PRONOUNS, Both
from transformer_jax.data.grammar.phrases import Draw, draw_np, draw_person, fitting
from transformer_jax.data.grammar.selection import (
    AIMS,
    BY_OBJECT,
    DYNAMIC,
    INANIMATE,
    PEOPLE,
    PRESENT_MODALS,
    THINGS,
)
from transformer_jax.data.grammar.simple_clauses import (
    draw_any,
    draw_clause,
    draw_copula,
    draw_infinitive,
    draw_verb,
)
from transformer_jax.data.grammar.vocabulary import BE, VALUES, VERBS

REASONS = (("because", "weil"), ("because", "weil"), ("although", "obwohl"))
MOMENTS = (("before", "bevor"), ("while", "während"), ("as soon as", "sobald"), ("until", "bis"))
INTENSITIES = (("", ""), ("very ", "sehr "), ("too ", "zu "))
# verbs that do not follow another verb with the same object
FIRST_ACTS = {
    *("write", "build", "paint", "draw", "find", "lose"),
    *("look", "forget", "buy", "take", "need"),
}
RELATED = tuple(noun for noun in THINGS if BY_OBJECT[noun])


def _sentence(clause: Clause) -> Both:
    return f"{english(clause)}.", f"{german(clause)}."


def statement(rng: Draw) -> Both:
    return _sentence(draw_any(rng))


def relative_statement(rng: Draw) -> Both:
    """Draws a relative clause on the subject or the object.

    In German, the relative clause of an object stands behind the verb.
    """
    past = rng.chance(0.4)
    if rng.chance(0.45):
        person = rng.chance(0.7)
        subject = draw_np(rng, PEOPLE if person else RELATED, None, "definite")
        attach_relative(rng, subject, past, BE)
        if person:
            clause = draw_any(rng, past, False, subject)
        else:
            clause = draw_copula(rng, subject, past)
        _drop_leading_time(clause)
    else:
        clause = _accusative_clause(rng, past)
        excluded = ("tongue", "subject")
        while clause.accusative.noun is None or clause.accusative.noun.kind in excluded:
            clause = _accusative_clause(rng, past)
        attach_relative(rng, clause.accusative, past, clause.verb)
    return _sentence(clause)


def _drop_leading_time(clause: Clause) -> None:
    if clause.lead_time:
        clause.time = None
    clause.lead_time = False


def _accusative_clause(rng: Draw, past: bool) -> Clause:
    return draw_clause(rng, ("accusative",), draw_person(rng), past, trailing=False, positive=True)


def weather_clause(rng: Draw, past: bool, plain: bool = False) -> Clause:
    if past:
        tense = PAST
    else:
        tense = PRESENT if plain else PROGRESSIVE
    return Clause(DUMMY, rng.pick(VERBS["weather"]), tense)


def temporal_clauses(rng: Draw, conjunction: Both, past: bool) -> tuple[Clause, Clause]:
    """Draws plain main and subordinate clauses for "before", "while", "when" and "if".

    The main clause of "until" and "while" is a state or an activity.
    """
    frames = ("intransitive", "location") if conjunction[0] in ("while", "until") else DYNAMIC
    main = draw_clause(rng, past=past, verb=draw_verb(rng, frames, dynamic=True), plain=True)
    if not past and conjunction[0] != "while" and main.subject.person < 4 and rng.chance(0.4):
        main.modal = rng.pick(PRESENT_MODALS) if rng.chance(0.6) else None
        main.tense = MODAL if main.modal else FUTURE
    if rng.chance(0.15):
        return main, weather_clause(rng, past, plain=True)
    subject = coreferent(rng, main.subject)
    verb = draw_verb(rng, DYNAMIC, dynamic=True)
    return main, draw_clause(rng, subject=subject, past=past, verb=verb, plain=True)


def complex_statement(rng: Draw) -> Both:
    """Draws a sentence with "because", "although", "if", "before" or "when".

    The subordinate clause follows the main clause, or precedes it with inversion.
    """
    past = rng.chance(0.45)
    x = rng.random()
    if x < 0.55:
        conjunction = rng.pick(REASONS)
        main, sub = _reason_clauses(rng, past)
    else:
        if x < 0.8:
            conjunction = rng.pick(MOMENTS)
        else:
            conjunction = ("when", "als") if past else ("if", "wenn")
        main, sub = temporal_clauses(rng, conjunction, past)
    if rng.chance(0.4) or conjunction[0] == "when":
        _drop_leading_time(main)
        first, german_first = subclause(conjunction, sub)
        german_first = german_first.removeprefix(", ")
        return f"{first}, {english(main)}.", f"{german(main, SECOND, german_first)}."
    if main.time and not main.lead_time:
        sub.time = None
    second, german_second = subclause(conjunction, sub)
    return f"{english(main)} {second}.", f"{german(main)}{german_second}."


def _reason_clauses(rng: Draw, past: bool) -> tuple[Clause, Clause]:
    """Draws the main and the subordinate clause for "because" and "although"."""
    main = draw_report(rng, nested=True) if rng.chance(0.08) else draw_any(rng, past)
    if rng.chance(0.12):
        return main, weather_clause(rng, past)
    return main, draw_any(rng, past, subject=coreferent(rng, main.subject))


def report_statement(rng: Draw) -> Both:
    return _sentence(draw_report(rng))


def control_statement(rng: Draw) -> Both:
    return _sentence(draw_control(rng))


def purpose_statement(rng: Draw) -> Both:
    """Draws "in order to" or "without doing": "um ... zu", "ohne ... zu"."""
    past = rng.chance(0.5)
    verb = draw_verb(rng, ("direction", "direction", "journey", "accusative"), dynamic=True)
    clause = draw_clause(
        rng,
        subject=draw_person(rng),
        past=past,
        verb=verb,
        plain=rng.chance(0.5),
        trailing=False,
        positive=True,
    )
    without = rng.chance(0.25)
    clause.complement = infinitive(
        draw_infinitive(rng, clause.subject, AIMS),
        gerund=without,
        opening=("without", "ohne") if without else ("in order", "um"),
    )
    return _sentence(clause)


def impersonal_statement(rng: Draw) -> Both:
    """Draws "It is important to learn German": "Es ist wichtig, Deutsch zu lernen"."""
    tense = PAST if rng.chance(0.25) else PRESENT
    clause = Clause(DUMMY, BE, tense, negated=rng.chance(0.2), predicate=rng.pick(VALUES))
    clause.complement = infinitive(draw_infinitive(rng, DUMMY))
    return _sentence(clause)


def coordination(rng: Draw) -> Both:
    """Draws "and", "but" or "so". After "deshalb" stands the German verb."""
    past = rng.chance(0.45)
    x = rng.random()
    first = weather_clause(rng, past) if x > 0.9 else draw_any(rng, past)
    if first.subject is DUMMY:
        subject = draw_person(rng)
    else:
        subject = coreferent(rng, first.subject)
    second = draw_any(rng, past, subject=subject)
    if x < 0.35:
        return f"{english(first)}, and {english(second)}.", f"{german(first)} und {german(second)}."
    if x < 0.7:
        return _but(first, second)
    _drop_leading_time(second)
    german_second = german(second, SECOND, "deshalb")
    return f"{english(first)}, so {english(second)}.", f"{german(first)}, {german_second}."


def _but(first: Clause, second: Clause) -> Both:
    return f"{english(first)}, but {english(second)}.", f"{german(first)}, aber {german(second)}."


def shares_auxiliary(clause: Clause, other: Verb) -> bool:
    """Whether `other` can follow without subject and auxiliary in both languages."""
    if clause.tense == MODAL:
        return not clause.modal.full and not clause.modal.link
    return clause.tense != PROGRESSIVE and (clause.tense != PAST or bool(other.past))


def anaphora(rng: Draw) -> Both:
    """Draws a thing and its pronoun, which has the gender of the German noun."""
    noun: Noun = rng.pick(INANIMATE)
    past = rng.chance(0.5)
    subject = draw_person(rng)
    verbs = [verb for verb in BY_OBJECT[noun] if "state" not in verb.flags]
    thing = draw_np(rng, (noun,), subject, "definite" if rng.chance(0.6) else "indefinite")
    clause = draw_clause(
        rng,
        subject=subject,
        past=past,
        verb=rng.pick(verbs),
        trailing=False,
        accusative=thing,
        positive=True,
    )
    clause.time = clause.frequency = None
    clause.lead_time = False
    pronoun = _pronoun_of(thing)
    other = rng.pick(verbs)
    if (
        rng.chance(0.6)
        and other is not clause.verb
        and other.base not in FIRST_ACTS
        and shares_auxiliary(clause, other)
    ):
        second = Clause(subject, other, clause.tense, clause.modal, accusative=pronoun)
        return (
            f"{english(clause)} and {english(second, shared=True)}.",
            f"{german(clause)} und {german(second, SHARED)}.",
        )
    adjective = rng.pick(fitting(noun, thing.modifiers))
    degree, german_degree = rng.pick(INTENSITIES if adjective.comparable else INTENSITIES[:1])
    predicate = (degree + adjective.english, german_degree + adjective.german)
    second = Clause(pronoun, BE, PAST if past else PRESENT, predicate=predicate)
    if rng.chance(0.3):
        return _but(clause, second)
    reason, german_reason = subclause(rng.pick(REASONS), second)
    return f"{english(clause)} {reason}.", f"{german(clause)}{german_reason}."


def _pronoun_of(thing: NP) -> NP:
    """Returns "it" or "them" for a thing."""
    forms = IT[thing.gender].forms if thing.gender < 3 else PRONOUNS["they"].forms
    if thing.agreement == 2:
        return NP("it", "it", 2, thing.person, forms, gender=thing.gender, pronoun=True)
    return NP("they", "them", 1, thing.person, forms, gender=thing.gender, pronoun=True)
