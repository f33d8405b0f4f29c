"""Noun phrases in both languages: determiners, pronouns, names, nouns with modifiers."""

from dataclasses import KW_ONLY, dataclass

from transformer_jax.data.grammar import lexicon
from transformer_jax.data.grammar.morphology import (
    ACC,
    ARTICLE,
    DAT,
    DIES,
    EIN,
    FIXED,
    GEN,
    MIXED,
    NOM,
    STRONG,
    WEAK,
    Noun,
)
from transformer_jax.data.grammar.numbers import english_number, german_number

Both = tuple[str, str]  # a phrase in English and in German


class Determiner:
    """A determiner: the English singular and plural, and the German forms by case and gender.

    `adjective` is the declension of a following adjective.
    """

    def __init__(
        self, singular: str, plural: str, stem: str | None, table: tuple, adjective: tuple
    ):
        self.singular = singular
        self.plural = plural
        self.adjective = adjective
        self.negative = stem == "kein"
        self.forms = stem is not None and tuple(
            tuple(stem + ending for ending in row) for row in table
        )


POSSESSIVES = dict(my="mein", your="dein", his="sein", her="ihr", our="unser", their="ihr")
DETERMINERS = {
    "the": Determiner("the", "the", "", ARTICLE, WEAK),
    "a": Determiner("a", "", "ein", EIN, MIXED),
    "": Determiner("", "", None, (), STRONG),
    "this": Determiner("this", "these", "dies", DIES, WEAK),
    "every": Determiner("every", "", "jed", DIES, WEAK),
    "which": Determiner("which", "which", "welch", DIES, WEAK),
    "all": Determiner("", "all", "all", DIES, WEAK),
    "many": Determiner("", "many", "viel", DIES, STRONG),
    "some": Determiner("", "some", "einig", DIES, STRONG),
    "how many": Determiner("", "how many", "wie viel", DIES, STRONG),
    "no": Determiner("no", "no", "kein", EIN, MIXED),
    # "does not have a car": hat kein Auto
    "not a": Determiner("a", "any", "kein", EIN, MIXED),
    # "does not speak German": spricht kein Deutsch
    "not": Determiner("", "", "kein", EIN, MIXED),
    **{
        english: Determiner(english, english, german, EIN, MIXED)
        for english, german in POSSESSIVES.items()
    },
}
THE = DETERMINERS["the"]
A = DETERMINERS["a"]
BARE = DETERMINERS[""]
NOT_A = DETERMINERS["not a"]


def numeral(n: int) -> Determiner:
    return Determiner("", english_number(n), german_number(n), FIXED, STRONG)


@dataclass(slots=True, eq=False)
class NP:
    """A noun phrase: the English subject and object forms, and the German form by case.

    A pronoun or a name has fixed German `forms`. Otherwise the German follows from the noun, its
    determiner and its modifiers.
    """

    en: str
    object: str  # in English
    agreement: int  # of the English verb: 0 am, 1 are, 2 is
    person: int  # of the German verb: 0 ich, 1 du, 2 er, 3 wir, 4 sie
    forms: tuple[str, ...] | None = None  # German, by case
    _: KW_ONLY
    gender: int = 0  # column of a declension table
    sex: str | None = None
    possessive: str | None = None  # the English possessive of this person
    pronoun: bool = False
    noun: Noun | None = None
    determiner: Determiner | None = None
    modifiers: tuple[Both, ...] = ()  # adjectives: English, German stem
    attribute: str = ""  # a German genitive behind the noun
    relative: Both | None = None  # a relative clause

    def german(self, case: int) -> str:
        if self.forms:
            return self.forms[case]
        determiner = self.determiner
        words = [determiner.forms[case][self.gender]] if determiner.forms else []
        ending = determiner.adjective[case][self.gender]
        words += [stem + ending for _, stem in self.modifiers]
        words.append((self.noun.plural if self.person == 4 else self.noun.singular)[case])
        return " ".join(words) + self.attribute


