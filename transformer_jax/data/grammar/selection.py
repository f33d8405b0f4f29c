"""Selection classes: the words that fit each other, and the weights of choices.

They keep the sentences plausible: one eats food and reads books. A choice that occurs several times
in a tuple has a higher weight.
"""

from transformer_jax.data.grammar.clauses import FUTURE, MODAL, PERFECT, PRESENT, PROGRESSIVE
from transformer_jax.data.grammar.noun_phrases import DETERMINERS, POSSESSIVES, PRONOUNS
from transformer_jax.data.grammar.vocabulary import MODALS, NOUNS, PLACES, VERBS, nouns

PEOPLE = nouns(["person"])
KIN = nouns(["kin"])
ANIMALS = nouns(["animal"])
SUBJECTS = nouns(["subject", "tongue"])
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
UNIQUE = set(nouns("father mother grandfather grandmother king queen sea".split()))
PAIRS = set(nouns("shoe glove".split()))
SINGLE_KIN = KIN[:10]
# their plural has an article: not "tidies up rooms"
FIXTURES = {"room", "building", "opening", "device", "vehicle", "furniture", "outdoors"}
RELATIVE_SIZES = {"old", "young", "big", "small", "tall"}
THINGS = nouns(
    "food drink reading wear vehicle thing device furniture opening building room outdoors event "
    "topic".split()
)
INANIMATE = nouns("reading wear vehicle thing device furniture".split())
COLOURS = {"white", "black", "grey", "brown", "red", "blue", "green", "yellow"}
# at most one adjective of each field: not "the old car is new"
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
# places that one can drive to
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
# the determiners of definite phrases
CERTAIN = {DETERMINERS[word] for word in ("the", "this", *POSSESSIVES)}
# the verbs that a noun can be the object of
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
# frames of purposes: "in order to ..."
AIMS = tuple(
    frame
    for frame in DYNAMIC
    if frame in ("accusative", "dative", "ditransitive", "dative-to", "placing")
)
# frames with a person as subject
PERSONAL = tuple(frame for frame in FRAMES if frame not in ("position", "possession"))
TENSES = (PRESENT,) * 8 + (PROGRESSIVE,) * 5 + (PERFECT,) * 2 + (FUTURE,) * 2 + (MODAL,) * 3
PRESENT_MODALS = tuple(
    MODALS[word] for word in "can can must want want would should may have like".split()
)
PAST_MODALS = tuple(MODALS[word] for word in "could wanted had".split())
# states that take an adverbial of time in the past
WITH_TIME = {"see", "hear", "be"}
