"""Drawing of clauses without a complement."""

from transformer_jax.data.grammar.adverbials import (
    draw_adverbials,
    draw_direction,
    draw_place,
    draw_spot,
)
from transformer_jax.data.grammar.clauses import FUTURE, MODAL, PAST, PERFECT, Clause
from transformer_jax.data.grammar.morphology import ACC, DAT, NOM, Adjective, Verb
from transformer_jax.data.grammar.noun_phrases import BARE, NP, PRONOUNS, THE, A, noun_phrase
from transformer_jax.data.grammar.phrases import (
    Draw,
    certain,
    draw_modifiers,
    draw_np,
    draw_object,
    draw_person,
    fitting,
)
from transformer_jax.data.grammar.selection import (
    ANIMALS,
    DYNAMIC,
    FRAMES,
    HOMES,
    KIN,
    MALE_TRADES,
    PAST_MODALS,
    PEOPLE,
    PERSONAL,
    PORTABLE,
    PRESENT_MODALS,
    SUBJECTS,
    TENSES,
    THINGS,
)
from transformer_jax.data.grammar.vocabulary import BE, DEGREES, MODALS, NOUNS, VERBS

AT_HOME = ("at home", "zu Hause")
# verbs of actions that nobody intends
UNINTENDED = ("get", "catch", "fall", "lose", "forget", "find")


def draw_verb(rng: Draw, frames: tuple[str, ...], dynamic: bool = False) -> Verb:
    """Draws a verb of these frames. With `dynamic`, it is an intended action."""
    verb = rng.pick(VERBS[rng.pick(frames)])
    while dynamic and (not verb.is_action or verb.base in UNINTENDED):
        verb = rng.pick(VERBS[rng.pick(frames)])
    return verb


def draw_subject(rng: Draw, verb: Verb) -> NP:
    """Draws a subject that fits the verb."""
    if verb.frame in ("possession", "position"):
        return draw_np(rng, verb.nouns, None, "definite")
    if "vehicle" in verb.flags and rng.chance(0.4):
        return noun_phrase(THE, NOUNS[rng.pick(("train", "bus", "ship"))])
    if "animal" in verb.flags and rng.chance(0.15):
        return draw_np(rng, ANIMALS, None, "definite")
    return draw_person(rng)


def draw_tense(rng: Draw, clause: Clause, past: bool) -> None:
    """Draws the tense of a clause, and its modal verb if it has one."""
    verb = clause.verb
    x = rng.random()
    animate = clause.subject.pronoun or clause.subject.sex or clause.subject.possessive
    if past:
        clause.tense = PAST if verb.past else PERFECT
        if x < 0.12 and animate and verb.is_action and "event" not in verb.flags:
            clause.tense = MODAL
            clause.modal = rng.pick(PAST_MODALS)
    elif verb.is_action:
        clause.tense = rng.pick(TENSES)
        if clause.tense == MODAL and animate:
            clause.modal = rng.pick(PRESENT_MODALS)
        elif clause.tense == MODAL:
            clause.tense = FUTURE
    elif x < 0.06 and verb.base == "be":
        clause.tense = FUTURE


def draw_arguments(rng: Draw, clause: Clause) -> None:
    """Draws the objects that the verb governs, and its place.

    Under negation, all objects but the accusative are definite.
    """
    verb = clause.verb
    owner = clause.subject
    frame = verb.frame
    kind = "definite" if clause.negated else "any"
    if frame in ("accusative", "ditransitive", "dative-to", "placing"):
        if clause.accusative is None:
            has_kein = clause.negated and rng.chance(0.5)
            clause.accusative = draw_object(rng, verb, owner, "negated" if has_kein else kind)
    elif frame == "pleasing":
        clause.accusative = draw_np(rng, verb.nouns, owner, "definite")
    if frame in ("dative", "ditransitive", "dative-to", "possession"):
        if kind == "any" or rng.chance(0.5):
            clause.dative = draw_person(rng, owner)
        else:
            clause.dative = draw_np(rng, KIN, owner)
        clause.to = frame == "dative-to" or frame == "ditransitive" and rng.chance(0.25)
        if frame == "ditransitive" and clause.dative.pronoun:
            # "gives her books" would be ambiguous
            clause.to |= clause.accusative.determiner is BARE
    elif frame == "prepositional":
        clause.governed = draw_object(rng, verb, owner, kind)
    elif frame in ("direction", "journey"):
        clause.place = draw_direction(rng, verb, owner)
    elif frame == "location":
        if verb.base == "live":
            clause.place = draw_place(rng, owner, HOMES, 0.5)
        elif rng.chance(0.15):
            clause.place = AT_HOME
        else:
            clause.place = draw_place(rng, owner)
    elif frame in ("position", "placing"):
        is_direction = frame == "placing" and verb.base == "put"
        clause.place = draw_spot(rng, ACC if is_direction else DAT, owner)


