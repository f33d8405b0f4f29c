"""The built-in English-German parallel corpus: sentences drawn from a seeded grammar.

A sentence is drawn as an abstract structure of clauses, noun phrases, verbs and adverbials.
`clauses.english` and `clauses.german` render it, so that both sides always have the same meaning.
The grammar covers phenomena that make translation more than word-by-word lookup:

* articles, possessives and adjectives with gender, number and case; weak nouns; genitives
* German verb-second, verb-first and verb-last order; the brackets of separable verbs, modal verbs
  and the perfect
* subordinate, relative and infinitive clauses with their commas; fronting and inversion
* government: dative verbs, verbs with two objects, reflexive verbs, prepositions with their cases
  and contractions
* English do-support, progressive, irregular forms, a/an, stranded prepositions and particles
* pronouns with the gender of the German noun; numbers in words; time of day; comparison

The German sentence is a function of the English one, so that no sentence has two translations. If
German has several forms, the grammar always uses the same one. Pronouns whose German gender would
be unclear are not used.

`lexicon` lists the words, `morphology` inflects them, and `phrases` defines which words fit
together.
"""

import hashlib
import zlib
from collections.abc import Callable, Iterator

from transformer_jax.corpora.grammar.clauses import (
    AM,
    DETERMINERS,
    DUMMY,
    FIRST,
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
    WAS,
    WHO,
    A,
    Both,
    Clause,
    Determiner,
    embedded,
    english,
    german,
    imperative,
    infinitive,
    negative_object,
    noun_phrase,
    numeral,
    subclause,
)
from transformer_jax.corpora.grammar.morphology import (
    ACC,
    BE,
    DAT,
    FIXED,
    GEN,
    MODALS,
    PLACES,
    RELATIVE,
    STRONG,
    VALUES,
    VERBS,
    Noun,
    Verb,
    english_number,
    german_number,
    nouns,
)
from transformer_jax.corpora.grammar.phrases import (
    AIMS,
    ANIMALS,
    BY_OBJECT,
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

# --------------------------------------------------------------------------------------------------
# Questions with a question word.
#
# The functions `ask_...` return (clause, English question words, German question words). The clause
# lacks what is asked for, because the question word stands at its place.


def draw_asked(rng: Draw) -> NP:
    """Draws the subject of a question."""
    return PRONOUNS["you"] if rng.chance(0.4) else draw_person(rng)


def ask_object(rng: Draw, subject: NP, past: bool) -> tuple[Clause, str, str]:
    """Draws "who" or "what" as the object, depending on the objects that the verb takes."""
    clause = draw_clause(
        rng, ("accusative", "accusative", "dative", "prepositional"), subject, past, positive=True
    )
    # "What do you speak?" is not how one asks for a language.
    while clause.verb.base == "speak":
        clause = draw_clause(rng, ("accusative",), subject, past, positive=True)
    verb = clause.verb
    preposition = verb.preposition
    person = "person" in verb.objects or "kin" in verb.objects
    if verb.frame == "dative":
        word, lead = "who", "wem"
    elif preposition and person:
        word, lead = "who", f"{preposition} {'wen' if verb.case == ACC else 'wem'}"
    elif preposition:
        # German has one word for preposition and "what": "worauf", "womit".
        word, lead = "what", f"wo{'r' if preposition[0] in 'aeiouü' else ''}{preposition}"
    else:
        word, lead = ("who", "wen") if person else ("what", "was")
    clause.accusative = clause.dative = clause.governed = clause.manner = None
    return clause, word, lead


def ask_which(rng: Draw, subject: NP, past: bool) -> tuple[Clause, str, str]:
    """Draws "which book" or "how many books"."""
    clause = draw_clause(rng, ("accusative",), subject, past, positive=True)
    excluded = ("tongue", "subject", "kin")
    while clause.accusative.noun is None or clause.accusative.noun.kind in excluded:
        clause = draw_clause(rng, ("accusative",), subject, past, positive=True)
    noun = clause.accusative.noun
    clause.accusative = None
    many = noun.countable and rng.chance(0.5)
    plural = many or noun in PAIRS or noun.countable and rng.chance(0.2)
    asked = noun_phrase(DETERMINERS["how many" if many else "which"], noun, plural)
    return clause, asked.en, asked.german(ACC)


def ask_circumstance(rng: Draw, subject: NP, past: bool, direct: bool) -> tuple[Clause, str, str]:
    """Draws "where", "where to", "why" or "when".

    "when" occurs only in direct questions, because the conjunction "when" is translated as "als".
    """
    if rng.chance(0.4):
        verb = draw_verb(rng, ("location", "location", "direction", "journey"))
        # "Where do you come" would be asked for the origin, which is "woher".
        verb = VERBS["direction"][0] if verb.base == "come" else verb
        clause = draw_clause(rng, subject=subject, past=past, verb=verb, positive=True)
        clause.place = None
        return clause, "where", "wo" if verb.frame == "location" else "wohin"
    clause = draw_clause(rng, PERSONAL, subject, past, positive=True)
    if not direct or rng.chance(0.5):
        return clause, "why", "warum"
    # "When have you bought it" is no English.
    if clause.tense == PERFECT and clause.verb.past:
        clause.tense = PAST
    clause.time = clause.frequency = None
    return clause, "when", "wann"


def content_question(rng: Draw, past: bool | None = None, direct: bool = True) -> Both:
    """Draws a question with a question word.

    If `direct` is false, the question is a subordinate clause.
    """
    past = rng.chance(0.4) if past is None else past
    x = rng.random()
    subject = draw_asked(rng)
    word, lead = "", ""
    if x < 0.12:
        frames = ("accusative", "intransitive", "dative", "prepositional")
        clause = draw_clause(rng, frames, WHO, past, positive=True)
    elif x < 0.46:
        clause, word, lead = ask_object(rng, subject, past)
    elif x < 0.65:
        clause, word, lead = ask_which(rng, subject, past)
    else:
        clause, word, lead = ask_circumstance(rng, subject, past, direct)
    embedded(clause)
    if lead:
        clause.already = None
    if direct:
        question = f"{word} {english(clause, inverted=bool(lead))}?".lstrip()
        return question, f"{german(clause, SECOND, lead)}?"
    german_clause = f", {lead} {german(clause, LAST)},".replace("  ", " ")
    return f"{word} {english(clause)}".lstrip(), german_clause


# --------------------------------------------------------------------------------------------------
# Drawing of relative clauses, infinitive clauses and reported speech. A pronoun in them often
# refers to the main clause, because two unrelated persons in each sentence would teach no
# reference.

OWNABLE = nouns("house car dog bicycle garden shoe coat cat book room".split())


def coreferent(rng: Draw, np: NP) -> NP | None:
    """Returns a pronoun that refers to the person in `np`, or None to use another subject."""
    if rng.chance(0.4):
        return None
    if np.pronoun:
        return np
    if np.agreement == 1:
        return PRONOUNS["they"] if np.possessive else None
    # A noun without a known sex would need a pronoun of the German gender.
    return PRONOUNS[{"m": "he", "f": "she"}[np.sex]] if np.sex else None


def attach_relative(rng: Draw, np: NP, past: bool, avoid: Verb) -> None:
    """Adds a relative clause to the noun phrase. `avoid` is the verb of the main clause."""
    noun = np.noun
    forms = tuple(row[np.gender] for row in RELATIVE)
    person = noun.kind in ("person", "kin")
    x = rng.random()
    word = "who" if person else "that"
    # A German pronoun that is not the subject has the case of its own role ("dem", "in der") and
    # comes before the clause, whereas a subject is already a part of it.
    lead = ""
    pronoun = NP(
        word,
        word,
        np.agreement,
        np.person,
        forms,
        gender=np.gender,
        sex=np.sex,
        possessive=np.possessive,
        pronoun=True,
    )
    is_object = x < 0.6 or avoid is BE or bool(np.modifiers) or not noun.adjectives
    if noun in HOMES and x < 0.4:
        clause = Clause(draw_person(rng), VERBS["location"][0], PAST if past else PRESENT)
        preposition, _, german_preposition, *_ = PLACES[noun]
        word = f"{preposition} which"
        lead = f"{german_preposition} {forms[DAT]}"
    elif person and x < 0.12:
        whose = Determiner("whose", "whose", forms[GEN], FIXED, STRONG)
        clause = draw_copula(rng, noun_phrase(whose, rng.pick(OWNABLE), rng.chance(0.3)), past)
    elif person and x < 0.24:
        clause = draw_clause(rng, ("dative",), draw_person(rng), past)
        clause.dative = None
        word = "whom"
        lead = forms[DAT]
    elif person and x < 0.6 or BY_OBJECT[noun] and is_object:
        clause, lead = object_relative(rng, np, past, avoid, forms)
        word = "whom" if person else "that"
    elif person:
        clause = draw_clause(rng, PERSONAL, pronoun, past)
    else:
        pronoun.noun = noun
        clause = draw_copula(rng, pronoun, past)
    embedded(clause)
    if lead:
        np.relative = (f"{word} {english(clause)}", f"{lead} {german(clause, LAST)}")
    else:
        np.relative = (english(clause), german(clause, LAST))


def object_relative(
    rng: Draw, np: NP, past: bool, avoid: Verb, forms: tuple[str, ...]
) -> tuple[Clause, str]:
    """Draws "that I bought" or "whom I wait for".

    Returns the clause and the German words before its subject, with the preposition.
    """
    noun = np.noun
    # Against "buys the car that he buys".
    verbs = [verb for verb in BY_OBJECT[noun] if verb is not avoid] or BY_OBJECT[noun]
    if noun.kind in ("person", "kin") and rng.chance(0.3):
        verbs = [verb for verb in VERBS["prepositional"] if noun.kind in verb.objects]
    clause = draw_clause(
        rng, subject=draw_person(rng), past=past, verb=rng.pick(verbs), accusative=np
    )
    verb = clause.verb
    clause.accusative = clause.governed = clause.place = None
    return clause, f"{verb.preposition} {forms[verb.case]}" if verb.preposition else forms[ACC]


def draw_control(rng: Draw, past: bool | None = None) -> Clause:
    """Draws a verb with an infinitive clause: "try to", "stop doing", "ask somebody to"."""
    verb = draw_verb(
        rng, ("infinitive",) * 4 + ("gerund",) + ("dative-infinitive", "accusative-infinitive") * 2
    )
    clause = Clause(draw_person(rng), verb)
    draw_tense(rng, clause, rng.chance(0.5) if past is None else past)
    if clause.tense == PROGRESSIVE or verb.frame == "gerund" and clause.tense == MODAL:
        clause.tense = PRESENT
        clause.modal = None
    controller = clause.subject
    if verb.frame == "dative-infinitive":
        controller = clause.dative = draw_person(rng, clause.subject)
    elif verb.frame == "accusative-infinitive":
        controller = clause.accusative = draw_person(rng, clause.subject)
    clause.complement = infinitive(draw_infinitive(rng, controller), gerund=verb.frame == "gerund")
    draw_adverbials(rng, clause, trailing=False)
    return clause


def draw_report(rng: Draw, nested: bool = False) -> Clause:
    """Draws "says that", "hopes that", "asks whether" or "does not know where".

    A `nested` report has no infinitive clause in its complement.
    """
    past = rng.chance(0.35)
    if rng.chance(0.65):
        verb = rng.pick(VERBS["that"])
        conjunction = ("that", "dass")
    else:
        verb = rng.pick(VERBS["question"])
        conjunction = ("whether", "ob")
    clause = Clause(draw_person(rng), verb, PAST if past else PRESENT)
    embedded_past = past or verb.base != "hope" and rng.chance(0.4)
    # "does not know whether" is far more usual than "knows whether".
    if conjunction[0] == "whether" and verb.base == "know":
        clause.negated = True
    elif verb.frame == "question" and verb.base == "ask" and rng.chance(0.5):
        clause.accusative = draw_person(rng, clause.subject)
    if verb.frame == "question" and rng.chance(0.5):
        clause.complement = content_question(rng, embedded_past, direct=False)
    elif rng.chance(0.15) and not nested:
        clause.complement = subclause(conjunction, draw_control(rng, embedded_past))
    else:
        subject = coreferent(rng, clause.subject)
        clause.complement = subclause(conjunction, draw_any(rng, embedded_past, subject=subject))
    return clause


# --------------------------------------------------------------------------------------------------
# Statements: simple, relative, complex, reported, coordinated and with pronouns for things. Most
# sentences are of these kinds, which need the word order of main and of subordinate clauses.

REASONS = (("because", "weil"), ("because", "weil"), ("although", "obwohl"))
MOMENTS = (("before", "bevor"), ("while", "während"), ("as soon as", "sobald"), ("until", "bis"))
INTENSITIES = (("", ""), ("very ", "sehr "), ("too ", "zu "))
# Verbs that do not follow another verb with the same object, against "eats the bread and buys it".
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

    In German, the relative clause of an object comes after the verb.
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

    For "until" and "while", the main clause is a state or an activity.
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
    # Two adverbials of time would seem to belong to one clause.
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
    """Draws "and", "but" or "so". In German, the verb directly follows "deshalb"."""
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
    """Returns whether `other` can follow without subject and auxiliary in both languages."""
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


# --------------------------------------------------------------------------------------------------
# Questions, requests, commands, and sentences with numbers.

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
    # In a question, "nicht" would ask for agreement, and not whether something is so.
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
    """Draws "there is" or "there are", in German "es gibt" in the singular with the accusative."""
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


# --------------------------------------------------------------------------------------------------
# The kinds of sentences with their weights, and the pairs of a split. The weights favor kinds with
# many different sentences, because a kind with few would soon repeat itself.

VERSION = "1"  # part of the data fingerprint; must change whenever any sentence changes
SPLITS = ("train", "valid", "test")
# Bounds, so that small models with short rows can be trained on every sentence.
MIN_WORDS, MAX_WORDS = 3, 22
WEIGHTS = {
    statement: 16,
    complex_statement: 18,
    relative_statement: 12,
    report_statement: 10,
    control_statement: 7,
    purpose_statement: 3,
    impersonal_statement: 2,
    coordination: 8,
    anaphora: 6,
    polar_question: 7,
    request: 2,
    content_question: 6,
    command: 5,
    existential: 2,
    age: 1,
    price: 1,
    time_of_day: 0.4,
}
# Each kind is repeated in proportion to its weight, so that a uniform choice follows the weights.
SENTENCES = tuple(kind for kind, weight in WEIGHTS.items() for _ in range(round(5 * weight)))


def finish(en: str, de: str) -> Both:
    """Capitalizes both sides, and merges the comma after a clause with the next punctuation."""
    # Clauses bring their commas along, because only the end of the sentence shows which ones meet.
    de = de.replace(" ,", ",")
    for punctuation in ",.?!":
        de = de.replace(f",{punctuation}", punctuation)
    return en[0].upper() + en[1:], de[0].upper() + de[1:]


def sentence(rng: Draw) -> Both:
    """Draws a sentence in both languages, of a kind drawn in proportion to WEIGHTS."""
    return finish(*rng.pick(SENTENCES)(rng))


def split_of(english_sentence: str) -> str:
    """Returns the split of an English sentence, which does not depend on the seed.

    80 % of the sentences are in train, 10 % in valid and 10 % in test.
    """
    # A hash of the sentence decides, so that no sentence of one split occurs in another. Python's
    # own `hash` differs from run to run.
    bucket = zlib.crc32(english_sentence.encode()) % 10
    return SPLITS[0] if bucket < 8 else SPLITS[bucket - 7]


def sentence_pair(
    seed: int, split: str, index: int, draw: Callable[[Draw], Both] = sentence
) -> tuple[str, str]:
    """Returns an English sentence and its German translation, which `draw` draws.

    The pair is a pure function of the arguments, on every machine and in every Python version.
    Raises ValueError for an unknown split.
    """
    if split not in SPLITS:
        raise ValueError(f"split={split!r}: must be one of {', '.join(SPLITS)}")
    # Rejection sampling: sentences are drawn until one is in the split and has a suitable length.
    attempt = 0
    while True:
        key = f"{VERSION}/{seed}/{split}/{index}/{attempt}".encode()
        # Hashing gives an independent stream for each attempt, without drawing the
        # streams of earlier sentences.
        digest = hashlib.blake2b(key, digest_size=8).digest()
        pair = draw(Draw(int.from_bytes(digest, "big")))
        if split_of(pair[0]) == split and MIN_WORDS <= pair[0].count(" ") + 1 <= MAX_WORDS:
            return pair
        attempt += 1


def pairs(seed: int, split: str, count: int) -> Iterator[tuple[str, str]]:
    """Returns the first `count` pairs of the split."""
    return (sentence_pair(seed, split, index) for index in range(count))
