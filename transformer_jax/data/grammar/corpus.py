"""The built-in English-German parallel corpus: a seeded synchronous grammar.

A sentence is first drawn as an abstract structure (clauses made of noun phrases, verbs and
adverbials) and then put into words twice, by `english` and by `german`, so that both sides always
say the same.  It covers what makes translation more than looking up words:

* articles, possessives and adjectives inflected for gender, number and case; weak nouns; genitives;
* German verb second, verb first and verb last; the brackets of separable verbs, modal verbs and the
perfect; * subordinate, relative and infinitive clauses with their commas, fronting and inversion; *
government: dative verbs, two-object verbs, reflexive verbs, prepositions with their cases and
contractions; * English do-support, progressive, irregular forms, a/an, stranded prepositions and
particles; * pronouns that take the gender of the German noun they stand for, numbers in words, time
of day, comparison.

The German is a function of the English: no sentence has two translations.  Where German leaves a
choice, the grammar always makes the same one (see `syntax.py`), and pronouns whose German gender
would be unclear are not used.  The words are listed in `lexicon.py`, inflected in `morphology.py`
and chosen to fit each other in `constructions.py`.
"""

import hashlib
import zlib
from collections.abc import Iterator

from transformer_jax.data.grammar import lexicon
from transformer_jax.data.grammar.constructions import (
    AIMS,
    ANIMALS,
    BY_OBJECT,
    DUMMY,
    DYNAMIC,
    FRAMES,
    HOMES,
    INANIMATE,
    KIN,
    PAIRS,
    PEOPLE,
    PERSONAL,
    PRESENT_MODALS,
    THINGS,
    Draw,
    certain,
    draw_adverbials,
    draw_any,
    draw_clause,
    draw_clock,
    draw_copula,
    draw_infinitive,
    draw_modifiers,
    draw_np,
    draw_number,
    draw_person,
    draw_place,
    draw_tense,
    draw_verb,
    fitting,
)
from transformer_jax.data.grammar.morphology import (
    ACC,
    BE,
    DAT,
    GEN,
    MODALS,
    PLACES,
    RELATIVE,
    VERBS,
    Noun,
    Verb,
    english_number,
    german_number,
    nouns,
)
from transformer_jax.data.grammar.syntax import (
    DETERMINERS,
    FIRST,
    FIXED,
    FUTURE,
    IT,
    LAST,
    MODAL,
    NP,
    PAST,
    PERFECT,
    PRESENT,
    PROGRESSIVE,
    PRONOUNS,
    SECOND,
    SHARED,
    STRONG,
    WHO,
    A,
    Both,
    Clause,
    Determiner,
    english,
    english_rest,
    german,
    infinitive,
    middle_field,
    negative_object,
    noun_phrase,
    numeral,
)

VERSION = "1"  # part of the data fingerprint: change it whenever any output changes
SPLITS = ("train", "valid", "test")
MIN_WORDS, MAX_WORDS = 3, 22

HELP, COST = VERBS["dative-infinitive"][0], VERBS["measure"][0]
VALUES = tuple(tuple(value.split(" = ")) for value in lexicon.VALUES.split("; "))
REASONS = (("because", "weil"), ("because", "weil"), ("although", "obwohl"))
MOMENTS = (("before", "bevor"), ("while", "während"), ("as soon as", "sobald"), ("until", "bis"))
INTENSITIES = (("", ""), ("very ", "sehr "), ("too ", "zu "))
HELPED = ("I", "I", "we", "he", "she", "they")
FIRST_ACTS = {
    "write",
    "build",
    "paint",
    "draw",
    "find",
    "lose",
    "look",
    "forget",
    "buy",
    "take",
    "need",
}
RELATED = tuple(noun for noun in THINGS if BY_OBJECT[noun])
OWNABLE = nouns("house car dog bicycle garden shoe coat cat book room".split())
PRICED = nouns("reading wear vehicle thing device furniture".split())
FURNISHED = tuple(noun for noun in nouns(["building", "furniture"]) if noun.countable)
SETTLEMENTS, ROOMS = nouns("city village island".split()), nouns(["room"])
OUTSIDE = nouns("garden forest park farm".split())


