"""Drawing of phrases and clauses for the built-in English-German grammar: what fits together, from
one random stream.

Light selection classes keep the sentences plausible (one eats food and reads books), and every
restriction that the German word order or article depends on is made here, when a phrase is chosen,
and not when it is spelled out.
"""

import random

from transformer_jax.data.grammar.morphology import (
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
from transformer_jax.data.grammar.syntax import (
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


class Draw:
    """Choices from one seeded stream; `random()` alone is the same in every version of Python."""

    def __init__(self, seed: int):
        self.random = random.Random(seed).random

    def pick(self, options):
        return options[int(self.random() * len(options))]

    def chance(self, probability: float) -> bool:
        return self.random() < probability


PEOPLE, KIN, ANIMALS, SUBJECTS = (
    nouns(kinds.split()) for kinds in ("person", "kin", "animal", "subject tongue")
)
MALE_TRADES = nouns(
    "teacher student doctor farmer baker cook waiter policeman painter writer engineer lawyer driver "
    "singer artist".split()
)
OWNED = set(
    nouns(
        "friend teacher neighbour colleague guest doctor customer lawyer child reading wear vehicle thing "
        "device furniture room house garden dog cat horse idea plan problem".split()
    )
)
UNIQUE = set(nouns("father mother grandfather grandmother king queen sea".split()))
PAIRS = set(nouns("shoe glove".split()))
SINGLE_KIN = KIN[:10]
# no "tidies up rooms"
FIXTURES = {"room", "building", "opening", "device", "vehicle", "furniture", "outdoors"}
RELATIVE_SIZES = {"old", "young", "big", "small", "tall"}
THINGS = nouns(
    "food drink reading wear vehicle thing device furniture opening building room outdoors event "
    "topic".split()
)
INANIMATE = nouns("reading wear vehicle thing device furniture".split())
COLOURS = {"white", "black", "grey", "brown", "red", "blue", "green", "yellow"}
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
]  # one of each field at a time: not "the old car is new"
SIZES = {"big", "small", "old", "new", "beautiful", "expensive", "cheap", "young"}
OWN_PLACES = set(nouns("house room garden school village city".split()))
PLACE_NOUNS, HOMES = tuple(PLACES), nouns("house city village castle island farm".split())
TARGETS = tuple(
    noun
    for noun in PLACES  # where one can drive
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
CERTAIN = {DETERMINERS[word] for word in ("the", "this", *POSSESSIVES)}
BY_OBJECT = {
    noun: tuple(verb for verb in VERBS["accusative"] if noun in verb.nouns)
    for noun in NOUNS.values()
}


def draw_number(d: Draw) -> int:
    """Mostly small, never one more than a round hundred, which German nouns do not follow."""
    x = d.random()
    n = 2 + int(d.random() * (11 if x < 0.7 else 98 if x < 0.96 else 998 if x < 0.99 else 9997))
    return n if n % 100 != 1 else n + 1


def draw_modifiers(d: Draw, noun: Noun, determiner: Determiner) -> tuple:
    """No adjective, one, or two, of which the second is a colour; superlatives only where they make
    sense.
    """
    if d.random() > 0.32 or not noun.adjectives or noun.kind in ("tongue", "subject"):
        return ()
    adjective = d.pick(noun.adjectives)
    if (
        adjective.comparable
        and determiner in CERTAIN
        and noun.countable
        and noun not in UNIQUE
        and d.chance(0.3)
    ):
        if adjective.english in RELATIVE_SIZES:
            superlative = determiner.singular != "this" and d.chance(0.6)
            return (adjective.superlative if superlative else adjective.comparative,)
        if determiner is THE:
            return (adjective.superlative,)
    second = d.pick(noun.adjectives)
    if second.english in COLOURS and adjective.english in SIZES:
        return adjective.positive, second.positive
    return (adjective.positive,)


def fitting(noun: Noun, modifiers: tuple) -> list[Adjective]:
    """The adjectives that can be said of a noun which has these modifiers already: not "the old car
    is new".
    """
    if not modifiers:
        return noun.adjectives
    said = {english_word for english_word, _ in modifiers}
    excluded = said.union(*(field for field in FIELDS if field & said))
    return [
        adjective
        for adjective in noun.adjectives
        if adjective.english not in excluded
        and not said & {adjective.comparative[0], adjective.superlative[0]}
    ]


def draw_possessive(d: Draw, owner: NP | None) -> Determiner:
    if owner and owner.possessive and d.chance(0.8):
        return DETERMINERS[owner.possessive]
    return DETERMINERS[d.pick(("my", "my", "your", "his", "her", "our", "their"))]


def draw_determiner(d: Draw, noun: Noun, plural: bool, owner: NP | None, kind: str) -> Determiner:
    """`kind`: "any", "definite", "indefinite" or "negated" (an object under negation)."""
    if noun.kind == "tongue":
        return BARE if kind == "any" else DETERMINERS["not"]
    if noun.kind == "subject":
        return BARE
    if kind == "negated" and noun.bare and noun.kind != "kin":
        return NOT_A
    if kind == "indefinite" and noun.bare:
        if noun.countable:
            return (BARE if d.chance(0.4) else numeral(draw_number(d))) if plural else A
        return BARE
    if noun.kind == "kin":
        return draw_possessive(d, owner)
    if noun in OWNED and d.chance(0.25):
        return draw_possessive(d, owner)
    if kind == "definite" or noun.kind == "sky" or not noun.bare:
        return d.pick(DEFINITE)
    if not noun.countable:
        return THE if d.chance(0.5) or noun.english == "people" else BARE
    if plural:
        determiner = numeral(draw_number(d)) if d.chance(0.15) else d.pick(PLURALS)
        return THE if determiner is BARE and noun.kind in FIXTURES else determiner
    return d.pick(SINGULARS)


def draw_np(
    d: Draw,
    choice: tuple[Noun, ...],
    owner: NP | None = None,
    kind: str = "any",
    number: bool | None = None,
) -> NP:
    noun = d.pick(choice)
    if owner and noun is owner.noun:
        noun = d.pick(choice)
    plural = noun.countable and (
        noun in PAIRS or noun not in UNIQUE and d.chance(0.3) if number is None else number
    )
    if (
        kind in ("any", "definite")
        and not plural
        and noun.countable
        and noun not in UNIQUE
        and (noun in OWNED or noun.kind == "kin")
        and d.chance(0.1)
    ):
        possessor = (
            d.pick(NAMES)
            if d.chance(0.5)
            else noun_phrase(draw_possessive(d, owner), d.pick(SINGLE_KIN))
        )
        if possessor.noun is not noun:
            return noun_phrase(THE, noun, plural, draw_modifiers(d, noun, A), possessor)
    determiner = draw_determiner(d, noun, plural, owner, kind)
    return noun_phrase(determiner, noun, plural, draw_modifiers(d, noun, determiner))


def draw_person(d: Draw, owner: NP | None = None, pronoun: float = 0.4) -> NP:
    """A pronoun, a name, a relative, a trade; as an object, not the `owner`, who is the subject."""
    x = d.random()
    if x < pronoun:
        person = d.pick(SPEAKERS)
        while owner and (person is owner or person.person in (0, 3) and owner.person in (0, 3)):
            person = d.pick(SPEAKERS)
        return person
    x = (x - pronoun) / (1 - pronoun)
    if x < 0.36:
        person = d.pick(NAMES if x < 0.3 else SIRS)
        return person if person is not owner else PRONOUNS["they"]
    if x < 0.4:
        first, second = d.pick(NAMES), d.pick(NAMES)
        return conjoined(
            first, second if second is not first else draw_np(d, SINGLE_KIN, first, "any", SINGULAR)
        )
    return draw_np(d, KIN if x < 0.62 else PEOPLE, owner)


def draw_object(d: Draw, verb: Verb, owner: NP, kind: str = "any") -> NP:
    if "person" in verb.objects and kind != "negated" and d.chance(0.5):
        return draw_person(d, owner)
    if "new" in verb.flags and kind == "any":
        kind = "indefinite"
    return draw_np(d, verb.nouns, owner, kind)


MINUTES = (("a quarter", "Viertel"), ("ten", "zehn"), ("twenty", "zwanzig"), ("five", "fünf"))


def draw_clock(d: Draw) -> Both:
    """A time of day: "at half past three", "um halb vier"."""
    hour, form = 1 + int(d.random() * 12), int(d.random() * 6)
    if form < 2:
        return f"at {ONES[hour]} o'clock", f"um {german_number(hour, last=False)} Uhr"
    following = hour % 12 + 1
    if form == 2:
        return f"at half past {ONES[hour]}", f"um halb {german_number(following)}"
    minutes, german_minutes = d.pick(MINUTES)
    if form < 5:
        return f"at {minutes} past {ONES[hour]}", f"um {german_minutes} nach {german_number(hour)}"
    return (
        f"at {minutes} to {ONES[following]}",
        f"um {german_minutes} vor {german_number(following)}",
    )


def draw_place_np(d: Draw, noun: Noun, owner: NP | None) -> NP:
    modifiers = draw_modifiers(d, noun, A)
    determiner, x = THE, d.random()
    if x > 0.8 and noun in OWN_PLACES:
        determiner = draw_possessive(d, owner)
    elif x < 0.1 and modifiers:
        determiner = A
    return noun_phrase(determiner, noun, False, modifiers)


def draw_place(
    d: Draw, owner: NP | None, choice: tuple[Noun, ...] = PLACE_NOUNS, region: float = 0.15
) -> Both:
    """Where: "in Berlin", "at the station"; "im alten Haus"."""
    if d.chance(region):
        english_name, german_place, _, _ = d.pick(REGIONS)
        return f"in {english_name}", german_place
    noun = d.pick(choice)
    np = draw_place_np(d, noun, owner)
    return f"{PLACES[noun][0]} {np.en}", prepositional(PLACES[noun][2], np, DAT)


def draw_direction(d: Draw, verb: Verb, owner: NP | None) -> Both:
    """Where to: "to Berlin", "into the garden"; "in den Garten"."""
    if verb.frame == "journey":
        english_name, _, german_place, _ = d.pick(REGIONS)
        return f"to {english_name}", german_place
    if d.chance(0.15):
        return "home", "nach Hause"
    noun = d.pick(PLACE_NOUNS if verb.base != "drive" else TARGETS)
    np = draw_place_np(d, noun, owner)
    _, preposition, _, german_preposition, case = PLACES[noun]
    return f"{preposition} {np.en}", prepositional(
        german_preposition, np, ACC if case == "acc" else DAT
    )


def draw_spot(d: Draw, case: int, owner: NP | None) -> Both:
    """On, under, behind something: with the dative where it lies, with the accusative where it is
    put.
    """
    preposition, german_preposition, noun = d.pick(SPOTS)
    modifiers = draw_modifiers(d, noun, A) if d.chance(0.5) else ()
    np = noun_phrase(THE if d.chance(0.8) else draw_possessive(d, owner), noun, False, modifiers)
    return f"{preposition} {np.en}", prepositional(german_preposition, np, case)


# ---- drawing clauses
# -------------------------------------------------------------------------------------------

FRAMES = (
    ("accusative",) * 20
    + ("intransitive",) * 10
    + ("prepositional",) * 8
    + ("dative", "ditransitive") * 4
    + ("direction", "location", "pleasing") * 3
    + ("dative-to", "journey", "position", "placing", "possession") * 2
)
DYNAMIC = tuple(frame for frame in FRAMES if frame not in ("pleasing", "position", "possession"))
AIMS = tuple(
    frame
    for frame in DYNAMIC
    if frame in ("accusative", "dative", "ditransitive", "dative-to", "placing")
)
PERSONAL = tuple(frame for frame in FRAMES if frame not in ("position", "possession"))
TENSES = (PRESENT,) * 8 + (PROGRESSIVE,) * 5 + (PERFECT,) * 2 + (FUTURE,) * 2 + (MODAL,) * 3
PRESENT_MODALS = tuple(
    MODALS[word] for word in "can can must want want would should may have like".split()
)
PAST_MODALS = tuple(MODALS[word] for word in "could wanted had".split())
WITH_TIME = {"see", "hear", "be"}
DUMMY = NP("it", "it", 2, 2, ("es", "es", "es"), 2, pronoun=True)


def draw_verb(d: Draw, frames: tuple[str, ...], dynamic: bool = False) -> Verb:
    verb = d.pick(VERBS[d.pick(frames)])
    while dynamic and (
        "state" in verb.flags
        or verb.base in ("be", "get", "catch", "fall", "lose", "forget", "find")
    ):
        verb = d.pick(VERBS[d.pick(frames)])
    return verb


def draw_subject(d: Draw, verb: Verb) -> NP:
    if verb.frame in ("possession", "position"):
        return draw_np(d, verb.nouns, None, "definite")
    if "vehicle" in verb.flags and d.chance(0.4):
        return noun_phrase(THE, NOUNS[d.pick(("train", "bus", "ship"))])
    if "animal" in verb.flags and d.chance(0.15):
        return draw_np(d, ANIMALS, None, "definite")
    return draw_person(d)


def certain(np: NP | None) -> bool:
    """Whether it is something definite: only then do "nicht" and "schon" simply follow it."""
    return np is None or bool(np.forms) or np.determiner in CERTAIN


def draw_tense(d: Draw, clause: Clause, past: bool) -> None:
    verb, x = clause.verb, d.random()
    state = "state" in verb.flags or verb.base == "be"
    animate = clause.subject.pronoun or clause.subject.sex or clause.subject.possessive
    if past:
        clause.tense = PAST if verb.past else PERFECT
        if x < 0.12 and animate and not state and "event" not in verb.flags:
            clause.tense, clause.modal = MODAL, d.pick(PAST_MODALS)
    elif not state:
        clause.tense = d.pick(TENSES)
        if clause.tense == MODAL and animate:
            clause.modal = d.pick(PRESENT_MODALS)
        elif clause.tense == MODAL:
            clause.tense = FUTURE
    elif x < 0.06 and verb.base == "be":
        clause.tense = FUTURE


def draw_arguments(d: Draw, clause: Clause) -> None:
    """The objects that the verb governs; under negation all but the accusative are definite."""
    verb, owner, kind = clause.verb, clause.subject, "definite" if clause.negated else "any"
    frame = verb.frame
    if frame in ("accusative", "ditransitive", "dative-to", "placing"):
        if clause.accusative is None:
            clause.accusative = draw_object(
                d, verb, owner, "negated" if clause.negated and d.chance(0.5) else kind
            )
    elif frame == "pleasing":
        clause.accusative = draw_np(d, verb.nouns, owner, "definite")
    if frame in ("dative", "ditransitive", "dative-to", "possession"):
        clause.dative = (
            draw_person(d, owner) if kind == "any" or d.chance(0.5) else draw_np(d, KIN, owner)
        )
        clause.to = frame == "dative-to" or frame == "ditransitive" and d.chance(0.25)
        if (
            clause.dative.pronoun
            and frame == "ditransitive"
            and clause.accusative.determiner is BARE
        ):
            clause.to = True  # "gives her books" would be her books
    elif frame == "prepositional":
        clause.governed = draw_object(d, verb, owner, "definite" if clause.negated else "any")
    elif frame in ("direction", "journey"):
        clause.place = draw_direction(d, verb, owner)
    elif frame == "location":
        clause.place = (
            draw_place(d, owner, HOMES, 0.5)
            if verb.base == "live"
            else ("at home", "zu Hause")
            if d.chance(0.15)
            else draw_place(d, owner)
        )
    elif frame in ("position", "placing"):
        clause.place = draw_spot(
            d, ACC if frame == "placing" and verb.base == "put" else DAT, owner
        )


def draw_time(d: Draw, clause: Clause) -> Both | None:
    """An adverbial that agrees with the tense, if any."""
    tense, verb, x = clause.tense, clause.verb, d.random()
    past = tense == PAST or tense == MODAL and clause.modal.past
    if (
        tense == PERFECT
        or ("state" in verb.flags or verb.base == "be")
        and not (past and verb.base in WITH_TIME)
    ):
        return None
    if "clock" in verb.flags and tense != PROGRESSIVE and x < 0.35:
        day = (
            ("yesterday ", "gestern ")
            if past
            else ("tomorrow ", "morgen ")
            if tense >= FUTURE
            else ("", "")
        )
        at = draw_clock(d)
        return (day[0] + at[0], day[1] + at[1]) if d.chance(0.5) else at
    if tense == PROGRESSIVE:
        return d.pick(TIMES["now"]) if x < 0.4 else None
    if x > (0.55 if past else 0.45):
        return None
    if x < 0.05:
        return d.pick(TIMES["any"])
    if past or tense == FUTURE or tense == MODAL and clause.modal.german:
        if x < 0.1:
            n, (unit, german_unit) = 2 + int(d.random() * 11), d.pick(TIMES["unit"])
            return (
                (f"{english_number(n)} {unit}s ago", f"vor {german_number(n)} {german_unit}")
                if past
                else (f"in {english_number(n)} {unit}s", f"in {german_number(n)} {german_unit}")
            )
        return d.pick(TIMES["past" if past else "future"])
    lasting = (
        verb.frame in ("intransitive", "direction", "journey", "location")
        and "clock" not in verb.flags
    )
    if clause.negated:
        return None
    return d.pick(TIMES["season" if lasting and x < 0.2 else "habit"])


def draw_adverbials(d: Draw, clause: Clause, trailing: bool) -> None:
    """`trailing`: whether adverbials may stand at the end in English, where a complement might
    claim them.
    """
    verb, accusative, subject = clause.verb, clause.accusative, clause.subject
    clause.time = draw_time(d, clause)
    clause.lead_time = clause.time is not None and (not trailing or d.chance(0.35))
    static = "state" in verb.flags or verb.base == "be"
    if clause.tense == PRESENT and not (static or clause.time or clause.negated) and d.chance(0.35):
        clause.frequency = d.pick(TIMES["often"])
    if not trailing:
        return
    if clause.tense == PERFECT and certain(accusative) and not clause.place and d.chance(0.5):
        clause.already = ("already", "schon")
    if clause.negated or clause.already:
        return
    manners = verb.flags & MANNERS.keys()
    if manners and d.chance(0.25):
        clause.manner = d.pick(MANNERS[min(manners)])
    elif "for" in verb.flags and d.chance(0.25):
        person = draw_person(d, subject, 0.2)
        clause.place = (f"for {person.object}", f"für {person.german(ACC)}")
    elif "place" in verb.flags and d.chance(0.25):
        clause.place = draw_place(d, subject)
    if ("with" in verb.flags or verb.frame in ("direction", "journey")) and d.chance(0.15):
        if verb.base == "travel" and clause.place:
            noun = NOUNS[d.pick(("train", "bus", "car", "ship", "plane"))]
            clause.company = (
                f"by {noun.english}",
                f"mit {ARTICLE[DAT][noun.gender]} {noun.singular[DAT]}",
            )
        elif subject.sex or subject.pronoun:
            person = draw_np(d, KIN, subject)
            clause.company = (f"with {person.object}", f"mit {person.german(DAT)}")


def draw_clause(
    d: Draw,
    frames: tuple[str, ...] = FRAMES,
    subject: NP | None = None,
    past: bool | None = None,
    trailing: bool = True,
    verb: Verb | None = None,
    plain: bool = False,
    accusative: NP | None = None,
    positive: bool = False,
) -> Clause:
    """A clause without complement; `plain` has no modal, negation or adverbials, `positive` no
    negation.
    """
    verb = verb or draw_verb(d, frames)
    clause = Clause(subject or draw_subject(d, verb), verb, accusative=accusative)
    past = (d.chance(0.35) if past is None else past) or "event" in verb.flags
    if plain:
        clause.tense = PRESENT if not past else PAST if verb.past else PERFECT
        draw_arguments(d, clause)
        return clause
    draw_tense(d, clause, past)
    clause.negated = d.chance(0.13) and certain(clause.subject) and not positive
    if clause.negated and clause.modal and clause.modal.first in ("must", "like"):
        clause.modal = MODALS["can"]
    draw_arguments(d, clause)
    draw_adverbials(d, clause, trailing)
    return clause


def draw_copula(d: Draw, subject: NP | None = None, past: bool | None = None) -> Clause:
    """Somebody or something is so, more so than another, a thing, or somewhere."""
    if subject is None:
        subject = (
            draw_person(d)
            if d.chance(0.5)
            else draw_np(d, SUBJECTS)
            if d.chance(0.05)
            else draw_np(d, THINGS + ANIMALS, None, "definite")
        )
    clause = Clause(subject, BE)
    draw_tense(d, clause, d.chance(0.3) if past is None else past)
    if clause.tense == MODAL:
        clause.tense = PAST
    clause.negated = d.chance(0.1) and certain(subject)
    x = d.random()
    noun = subject.noun
    if (
        x < 0.12
        and not clause.negated
        and subject.sex == "m"
        and not (noun and noun.kind == "person")
    ):
        trade = d.pick(MALE_TRADES)  # "ist Arzt" without article, but "ist ein guter Arzt"
        modifiers = draw_modifiers(d, trade, A)
        np = noun_phrase(A, trade, False, modifiers)
        clause.predicate = np.en, np.german(NOM) if modifiers else trade.singular[NOM]
        return clause
    if x < 0.3 and noun in PORTABLE:
        clause.predicate = draw_spot(d, DAT, None)
        return clause
    if x < 0.3 and noun is None:
        clause.predicate = ("at home", "zu Hause") if d.chance(0.2) else draw_place(d, subject)
        return clause
    modifiers = subject.modifiers if subject.determiner else ()
    adjective = d.pick(fitting(noun or PEOPLE[0], modifiers))
    if (
        x < 0.5
        and adjective.comparable
        and (noun is None or noun.kind not in ("tongue", "subject"))
    ):
        draw_comparison(d, clause, adjective)
    else:
        degree = (
            d.pick(DEGREES)
            if d.chance(0.35) and not clause.negated and adjective.comparable
            else None
        )
        clause.predicate = (
            (f"{degree[0]} {adjective.english}", f"{degree[1]} {adjective.german}")
            if degree
            else (adjective.english, adjective.german)
        )
    return clause


def draw_comparison(d: Draw, clause: Clause, adjective: Adjective) -> None:
    """Older than, as old as, the oldest; the compared phrase is an object in English, a nominative
    in German.
    """
    subject, x = clause.subject, d.random()
    if x < 0.2 and subject.determiner and not clause.negated and subject.agreement == 2:
        clause.predicate = f"the {adjective.superlative[0]}", f"am {adjective.german_superlative}en"
        return
    other = (
        draw_person(d, subject)
        if not subject.noun or subject.noun.kind in ("person", "kin")
        else draw_np(
            d,
            tuple(noun for noun in THINGS + ANIMALS if noun.kind == subject.noun.kind),
            subject,
            "definite",
        )
    )
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
    d: Draw, past: bool | None = None, trailing: bool = True, subject: NP | None = None
) -> Clause:
    """A clause of any kind without a complement."""
    if d.chance(0.2):
        return draw_copula(d, subject, past)
    return draw_clause(d, FRAMES if subject is None else PERSONAL, subject, past, trailing)


def draw_infinitive(d: Draw, controller: NP, frames: tuple[str, ...] = DYNAMIC) -> Clause:
    """A clause without tense, said of the `controller`."""
    clause = Clause(controller, draw_verb(d, frames, dynamic=True))
    draw_arguments(d, clause)
    return clause
