"""Drawing of adverbials: time, place, direction, manner, company."""

from transformer_jax.data.grammar.clauses import (
    FUTURE,
    MODAL,
    PAST,
    PERFECT,
    PRESENT,
    PROGRESSIVE,
    Clause,
)
from transformer_jax.data.grammar.morphology import ACC, ARTICLE, DAT, Noun, Verb
from transformer_jax.data.grammar.noun_phrases import NP, THE, A, Both, noun_phrase, prepositional
from transformer_jax.data.grammar.numbers import ONES, english_number, german_number
from transformer_jax.data.grammar.phrases import (
    Draw,
    certain,
    draw_modifiers,
    draw_np,
    draw_person,
    draw_possessive,
)
from transformer_jax.data.grammar.selection import KIN, OWN_PLACES, PLACE_NOUNS, TARGETS, WITH_TIME
from transformer_jax.data.grammar.vocabulary import MANNERS, NOUNS, PLACES, REGIONS, SPOTS, TIMES

MINUTES = (("a quarter", "Viertel"), ("ten", "zehn"), ("twenty", "zwanzig"), ("five", "fünf"))


def draw_clock(rng: Draw) -> Both:
    """Draws a time of day: "at half past three", "um halb vier"."""
    hour = 1 + int(rng.random() * 12)
    form = int(rng.random() * 6)
    if form < 2:
        return f"at {ONES[hour]} o'clock", f"um {german_number(hour, last=False)} Uhr"
    following = hour % 12 + 1
    if form == 2:
        return f"at half past {ONES[hour]}", f"um halb {german_number(following)}"
    minutes, german_minutes = rng.pick(MINUTES)
    if form < 5:
        return f"at {minutes} past {ONES[hour]}", f"um {german_minutes} nach {german_number(hour)}"
    return (
        f"at {minutes} to {ONES[following]}",
        f"um {german_minutes} vor {german_number(following)}",
    )


def draw_place_np(rng: Draw, noun: Noun, owner: NP | None) -> NP:
    modifiers = draw_modifiers(rng, noun, A)
    determiner = THE
    x = rng.random()
    if x > 0.8 and noun in OWN_PLACES:
        determiner = draw_possessive(rng, owner)
    elif x < 0.1 and modifiers:
        determiner = A
    return noun_phrase(determiner, noun, False, modifiers)


def draw_place(
    rng: Draw, owner: NP | None, choice: tuple[Noun, ...] = PLACE_NOUNS, region: float = 0.15
) -> Both:
    """Draws a place: "in Berlin", "at the station", "im alten Haus".

    `region` is the probability of a city or country. `choice` are the other places.
    """
    if rng.chance(region):
        english_name, german_place, _, _ = rng.pick(REGIONS)
        return f"in {english_name}", german_place
    noun = rng.pick(choice)
    np = draw_place_np(rng, noun, owner)
    return f"{PLACES[noun][0]} {np.en}", prepositional(PLACES[noun][2], np, DAT)


def draw_direction(rng: Draw, verb: Verb, owner: NP | None) -> Both:
    """Draws a direction: "to Berlin", "into the garden", "in den Garten"."""
    if verb.frame == "journey":
        english_name, _, german_place, _ = rng.pick(REGIONS)
        return f"to {english_name}", german_place
    if rng.chance(0.15):
        return "home", "nach Hause"
    noun = rng.pick(PLACE_NOUNS if verb.base != "drive" else TARGETS)
    np = draw_place_np(rng, noun, owner)
    _, preposition, _, german_preposition, case = PLACES[noun]
    german_case = ACC if case == "acc" else DAT
    return f"{preposition} {np.en}", prepositional(german_preposition, np, german_case)


def draw_spot(rng: Draw, case: int, owner: NP | None) -> Both:
    """Draws a spot on, under or behind something.

    The case is the dative for a place and the accusative for a direction.
    """
    preposition, german_preposition, noun = rng.pick(SPOTS)
    modifiers = draw_modifiers(rng, noun, A) if rng.chance(0.5) else ()
    determiner = THE if rng.chance(0.8) else draw_possessive(rng, owner)
    np = noun_phrase(determiner, noun, False, modifiers)
    return f"{preposition} {np.en}", prepositional(german_preposition, np, case)