# ---- clauses within clauses
# -------------------------------------------------------------------------------------


def coreferent(d: Draw, np: NP) -> NP | None:
    """A pronoun for a person just mentioned, or somebody new."""
    if d.chance(0.4):
        return None
    if np.pronoun:
        return np
    if np.agreement == 1:
        return PRONOUNS["they"] if np.possessive else None
    return PRONOUNS[{"m": "he", "f": "she"}[np.sex]] if np.sex else None


def embedded(clause: Clause) -> Clause:
    """The clause without anything in front; with a complement at its end there is no room for the
    time.
    """
    if clause.complement:
        clause.time = None
    clause.lead_time = False
    return clause


def subclause(conjunction: Both, clause: Clause) -> Both:
    embedded(clause)
    return f"{conjunction[0]} {english(clause)}", f", {conjunction[1]} {german(clause, LAST)},"


def attach_relative(d: Draw, np: NP, past: bool, avoid: Verb) -> None:
    """Gives the noun phrase a relative clause, not with the verb of the main clause."""
    noun, forms = np.noun, tuple(row[np.gender] for row in RELATIVE)
    person, x, lead = noun.kind in ("person", "kin"), d.random(), ""
    word = "who" if person else "that"
    pronoun = NP(
        word, word, np.agreement, np.person, forms, np.gender, np.sex, np.possessive, pronoun=True
    )
    if noun in HOMES and x < 0.4:
        clause = Clause(draw_person(d), VERBS["location"][0], PAST if past else PRESENT)
        preposition, _, german_preposition, *_ = PLACES[noun]
        word, lead = f"{preposition} which", f"{german_preposition} {forms[DAT]}"
    elif person and x < 0.12:
        whose = Determiner("whose", "whose", forms[GEN], FIXED, STRONG)
        clause = draw_copula(d, noun_phrase(whose, d.pick(OWNABLE), d.chance(0.3)), past)
    elif person and x < 0.24:
        clause = draw_clause(d, ("dative",), draw_person(d), past)
        clause.dative, word, lead = None, "whom", forms[DAT]
    elif (
        person
        and x < 0.6
        or BY_OBJECT[noun]
        and (x < 0.6 or avoid is BE or np.modifiers or not noun.adjectives)
    ):
        clause, lead = object_relative(d, np, past, avoid, forms)
        word = "whom" if person else "that"
    elif person:
        clause = draw_clause(d, PERSONAL, pronoun, past)
    else:
        pronoun.noun = noun
        clause = draw_copula(d, pronoun, past)
    embedded(clause)
    np.relative = (
        (f"{word} {english(clause)}", f"{lead} {german(clause, LAST)}")
        if lead
        else (english(clause), german(clause, LAST))
    )


def object_relative(
    d: Draw, np: NP, past: bool, avoid: Verb, forms: tuple[str, ...]
) -> tuple[Clause, str]:
    """That I bought, whom I wait for: the German preposition goes along to the front."""
    noun = np.noun
    verbs = [verb for verb in BY_OBJECT[noun] if verb is not avoid] or BY_OBJECT[noun]
    if noun.kind in ("person", "kin") and d.chance(0.3):
        verbs = [verb for verb in VERBS["prepositional"] if noun.kind in verb.objects]
    clause = draw_clause(d, subject=draw_person(d), past=past, verb=d.pick(verbs), accusative=np)
    verb = clause.verb
    clause.accusative = clause.governed = clause.place = None
    return clause, f"{verb.preposition} {forms[verb.case]}" if verb.preposition else forms[ACC]


def draw_asked(d: Draw) -> NP:
    return PRONOUNS["you"] if d.chance(0.4) else draw_person(d)