def draw_clause(
    rng: Draw,
    frames: tuple[str, ...] = FRAMES,
    subject: NP | None = None,
    past: bool | None = None,
    *,
    verb: Verb | None = None,
    accusative: NP | None = None,
    trailing: bool = True,
    plain: bool = False,
    positive: bool = False,
) -> Clause:
    """Draws a clause without a complement.

    Arguments that are given are not drawn. For `trailing`, see `draw_adverbials`. A `plain` clause
    has no modal verb, no negation and no adverbials. A `positive` clause has no negation.
    """
    verb = verb or draw_verb(rng, frames)
    clause = Clause(subject or draw_subject(rng, verb), verb, accusative=accusative)
    past = (rng.chance(0.35) if past is None else past) or "event" in verb.flags
    if plain:
        if past:
            clause.tense = PAST if verb.past else PERFECT
        draw_arguments(rng, clause)
        return clause
    draw_tense(rng, clause, past)
    clause.negated = rng.chance(0.13) and certain(clause.subject) and not positive
    if clause.negated and clause.modal and clause.modal.first in ("must", "like"):
        clause.modal = MODALS["can"]
    draw_arguments(rng, clause)
    draw_adverbials(rng, clause, trailing)
    return clause


def draw_copula(rng: Draw, subject: NP | None = None, past: bool | None = None) -> Clause:
    """Draws a clause with "be": a quality, a comparison, a trade or a place."""
    if subject is None:
        if rng.chance(0.5):
            subject = draw_person(rng)
        elif rng.chance(0.05):
            subject = draw_np(rng, SUBJECTS)
        else:
            subject = draw_np(rng, THINGS + ANIMALS, None, "definite")
    clause = Clause(subject, BE)
    draw_tense(rng, clause, rng.chance(0.3) if past is None else past)
    if clause.tense == MODAL:
        clause.tense = PAST
    clause.negated = rng.chance(0.1) and certain(subject)
    x = rng.random()
    noun = subject.noun
    is_trade = noun is not None and noun.kind == "person"
    if x < 0.12 and not clause.negated and subject.sex == "m" and not is_trade:
        trade = rng.pick(MALE_TRADES)
        modifiers = draw_modifiers(rng, trade, A)
        np = noun_phrase(A, trade, False, modifiers)
        # "ist Arzt" has no article, "ist ein guter Arzt" has one
        clause.predicate = np.en, np.german(NOM) if modifiers else trade.singular[NOM]
        return clause
    if x < 0.3 and noun in PORTABLE:
        clause.predicate = draw_spot(rng, DAT, None)
        return clause
    if x < 0.3 and noun is None:
        clause.predicate = AT_HOME if rng.chance(0.2) else draw_place(rng, subject)
        return clause
    modifiers = subject.modifiers if subject.determiner else ()
    adjective = rng.pick(fitting(noun or PEOPLE[0], modifiers))
    is_concrete = noun is None or noun.kind not in ("tongue", "subject")
    if x < 0.5 and adjective.comparable and is_concrete:
        draw_comparison(rng, clause, adjective)
    elif rng.chance(0.35) and not clause.negated and adjective.comparable:
        degree, german_degree = rng.pick(DEGREES)
        clause.predicate = (
            f"{degree} {adjective.english}",
            f"{german_degree} {adjective.german}",
        )
    else:
        clause.predicate = (adjective.english, adjective.german)
    return clause


def draw_comparison(rng: Draw, clause: Clause, adjective: Adjective) -> None:
    """Draws a comparison: "older than", "as old as", "the oldest".

    The compared phrase is an object in English and a nominative in German.
    """
    subject = clause.subject
    x = rng.random()
    if x < 0.2 and subject.determiner and not clause.negated and subject.agreement == 2:
        clause.predicate = f"the {adjective.superlative[0]}", f"am {adjective.german_superlative}en"
        return
    if not subject.noun or subject.noun.kind in ("person", "kin"):
        other = draw_person(rng, subject)
    else:
        kind = subject.noun.kind
        same_kind = tuple(noun for noun in THINGS + ANIMALS if noun.kind == kind)
        other = draw_np(rng, same_kind, subject, "definite")
    if other.en == subject.en:
        other = PRONOUNS["they"]
    if x < 0.7:
        clause.predicate = (
            f"{adjective.comparative[0]} than {other.object}",
            f"{adjective.german_comparative} als {other.german(NOM)}",
        )
    else:
        clause.predicate = (
            f"as {adjective.english} as {other.object}",
            f"so {adjective.german} wie {other.german(NOM)}",
        )


def draw_any(
    rng: Draw, past: bool | None = None, trailing: bool = True, subject: NP | None = None
) -> Clause:
    """Draws a clause of any kind without a complement."""
    if rng.chance(0.2):
        return draw_copula(rng, subject, past)
    frames = FRAMES if subject is None else PERSONAL
    return draw_clause(rng, frames, subject, past, trailing=trailing)


def draw_infinitive(rng: Draw, controller: NP, frames: tuple[str, ...] = DYNAMIC) -> Clause:
    """Draws a clause without tense. Its subject is the `controller`."""
    clause = Clause(controller, draw_verb(rng, frames, dynamic=True))
    draw_arguments(rng, clause)
    return clause
