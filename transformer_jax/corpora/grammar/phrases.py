"""Drawing phrases and simple clauses, whose words fit together, from a random stream."""

import random

from transformer_jax.corpora.grammar.clauses import (
    BARE,
    DETERMINERS,
    FUTURE,
    MODAL,
    NAMES,
    NOT_A,
    NP,
    PAST,
    PERFECT,
    POSSESSIVES,
    PRESENT,
    PROGRESSIVE,
    PRONOUNS,
    SIRS,
    THE,
    A,
    Both,
    Clause,
    Determiner,
    conjoined,
    noun_phrase,
    numeral,
    prepositional,
)
from transformer_jax.corpora.grammar.morphology import (
    ACC,
    ARTICLE,
    BE,
    DAT,
    DEGREES,
    MANNERS,
    MODALS,
    NOM,
    NOUNS,
    ONES,
    PLACES,
    REGIONS,
    SINGULAR,
    SPOTS,
    TIMES,
    VERBS,
    Adjective,
    Noun,
    Verb,
    english_number,
    german_number,
    nouns,
)

# --------------------------------------------------------------------------------------------------
# Selection classes: which words fit together, and the weights of choices.
#
# They keep the sentences plausible: one eats food, for example, but reads books. A choice that
# occurs several times in a tuple has a higher weight, so that one uniform draw serves all choices.

PEOPLE = nouns(["person"])
KIN = nouns(["kin"])
ANIMALS = nouns(["animal"])
SUBJECTS = nouns(["subject", "tongue"])
# Masculine in German: a woman's trade would be another word, "Ärztin", which the lexicon lacks.
MALE_TRADES = nouns(
    "teacher student doctor farmer baker cook waiter policeman painter writer engineer lawyer "
    "driver singer artist".split()
)
OWNED = set(
    nouns(
        "friend teacher neighbour colleague guest doctor customer lawyer child reading wear "
        "vehicle thing device furniture room house garden dog cat horse idea plan problem".split()
    )
)
# Of these, "a father" or "two seas" would be odd.
UNIQUE = set(nouns("father mother grandfather grandmother king queen sea".split()))
# In the plural, because a single glove is rarely what is meant.
PAIRS = set(nouns("shoe glove".split()))
SINGLE_KIN = KIN[:10]
# The plurals of these have an article, to avoid "tidies up rooms".
FIXTURES = {"room", "building", "opening", "device", "vehicle", "furniture", "outdoors"}
# In a comparative before the noun, these name one of two ("the older brother").
RELATIVE_SIZES = {"old", "young", "big", "small", "tall"}
THINGS = nouns(
    "food drink reading wear vehicle thing device furniture opening building room outdoors event "
    "topic".split()
)
INANIMATE = nouns("reading wear vehicle thing device furniture".split())
COLOURS = {"white", "black", "grey", "brown", "red", "blue", "green", "yellow"}
# A phrase has at most one adjective from each field, to avoid "the old car is new".
FIELDS = [
    COLOURS,
    *(
        set(field.split())
        for field in (
            "old new young",
            "big small",
            "hot cold warm",
            "cheap expensive",
            "clean dirty",
            "good bad terrible",
            "long short",
            "beautiful ugly",
            "fast slow",
            "sweet sour",
            "difficult easy",
            "boring exciting interesting",
            "strong weak",
            "happy sad",
        )
    ),
]
SIZES = {"big", "small", "old", "new", "beautiful", "expensive", "cheap", "young"}
OWN_PLACES = set(nouns("house room garden school village city".split()))
PLACE_NOUNS = tuple(PLACES)
HOMES = nouns("house city village castle island farm".split())
# Places that one can drive to, unlike a room or a balcony.
TARGETS = tuple(
    noun
    for noun in PLACES
    if noun.kind != "room" and noun.english not in ("garden", "balcony", "bridge", "house")
)
PORTABLE = set(nouns("reading wear thing".split()))
SPEAKERS = tuple(PRONOUNS[word] for word in "I I you you he he she she we we they".split())
PLURALS = tuple(
    DETERMINERS[word] for word in ("the", "the", "the", "", "", "", "this", "many", "some", "all")
)
SINGULARS = tuple(
    DETERMINERS[word] for word in ("the",) * 5 + ("a",) * 5 + ("this", "this", "every")
)
DEFINITE = tuple(DETERMINERS[word] for word in ("the", "the", "the", "this"))
# The determiners of definite phrases, behind which "nicht" and "schon" stand (`certain`).
CERTAIN = {DETERMINERS[word] for word in ("the", "this", *POSSESSIVES)}
# For each noun, the verbs that it can be the object of, because a relative clause is drawn from its
# noun.
BY_OBJECT = {
    noun: tuple(verb for verb in VERBS["accusative"] if noun in verb.nouns)
    for noun in NOUNS.values()
}
FRAMES = (
    ("accusative",) * 20
    + ("intransitive",) * 10
    + ("prepositional",) * 8
    + ("dative", "ditransitive") * 4
    + ("direction", "location", "pleasing") * 3
    + ("dative-to", "journey", "position", "placing", "possession") * 2
)
DYNAMIC = tuple(frame for frame in FRAMES if frame not in ("pleasing", "position", "possession"))
# Frames of purposes ("in order to ..."), which are actions on something.
AIMS = tuple(
    frame
    for frame in DYNAMIC
    if frame in ("accusative", "dative", "ditransitive", "dative-to", "placing")
)
# Frames with a person as subject, for sentences whose subject is drawn before the verb.
PERSONAL = tuple(frame for frame in FRAMES if frame not in ("position", "possession"))
TENSES = (PRESENT,) * 8 + (PROGRESSIVE,) * 5 + (PERFECT,) * 2 + (FUTURE,) * 2 + (MODAL,) * 3
PRESENT_MODALS = tuple(
    MODALS[word] for word in "can can must want want would should may have like".split()
)
PAST_MODALS = tuple(MODALS[word] for word in "could wanted had".split())
# States that take an adverbial of time in the past tense, unlike "knew" or "liked".
WITH_TIME = {"see", "hear", "be"}