def ask_object(d: Draw, subject: NP, past: bool) -> tuple[Clause, str, str]:
    """Who(m) or what, by the first class of objects of the verb."""
    clause = draw_clause(
        d, ("accusative", "accusative", "dative", "prepositional"), subject, past, positive=True
    )
    while clause.verb.base == "speak":
        clause = draw_clause(d, ("accusative",), subject, past, positive=True)
    verb = clause.verb
    person, preposition = "person" in verb.objects or "kin" in verb.objects, verb.preposition
    if verb.frame == "dative":
        word, lead = "who", "wem"
    elif preposition and person:
        word, lead = "who", f"{preposition} {'wen' if verb.case == ACC else 'wem'}"
    elif preposition:
        word, lead = "what", f"wo{'r' if preposition[0] in 'aeiouü' else ''}{preposition}"
    else:
        word, lead = ("who", "wen") if person else ("what", "was")
    clause.accusative = clause.dative = clause.governed = clause.manner = None
    return clause, word, lead


def ask_which(d: Draw, subject: NP, past: bool) -> tuple[Clause, str, str]:
    """Which book, how many books."""
    clause = draw_clause(d, ("accusative",), subject, past, positive=True)
    while clause.accusative.noun is None or clause.accusative.noun.kind in (
        "tongue",
        "subject",
        "kin",
    ):
        clause = draw_clause(d, ("accusative",), subject, past, positive=True)
    noun, clause.accusative = clause.accusative.noun, None
    many = noun.countable and d.chance(0.5)
    plural = many or noun in PAIRS or noun.countable and d.chance(0.2)
    asked = noun_phrase(DETERMINERS["how many" if many else "which"], noun, plural)
    return clause, asked.en, asked.german(ACC)


def ask_circumstance(d: Draw, subject: NP, past: bool, direct: bool) -> tuple[Clause, str, str]:
    """Where, where to, why, when; "when" is direct only, for elsewhere it means "als"."""
    if d.chance(0.4):
        verb = draw_verb(d, ("location", "location", "direction", "journey"))
        verb = VERBS["direction"][0] if verb.base == "come" else verb
        clause = draw_clause(d, subject=subject, past=past, verb=verb, positive=True)
        clause.place = None
        return clause, "where", "wo" if verb.frame == "location" else "wohin"
    clause = draw_clause(d, PERSONAL, subject, past, positive=True)
    if not direct or d.chance(0.5):
        return clause, "why", "warum"
    clause.tense = PAST if clause.tense == PERFECT and clause.verb.past else clause.tense
    clause.time = clause.frequency = None
    return clause, "when", "wann"


def content_question(d: Draw, past: bool | None = None, direct: bool = True) -> Both:
    """A question with a question word; with `direct` false as a subordinate clause."""
    past = d.chance(0.4) if past is None else past
    x, subject, word, lead = d.random(), draw_asked(d), "", ""
    if x < 0.12:
        clause = draw_clause(
            d, ("accusative", "intransitive", "dative", "prepositional"), WHO, past, positive=True
        )
    elif x < 0.46:
        clause, word, lead = ask_object(d, subject, past)
    elif x < 0.65:
        clause, word, lead = ask_which(d, subject, past)
    else:
        clause, word, lead = ask_circumstance(d, subject, past, direct)
    embedded(clause)
    if lead:
        clause.already = None
    if direct:
        return (
            f"{word} {english(clause, inverted=bool(lead))}?".lstrip(),
            f"{german(clause, SECOND, lead)}?",
        )
    return f"{word} {english(clause)}".lstrip(), f", {lead} {german(clause, LAST)},".replace(
        "  ", " "
    )


def draw_control(d: Draw, past: bool | None = None) -> Clause:
    """A verb with an infinitive clause: try to, stop doing, help or ask somebody to."""
    verb = draw_verb(
        d, ("infinitive",) * 4 + ("gerund",) + ("dative-infinitive", "accusative-infinitive") * 2
    )
    clause = Clause(draw_person(d), verb)
    draw_tense(d, clause, d.chance(0.5) if past is None else past)
    if clause.tense == PROGRESSIVE or verb.frame == "gerund" and clause.tense == MODAL:
        clause.tense, clause.modal = PRESENT, None
    controller = clause.subject
    if verb.frame == "dative-infinitive":
        controller = clause.dative = draw_person(d, clause.subject)
    elif verb.frame == "accusative-infinitive":
        controller = clause.accusative = draw_person(d, clause.subject)
    clause.complement = infinitive(draw_infinitive(d, controller), gerund=verb.frame == "gerund")
    draw_adverbials(d, clause, trailing=False)
    return clause


