"""Questions with a question word.

The functions `ask_...` return the clause, the English question words and the German ones.
"""

from transformer_jax.data.grammar.clauses import (
    LAST,
    PAST,
    PERFECT,
    SECOND,
    Clause,
    embedded,
    english,
    german,
)
from transformer_jax.data.grammar.morphology import ACC
from transformer_jax.data.grammar.noun_phrases import (
    DETERMINERS,
    NP,
    PRONOUNS,
    WHO,
    Both,
    noun_phrase,
)
from transformer_jax.data.grammar.phrases import Draw, draw_person
from transformer_jax.data.grammar.selection import PAIRS, PERSONAL
from transformer_jax.data.grammar.simple_clauses import draw_clause, draw_verb
from transformer_jax.data.grammar.vocabulary import VERBS


def draw_asked(rng: Draw) -> NP:
    """Draws the subject of a question."""
    return PRONOUNS["you"] if rng.chance(0.4) else draw_person(rng)


def ask_object(rng: Draw, subject: NP, past: bool) -> tuple[Clause, str, str]:
    """Draws "who" or "what" as object, by the first class of objects of the verb."""
    clause = draw_clause(
        rng, ("accusative", "accusative", "dative", "prepositional"), subject, past, positive=True
    )
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

    "when" occurs in direct questions only, because the conjunction "when" is "als".
    """
    if rng.chance(0.4):
        verb = draw_verb(rng, ("location", "location", "direction", "journey"))
        verb = VERBS["direction"][0] if verb.base == "come" else verb
        clause = draw_clause(rng, subject=subject, past=past, verb=verb, positive=True)
        clause.place = None
        return clause, "where", "wo" if verb.frame == "location" else "wohin"
    clause = draw_clause(rng, PERSONAL, subject, past, positive=True)
    if not direct or rng.chance(0.5):
        return clause, "why", "warum"
    if clause.tense == PERFECT and clause.verb.past:
        clause.tense = PAST
    clause.time = clause.frequency = None
    return clause, "when", "wann"


def content_question(rng: Draw, past: bool | None = None, direct: bool = True) -> Both:
    """Draws a question with a question word.

    If `direct` is false, it is a subordinate clause.
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