def draw_time(rng: Draw, clause: Clause) -> Both | None:
    """Draws an adverbial of time that agrees with the tense, or None."""
    tense = clause.tense
    verb = clause.verb
    x = rng.random()
    past = tense == PAST or tense == MODAL and clause.modal.past
    takes_time = verb.is_action or past and verb.base in WITH_TIME
    if tense == PERFECT or not takes_time:
        return None
    if "clock" in verb.flags and tense != PROGRESSIVE and x < 0.35:
        return _time_of_day(rng, past, tense >= FUTURE)
    if tense == PROGRESSIVE:
        return rng.pick(TIMES["now"]) if x < 0.4 else None
    if x > (0.55 if past else 0.45):
        return None
    if x < 0.05:
        return rng.pick(TIMES["any"])
    if past or tense == FUTURE or tense == MODAL and clause.modal.german:
        if x < 0.1:
            number = 2 + int(rng.random() * 11)
            unit, german_unit = rng.pick(TIMES["unit"])
            english = f"{english_number(number)} {unit}s"
            german = f"{german_number(number)} {german_unit}"
            return (
                (f"{english} ago", f"vor {german}") if past else (f"in {english}", f"in {german}")
            )
        return rng.pick(TIMES["past" if past else "future"])
    if clause.negated:
        return None
    can_last = verb.frame in ("intransitive", "direction", "journey", "location")
    is_season = can_last and "clock" not in verb.flags and x < 0.2
    return rng.pick(TIMES["season" if is_season else "habit"])


def _time_of_day(rng: Draw, past: bool, future: bool) -> Both:
    """Draws a time of day, and the day in half of the cases."""
    day, german_day = "", ""
    if past:
        day, german_day = "yesterday ", "gestern "
    elif future:
        day, german_day = "tomorrow ", "morgen "
    time, german_time = draw_clock(rng)
    return (day + time, german_day + german_time) if rng.chance(0.5) else (time, german_time)


def draw_adverbials(rng: Draw, clause: Clause, trailing: bool) -> None:
    """Draws the adverbials of a clause.

    `trailing` is whether they may stand at its end in English. A complement there could be
    understood to include them.
    """
    verb = clause.verb
    subject = clause.subject
    clause.time = draw_time(rng, clause)
    clause.lead_time = clause.time is not None and (not trailing or rng.chance(0.35))
    is_habit = clause.tense == PRESENT and verb.is_action and not (clause.time or clause.negated)
    if is_habit and rng.chance(0.35):
        clause.frequency = rng.pick(TIMES["often"])
    if not trailing:
        return
    takes_already = clause.tense == PERFECT and certain(clause.accusative) and not clause.place
    if takes_already and rng.chance(0.5):
        clause.already = ("already", "schon")
    if clause.negated or clause.already:
        return
    manners = verb.flags & MANNERS.keys()
    if manners and rng.chance(0.25):
        clause.manner = rng.pick(MANNERS[min(manners)])
    elif "for" in verb.flags and rng.chance(0.25):
        person = draw_person(rng, subject, 0.2)
        clause.place = (f"for {person.object}", f"für {person.german(ACC)}")
    elif "place" in verb.flags and rng.chance(0.25):
        clause.place = draw_place(rng, subject)
    takes_company = "with" in verb.flags or verb.frame in ("direction", "journey")
    if takes_company and rng.chance(0.15):
        if verb.base == "travel" and clause.place:
            noun = NOUNS[rng.pick(("train", "bus", "car", "ship", "plane"))]
            german = f"{ARTICLE[DAT][noun.gender]} {noun.singular[DAT]}"
            clause.company = (f"by {noun.english}", f"mit {german}")
        elif subject.sex or subject.pronoun:
            person = draw_np(rng, KIN, subject)
            clause.company = (f"with {person.object}", f"mit {person.german(DAT)}")