def draw_report(d: Draw, nested: bool = False) -> Clause:
    """Somebody says, knows, hopes that; asks or does not know whether, who, where; at most one
    level more.
    """
    past = d.chance(0.35)
    if d.chance(0.65):
        verb, conjunction = d.pick(VERBS["that"]), ("that", "dass")
    else:
        verb, conjunction = d.pick(VERBS["question"]), ("whether", "ob")
    clause = Clause(draw_person(d), verb, PAST if past else PRESENT)
    embedded_past = past or verb.base != "hope" and d.chance(0.4)
    if conjunction[0] == "whether" and verb.base == "know":
        clause.negated = True
    elif verb.frame == "question" and verb.base == "ask" and d.chance(0.5):
        clause.accusative = draw_person(d, clause.subject)
    if verb.frame == "question" and d.chance(0.5):
        clause.complement = content_question(d, embedded_past, direct=False)
    elif d.chance(0.15) and not nested:
        clause.complement = subclause(conjunction, draw_control(d, embedded_past))
    else:
        clause.complement = subclause(
            conjunction, draw_any(d, embedded_past, subject=coreferent(d, clause.subject))
        )
    return clause


# ---- sentences
# -------------------------------------------------------------------------------------------------


def statement(d: Draw) -> Both:
    clause = draw_any(d)
    return f"{english(clause)}.", f"{german(clause)}."


def relative_statement(d: Draw) -> Both:
    """A relative clause on the subject, or on the object, where German moves it behind the verb."""
    past = d.chance(0.4)
    if d.chance(0.45):
        person = d.chance(0.7)
        subject = draw_np(d, PEOPLE if person else RELATED, None, "definite")
        attach_relative(d, subject, past, BE)
        clause = draw_any(d, past, False, subject) if person else draw_copula(d, subject, past)
        clause.lead_time, clause.time = False, None if clause.lead_time else clause.time
    else:
        clause = draw_clause(
            d, ("accusative",), draw_person(d), past, trailing=False, positive=True
        )
        while clause.accusative.noun is None or clause.accusative.noun.kind in (
            "tongue",
            "subject",
        ):
            clause = draw_clause(
                d, ("accusative",), draw_person(d), past, trailing=False, positive=True
            )
        attach_relative(d, clause.accusative, past, clause.verb)
    return f"{english(clause)}.", f"{german(clause)}."


def weather_clause(d: Draw, past: bool, plain: bool = False) -> Clause:
    tense = PAST if past else PRESENT if plain else PROGRESSIVE
    return Clause(DUMMY, d.pick(VERBS["weather"]), tense)


def temporal_clauses(d: Draw, conjunction: Both, past: bool) -> tuple[Clause, Clause]:
    """Plain clauses for before, while, when, if; what lasts "until" or "while" is a state or an
    activity.
    """
    frames = ("intransitive", "location") if conjunction[0] in ("while", "until") else DYNAMIC
    main = draw_clause(d, past=past, verb=draw_verb(d, frames, dynamic=True), plain=True)
    if not past and conjunction[0] != "while" and main.subject.person < 4 and d.chance(0.4):
        main.modal = d.pick(PRESENT_MODALS) if d.chance(0.6) else None
        main.tense = MODAL if main.modal else FUTURE
    if d.chance(0.15):
        return main, weather_clause(d, past, plain=True)
    subject, verb = coreferent(d, main.subject), draw_verb(d, DYNAMIC, dynamic=True)
    return main, draw_clause(d, subject=subject, past=past, verb=verb, plain=True)