PRONOUNS = {
    "I": NP("I", "me", 0, 0, ("ich", "mich", "mir"), possessive="my", pronoun=True),
    "you": NP("you", "you", 1, 1, ("du", "dich", "dir"), possessive="your", pronoun=True),
    "he": NP("he", "him", 2, 2, ("er", "ihn", "ihm"), sex="m", possessive="his", pronoun=True),
    "she": NP(
        "she",
        "her",
        2,
        2,
        ("sie", "sie", "ihr"),
        gender=1,
        sex="f",
        possessive="her",
        pronoun=True,
    ),
    "we": NP("we", "us", 1, 3, ("wir", "uns", "uns"), possessive="our", pronoun=True),
    "they": NP(
        "they", "them", 1, 4, ("sie", "sie", "ihnen"), gender=3, possessive="their", pronoun=True
    ),
}
# "it" for a thing, by the gender of the German noun
IT = tuple(
    NP("it", "it", 2, 2, forms, gender=gender, pronoun=True)
    for gender, forms in enumerate(
        [("er", "ihn", "ihm"), ("sie", "sie", "ihr"), ("es", "es", "ihm")]
    )
)
WHO = NP("who", "who", 2, 2, ("wer", "wen", "wem"))
REFLEXIVE = ("mich", "dich", "sich", "uns", "sich")
# the subject of impersonal clauses
DUMMY = NP("it", "it", 2, 2, ("es", "es", "es"), gender=2, pronoun=True)


def _person(name: str, forms: tuple[str, ...], sex: str) -> NP:
    possessive = {"m": "his", "f": "her"}[sex]
    return NP(name, name, 2, 2, forms, gender="mf".index(sex), sex=sex, possessive=possessive)


NAMES = tuple(
    _person(name, (name, name, name, f"{name}s"), sex)
    for sex in "mf"
    for name in lexicon.NAMES[sex].split()
)
SIRS = tuple(
    _person(f"{title} {name}", tuple(f"{form} {name}" for form in forms), sex)
    for title, forms, sex in (
        ("Mr", ("Herr", "Herrn", "Herrn"), "m"),
        ("Mrs", ("Frau", "Frau", "Frau"), "f"),
    )
    for name in lexicon.SURNAMES.split()
)


def article(word: str) -> str:
    return "an" if word[0] in "aeiou" and not word.startswith(("uni", "use")) else "a"


def noun_phrase(
    determiner: Determiner,
    noun: Noun,
    plural: bool = False,
    modifiers: tuple = (),
    owner: NP | None = None,
) -> NP:
    """Returns the phrase of a noun with a determiner.

    `modifiers` are adjectives as (English, German stem). The genitive of an `owner` takes the place
    of the article.
    """
    is_plural, is_german_plural = noun.numbers[-1 if plural else 0]
    words = [english for english, _ in modifiers]
    words.append(noun.english_plural if is_plural else noun.english)
    head = determiner.plural if is_plural else determiner.singular
    attribute = ""
    if owner:
        head = owner.en + ("'" if owner.agreement == 1 and owner.en.endswith("s") else "'s")
        attribute = "" if owner.forms else " " + owner.german(GEN)
        determiner = Determiner("", "", owner.forms[GEN], FIXED, STRONG) if owner.forms else THE
    elif determiner is A:
        head = article(words[0])
    elif determiner is NOT_A and not is_plural:
        head = article(words[0]) if noun.countable else "any"
    english = f"{head} {' '.join(words)}" if head else " ".join(words)
    sex = None if is_german_plural else noun.sex
    if is_plural and noun.kind in ("person", "kin"):
        possessive = "their"
    else:
        possessive = {"m": "his", "f": "her"}.get(sex)
    return NP(
        english,
        english,
        1 if is_plural else 2,
        4 if is_german_plural else 2,
        gender=3 if is_german_plural else noun.gender,
        sex=sex,
        possessive=possessive,
        noun=noun,
        determiner=determiner,
        modifiers=modifiers,
        attribute=attribute,
    )


def conjoined(first: NP, second: NP) -> NP:
    """Returns the two phrases joined by "and"."""
    forms = tuple(f"{first.german(case)} und {second.german(case)}" for case in (NOM, ACC, DAT))
    english = f"{first.en} and {second.en}"
    english_object = f"{first.object} and {second.object}"
    return NP(english, english_object, 1, 4, forms, gender=3, possessive="their")


CONTRACTIONS = {
    ("in", "dem"): "im",
    ("in", "das"): "ins",
    ("an", "dem"): "am",
    ("an", "das"): "ans",
    ("zu", "dem"): "zum",
    ("zu", "der"): "zur",
    ("bei", "dem"): "beim",
    ("von", "dem"): "vom",
}


def prepositional(preposition: str, np: NP, case: int) -> str:
    """Returns the German preposition and phrase: "unter dem Tisch".

    A plain article is contracted with the preposition: "im Garten", "zur Schule".
    """
    text = np.german(case)
    if np.determiner is THE and not np.relative:
        word, _, rest = text.partition(" ")
        contracted = CONTRACTIONS.get((preposition, word))
        if contracted:
            return f"{contracted} {rest}"
    return f"{preposition} {text}"