# --------------------------------------------------------------------------------------------------
# Drawing noun phrases from a random stream.
#
# Restrictions that German word order or articles require are applied when a phrase is drawn,
# because rendering must not choose anything: both languages would then need the same choice.


class Draw:
    """Random choices from a seeded stream.

    They use only `random()`, because its values are the same in every Python version, while other
    methods of `random.Random` may change.
    """

    def __init__(self, seed: int):
        self.random = random.Random(seed).random

    def pick(self, options):
        """Returns one of the options, chosen uniformly."""
        # Not `randrange`, whose use of the stream may differ between versions of Python.
        return options[int(self.random() * len(options))]

    def chance(self, probability: float) -> bool:
        return self.random() < probability


def draw_number(rng: Draw) -> int:
    """Draws a number from 2 to 9999, mostly a small one.

    101, 201 and so on are excluded, because German does not use them before a noun.
    """
    x = rng.random()
    # Small numbers mostly, as in texts, but enough large ones to learn how they are composed.
    count = 11 if x < 0.7 else 98 if x < 0.96 else 998 if x < 0.99 else 9997
    number = 2 + int(rng.random() * count)
    return number if number % 100 != 1 else number + 1


def draw_modifiers(rng: Draw, noun: Noun, determiner: Determiner) -> tuple:
    """Draws up to two adjectives, of which the second is a color.

    Definite phrases may have a comparative or a superlative instead.
    """
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
    # English has an order of adjectives: size and age before color.
    if second.english in COLOURS and adjective.english in SIZES:
        return adjective.positive, second.positive
    return (adjective.positive,)


def fitting(noun: Noun, modifiers: tuple) -> list[Adjective]:
    """Returns the adjectives that fit a noun with modifiers, to avoid "the old car is new"."""
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
    """Draws a possessive, which mostly refers to `owner`."""
    if owner and owner.possessive and rng.chance(0.8):
        return DETERMINERS[owner.possessive]
    return DETERMINERS[rng.pick(("my", "my", "your", "his", "her", "our", "their"))]