def complex_statement(d: Draw) -> Both:
    """Because, although, if, before, when: the subordinate clause behind, or in front with
    inversion.
    """
    past, x = d.chance(0.45), d.random()
    if x < 0.55:
        conjunction = d.pick(REASONS)
        main = draw_report(d, nested=True) if d.chance(0.08) else draw_any(d, past)
        sub = (
            weather_clause(d, past)
            if d.chance(0.12)
            else draw_any(d, past, subject=coreferent(d, main.subject))
        )
    else:
        conjunction = d.pick(MOMENTS) if x < 0.8 else ("when", "als") if past else ("if", "wenn")
        main, sub = temporal_clauses(d, conjunction, past)
    if d.chance(0.4) or conjunction[0] == "when":
        if main.lead_time:
            main.time, main.lead_time = None, False
        first, german_first = subclause(conjunction, sub)
        return (
            f"{first}, {english(main)}.",
            f"{german(main, SECOND, german_first.removeprefix(', '))}.",
        )
    if main.time and not main.lead_time:
        sub.time = None
    second, german_second = subclause(conjunction, sub)
    return f"{english(main)} {second}.", f"{german(main)}{german_second}."


def report_statement(d: Draw) -> Both:
    clause = draw_report(d)
    return f"{english(clause)}.", f"{german(clause)}."


def control_statement(d: Draw) -> Both:
    clause = draw_control(d)
    return f"{english(clause)}.", f"{german(clause)}."


def purpose_statement(d: Draw) -> Both:
    """In order to, without doing: "um ... zu", "ohne ... zu"."""
    past = d.chance(0.5)
    verb = draw_verb(d, ("direction", "direction", "journey", "accusative"), dynamic=True)
    clause = draw_clause(
        d,
        subject=draw_person(d),
        past=past,
        verb=verb,
        plain=d.chance(0.5),
        trailing=False,
        positive=True,
    )
    without = d.chance(0.25)
    clause.complement = infinitive(
        draw_infinitive(d, clause.subject, AIMS),
        gerund=without,
        opening=("without", "ohne") if without else ("in order", "um"),
    )
    return f"{english(clause)}.", f"{german(clause)}."


def impersonal_statement(d: Draw) -> Both:
    """It is important to learn German: "Es ist wichtig, Deutsch zu lernen"."""
    tense = PAST if d.chance(0.25) else PRESENT
    clause = Clause(DUMMY, BE, tense, negated=d.chance(0.2), predicate=d.pick(VALUES))
    clause.complement = infinitive(draw_infinitive(d, DUMMY))
    return f"{english(clause)}.", f"{german(clause)}."


def coordination(d: Draw) -> Both:
    """And, but, so; "so" is "deshalb" with the verb right behind it."""
    past, x = d.chance(0.45), d.random()
    first = weather_clause(d, past) if x > 0.9 else draw_any(d, past)
    second = draw_any(
        d,
        past,
        subject=coreferent(d, first.subject) if first.subject is not DUMMY else draw_person(d),
    )
    if x < 0.35:
        return f"{english(first)}, and {english(second)}.", f"{german(first)} und {german(second)}."
    if x < 0.7:
        return (
            f"{english(first)}, but {english(second)}.",
            f"{german(first)}, aber {german(second)}.",
        )
    second.time, second.lead_time = None if second.lead_time else second.time, False
    return (
        f"{english(first)}, so {english(second)}.",
        f"{german(first)}, {german(second, SECOND, 'deshalb')}.",
    )


def shares_auxiliary(clause: Clause, other: Verb) -> bool:
    """Whether a second verb can follow with the subject, and the auxiliary if any, left out in both
    languages.
    """
    if clause.tense == MODAL:
        return not clause.modal.full and not clause.modal.link
    return clause.tense != PROGRESSIVE and (clause.tense != PAST or bool(other.past))


