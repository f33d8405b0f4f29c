"""Drawing of relative clauses, infinitive clauses and reported speech."""

from transformer_jax.data.grammar.adverbials import draw_adverbials
from transformer_jax.data.grammar.clauses import (
    LAST,
    MODAL,
    PAST,
    PRESENT,
    PROGRESSIVE,
    Clause,
    embedded,
    english,
    german,
    infinitive,
    subclause,
)
from transformer_jax.data.grammar.morphology import ACC, DAT, FIXED, GEN, RELATIVE, STRONG, Verb
from transformer_jax.data.grammar.noun_phrases import NP, PRONOUNS, Determiner, noun_phrase
from transformer_jax.data.grammar.phrases import Draw, draw_person
from transformer_jax.data.grammar.questions import content_question
from transformer_jax.data.grammar.selection import BY_OBJECT, HOMES, PERSONAL
from transformer_jax.data.grammar.simple_clauses import (
    draw_any,
    draw_clause,
    draw_copula,
    draw_infinitive,
    draw_tense,
    draw_verb,
)
from transformer_jax.data.grammar.vocabulary import BE, PLACES, VERBS, nouns

OWNABLE = nouns("house car dog bicycle garden shoe coat cat book room".split())


def coreferent(rng: Draw, np: NP) -> NP | None:
    """Returns a pronoun for the person of `np`, or None for another subject."""
    if rng.chance(0.4):
        return None
    if np.pronoun:
        return np
    if np.agreement == 1:
        return PRONOUNS["they"] if np.possessive else None
    return PRONOUNS[{"m": "he", "f": "she"}[np.sex]] if np.sex else None


def attach_relative(rng: Draw, np: NP, past: bool, avoid: Verb) -> None:
    """Gives the noun phrase a relative clause. `avoid` is the verb of the main clause."""
    noun = np.noun
    forms = tuple(row[np.gender] for row in RELATIVE)
    person = noun.kind in ("person", "kin")
    x = rng.random()
    word = "who" if person else "that"
    lead = ""  # the German words before the subject, where the pronoun is no subject
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