def draw_determiner(rng: Draw, noun: Noun, plural: bool, owner: NP | None, kind: str) -> Determiner:
    """Draws a determiner that fits the noun.

    `kind` is "any", "definite", "indefinite", or "negated" for an object under negation.
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
    """Draws a phrase with a noun from `choice`.

    `owner` is the phrase that a possessive refers to. For `kind`, see `draw_determiner`. `number`
    is SINGULAR, PLURAL, or None for either.
    """
    noun = rng.pick(choice)
    # One further draw, against "the boy sees the boy". An equal one is rare then, and accepted.
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
    """Draws a person: a pronoun, a name, a relative or a profession.

    The person differs from the `owner`, which is the subject of the clause. `pronoun` is the
    probability of a pronoun.
    """
    x = rng.random()
    if x < pronoun:
        person = rng.pick(SPEAKERS)
        # "I see us" and "we see me" would need a reflexive pronoun.
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
    # Names and pronouns can't be negated by "kein".
    if "person" in verb.objects and kind != "negated" and rng.chance(0.5):
        return draw_person(rng, owner)
    if "new" in verb.flags and kind == "any":
        kind = "indefinite"
    return draw_np(rng, verb.nouns, owner, kind)


def certain(np: NP | None) -> bool:
    """Returns whether the phrase is definite. Only then do "nicht" and "schon" follow it."""
    return np is None or bool(np.forms) or np.determiner in CERTAIN


# --------------------------------------------------------------------------------------------------
# Drawing adverbials: time, place, direction, manner, company. Each agrees with the tense or with a
# class of the verb, so that nobody sleeps quickly or will leave yesterday.

MINUTES = (("a quarter", "Viertel"), ("ten", "zehn"), ("twenty", "zwanzig"), ("five", "fünf"))


def draw_clock(rng: Draw) -> Both:
    """Draws a time of day: "at half past three", "um halb vier"."""
    hour = 1 + int(rng.random() * 12)
    form = int(rng.random() * 6)
    if form < 2:
        return f"at {ONES[hour]} o'clock", f"um {german_number(hour, last=False)} Uhr"
    # German counts the half hour toward the next hour: "halb vier" is half past three.
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

    `region` is the probability of a city or country. Otherwise the place is one of `choice`.
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
    """Draws a place on, under or behind something.

    The German `case` is the dative for a location and the accusative for a direction.
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
    # "has bought it yesterday" is no English, although German has the same perfect for both tenses.
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
    # "does not work every day" would leave open what is negated.
    if clause.negated:
        return None
    can_last = verb.frame in ("intransitive", "direction", "journey", "location")
    is_season = can_last and "clock" not in verb.flags and x < 0.2
    return rng.pick(TIMES["season" if is_season else "habit"])


def _time_of_day(rng: Draw, past: bool, future: bool) -> Both:
    """Draws a time of day, in half of the cases together with the day."""
    day, german_day = "", ""
    if past:
        day, german_day = "yesterday ", "gestern "
    elif future:
        day, german_day = "tomorrow ", "morgen "
    time, german_time = draw_clock(rng)
    return (day + time, german_day + german_time) if rng.chance(0.5) else (time, german_time)


def draw_adverbials(rng: Draw, clause: Clause, trailing: bool) -> None:
    """Draws the adverbials of a clause.

    `trailing` is whether they may be at its end in English. They must not if a complement is there,
    because they could be understood as part of it.
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
        # `min`, because the order of a set of strings differs from run to run.
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


# --------------------------------------------------------------------------------------------------
# Drawing clauses without a complement, which is drawn by the functions of each kind of sentence.

AT_HOME = ("at home", "zu Hause")
# Verbs of unintended actions, which nobody tries or promises to do.
UNINTENDED = ("get", "catch", "fall", "lose", "forget", "find")


def draw_verb(rng: Draw, frames: tuple[str, ...], dynamic: bool = False) -> Verb:
    """Draws a verb with one of these frames. With `dynamic`, it is an intended action."""
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
        # A modal verb needs a subject that can want or be allowed something, so a thing gets the
        # future.
        elif clause.tense == MODAL:
            clause.tense = FUTURE
    elif x < 0.06 and verb.base == "be":
        clause.tense = FUTURE


def draw_arguments(rng: Draw, clause: Clause) -> None:
    """Draws the objects that the verb governs, and its adverbial of place.

    Under negation, all objects except the accusative are definite.
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

    Only arguments that are not given are drawn. For `trailing`, see `draw_adverbials`. A `plain`
    clause has no modal verb, no negation and no adverbials. A `positive` clause has no negation.
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
    # "must not" forbids, but "muss nicht" permits. With "gern", "nicht" would stand on its wrong
    # side.
    if clause.negated and clause.modal and clause.modal.first in ("must", "like"):
        clause.modal = MODALS["can"]
    draw_arguments(rng, clause)
    draw_adverbials(rng, clause, trailing)
    return clause


def draw_copula(rng: Draw, subject: NP | None = None, past: bool | None = None) -> Clause:
    """Draws a clause with "be": a property, a comparison, a profession or a place."""
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
    # Of men only, because the names of trades are masculine.
    if x < 0.12 and not clause.negated and subject.sex == "m" and not is_trade:
        trade = rng.pick(MALE_TRADES)
        modifiers = draw_modifiers(rng, trade, A)
        np = noun_phrase(A, trade, False, modifiers)
        # "ist Arzt" has no article, but "ist ein guter Arzt" has one
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

    The phrase compared with is in the object form in English and in the nominative in German.
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
    # "Anna is older than Anna".
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
    """Draws a clause without tense, whose subject is the `controller`."""
    clause = Clause(controller, draw_verb(rng, frames, dynamic=True))
    draw_arguments(rng, clause)
    return clause