def anaphora(d: Draw) -> Both:
    """ "It" and "them" for a thing: the German pronoun has the gender of the German noun."""
    noun: Noun = d.pick(INANIMATE)
    past, subject = d.chance(0.5), draw_person(d)
    verbs = [verb for verb in BY_OBJECT[noun] if "state" not in verb.flags]
    np = draw_np(d, (noun,), subject, "definite" if d.chance(0.6) else "indefinite")
    clause = draw_clause(
        d,
        subject=subject,
        past=past,
        verb=d.pick(verbs),
        trailing=False,
        accusative=np,
        positive=True,
    )
    clause.time, clause.lead_time, clause.frequency = None, False, None
    again = NP(
        *(("it", "it", 2) if np.agreement == 2 else ("they", "them", 1)),
        np.person,
        IT[np.gender].forms if np.gender < 3 else PRONOUNS["they"].forms,
        np.gender,
        pronoun=True,
    )
    other = d.pick(verbs)
    if (
        d.chance(0.6)
        and other is not clause.verb
        and other.base not in FIRST_ACTS
        and shares_auxiliary(clause, other)
    ):
        second = Clause(subject, other, clause.tense, clause.modal, accusative=again)
        return (
            f"{english(clause)} and {english(second, shared=True)}.",
            f"{german(clause)} und {german(second, SHARED)}.",
        )
    adjective = d.pick(fitting(noun, np.modifiers))
    degree, german_degree = d.pick(INTENSITIES if adjective.comparable else INTENSITIES[:1])
    second = Clause(
        again,
        BE,
        PAST if past else PRESENT,
        predicate=(degree + adjective.english, german_degree + adjective.german),
    )
    if d.chance(0.3):
        return (
            f"{english(clause)}, but {english(second)}.",
            f"{german(clause)}, aber {german(second)}.",
        )
    reason, german_reason = subclause(d.pick(REASONS), second)
    return f"{english(clause)} {reason}.", f"{german(clause)}{german_reason}."


def polar_question(d: Draw) -> Both:
    x = d.random()
    if x < 0.15:
        clause = draw_copula(d, draw_asked(d))
    elif x < 0.25:
        clause = draw_control(d)
    else:
        clause = draw_clause(d, PERSONAL, draw_asked(d)) if x < 0.9 else draw_clause(d, FRAMES)
    if clause.negated and not negative_object(clause):
        clause.negated, clause.already = False, None
    embedded(clause)
    return f"{english(clause, inverted=True)}?", f"{german(clause, FIRST)}?"


def request(d: Draw) -> Both:
    """Can you help me to translate this sentence?"""
    helped = PRONOUNS[d.pick(HELPED)] if d.chance(0.7) else draw_np(d, KIN, PRONOUNS["you"])
    clause = Clause(PRONOUNS["you"], HELP, MODAL, MODALS["can"], dative=helped)
    clause.complement = infinitive(draw_infinitive(d, helped, ("accusative",)))
    return f"{english(clause, inverted=True)}?", f"{german(clause, FIRST)}?"


def imperative(clause: Clause, polite: bool = False) -> Both:
    """To one person; or, if the subject is "we", "let us" with the German infinitive."""
    verb, together = clause.verb, clause.subject is PRONOUNS["we"]
    words = [
        "please" if polite else "",
        "do not" if clause.negated else "",
        "let us" if together else "",
        verb.base,
    ]
    words += english_rest(clause, "")
    middle = middle_field(clause, clause.accusative, clause.dative)
    if together:
        phrase = ["lass uns", *middle, verb.infinitive]
    else:
        phrase = [
            "bitte" if polite else "",
            verb.imperative,
            "dich" if verb.reflexive else "",
            *middle,
            verb.prefix.strip(),
        ]
    mark = "." if polite else "!"
    return " ".join([word for word in words if word]) + mark, " ".join(
        [word for word in phrase if word]
    ) + mark


def command(d: Draw) -> Both:
    x = d.random()
    clause = draw_infinitive(d, PRONOUNS["you"])
    if x > 0.85 and not clause.verb.reflexive:
        clause = draw_infinitive(d, PRONOUNS["we"], AIMS)
    clause.negated = 0.3 < x < 0.4 and certain(clause.accusative) and certain(clause.dative)
    return imperative(clause, polite=x < 0.3)


def existential(d: Draw) -> Both:
    """There is, there are: "es gibt" with the accusative, singular in any case."""
    past, plural = d.chance(0.3), d.chance(0.45)
    noun = d.pick(FURNISHED) if d.chance(0.5) else d.pick(ANIMALS)
    determiner = A
    if plural:
        determiner = (
            numeral(draw_number(d)) if d.chance(0.5) else DETERMINERS[d.pick(("many", "some"))]
        )
    np = noun_phrase(determiner, noun, plural, draw_modifiers(d, noun, determiner))
    if noun.kind == "building":
        place = draw_place(d, None, SETTLEMENTS, 0.5)
    else:
        place = draw_place(d, None, ROOMS if noun.kind == "furniture" else OUTSIDE, 0)
    verb = ("were" if plural else "was") if past else "are" if plural else "is"
    finite = "gab" if past else "gibt"
    if d.chance(0.3):
        return f"{place[0]} there {verb} {np.en}.", f"{place[1]} {finite} es {np.german(ACC)}."
    return f"there {verb} {np.en} {place[0]}.", f"es {finite} {np.german(ACC)} {place[1]}."


def age(d: Draw) -> Both:
    clause = Clause(draw_asked(d), BE)
    if d.chance(0.25):
        return f"how old {english(clause, inverted=True)}?", f"{german(clause, SECOND, 'wie alt')}?"
    n = 2 + int(d.random() * 88)
    clause.predicate = f"{english_number(n)} years old", f"{german_number(n)} Jahre alt"
    return f"{english(clause)}.", f"{german(clause)}."


def price(d: Draw) -> Both:
    clause = Clause(draw_np(d, PRICED, None, "definite"), COST)
    if d.chance(0.25):
        return (
            f"how much {english(clause, inverted=True)}?",
            f"{german(clause, SECOND, 'wie viel')}?",
        )
    x = d.random()
    n = 2 + int(d.random() * (88 if x < 0.6 else 998 if x < 0.8 else 9998))
    n += n % 100 == 1  # "hunderteins Euro" is avoided
    clause.predicate = f"{english_number(n)} euros", f"{german_number(n)} Euro"
    return f"{english(clause)}.", f"{german(clause)}."


def time_of_day(d: Draw) -> Both:
    clock, german_clock = draw_clock(d)
    clock, german_clock = clock.removeprefix("at "), german_clock.removeprefix("um ")
    if d.chance(0.5):
        return f"it is already {clock}.", f"es ist schon {german_clock}."
    return f"it is {clock}.", f"es ist {german_clock}."


SENTENCES = tuple(
    kind
    for kind, weight in (
        (statement, 16),
        (complex_statement, 18),
        (relative_statement, 12),
        (report_statement, 10),
        (control_statement, 7),
        (purpose_statement, 3),
        (impersonal_statement, 2),
        (coordination, 8),
        (anaphora, 6),
        (polar_question, 7),
        (request, 2),
        (content_question, 6),
        (command, 5),
        (existential, 2),
        (age, 1),
        (price, 1),
        (time_of_day, 0.4),
    )
    for _ in range(round(5 * weight))
)


def finish(en: str, de: str) -> Both:
    """Capitals and commas: a comma that closes a clause merges with the next mark."""
    de = (
        de.replace(" ,", ",")
        .replace(",,", ",")
        .replace(",.", ".")
        .replace(",?", "?")
        .replace(",!", "!")
    )
    return en[0].upper() + en[1:], de[0].upper() + de[1:]


def sentence(d: Draw) -> Both:
    """A sentence of a kind drawn by weight, in both languages."""
    return finish(*d.pick(SENTENCES)(d))


# ---- the corpus
# ------------------------------------------------------------------------------------------------


def split_of(english_sentence: str) -> str:
    """The split is a property of the English sentence: 80 % train, 10 % valid, 10 % test, whatever
    the seed.
    """
    bucket = zlib.crc32(english_sentence.encode()) % 10
    return SPLITS[0] if bucket < 8 else SPLITS[bucket - 7]


def sentence_pair(seed: int, split: str, index: int) -> tuple[str, str]:
    """English and German; a pure function of its arguments, on every machine and in every version
    of Python.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, not {split!r}")
    attempt = 0
    while True:
        key = hashlib.blake2b(
            f"{VERSION}/{seed}/{split}/{index}/{attempt}".encode(), digest_size=8
        ).digest()
        pair = sentence(Draw(int.from_bytes(key, "big")))
        if split_of(pair[0]) == split and MIN_WORDS <= pair[0].count(" ") + 1 <= MAX_WORDS:
            return pair
        attempt += 1


def pairs(seed: int, split: str, count: int) -> Iterator[tuple[str, str]]:
    """The first `count` pairs of the split."""
    return (sentence_pair(seed, split, index) for index in range(count))
