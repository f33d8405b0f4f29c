"""Phrases and clauses of the built-in English-German grammar, put into words in both languages.

A `Clause` is an abstract structure of noun phrases (`NP`), a verb and adverbials.  `english` and
`german` spell it out, each by the rules of its language: do-support, particles and inversion here;
case, the place of the finite verb, the middle field and the verbal bracket there.  So both sides
always say the same.

Where German leaves a choice this grammar always makes the same one: "you" is "du"; the English past
and present perfect become the German perfect, except for "sein", "haben", "wissen" and the modal
verbs, which take the preterite.
"""

from dataclasses import dataclass

from transformer_jax.data.grammar import lexicon
from transformer_jax.data.grammar.morphology import (
    ACC,
    ARTICLE,
    DAT,
    DIES,
    EIN,
    FIXED,
    GEN,
    HABEN,
    MIXED,
    NOM,
    SEIN,
    STRONG,
    WEAK,
    WERDEN,
    Modal,
    Noun,
    Verb,
    english_number,
    german_number,
)

PRESENT, PROGRESSIVE, PAST, PERFECT, FUTURE, MODAL = range(6)
# places of the German finite verb; SHARED: subject and auxiliary left out
SECOND, FIRST, LAST, SHARED = range(4)


# ---- noun phrases
# ----------------------------------------------------------------------------------------------


class Determiner:
    """English singular and plural, German forms by case and gender, and the declension of a
    following adjective.
    """

    def __init__(
        self, singular: str, plural: str, stem: str | None, table: tuple, adjective: tuple
    ):
        self.singular, self.plural, self.adjective, self.negative = (
            singular,
            plural,
            adjective,
            stem == "kein",
        )
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
    "not a": Determiner("a", "any", "kein", EIN, MIXED),  # "does not have a car", hat kein Auto
    # "does not speak German", spricht kein Deutsch
    "not": Determiner("", "", "kein", EIN, MIXED),
    **{
        english: Determiner(english, english, german, EIN, MIXED)
        for english, german in POSSESSIVES.items()
    },
}
THE, A, BARE, NOT_A = (DETERMINERS[word] for word in ("the", "a", "", "not a"))


def numeral(n: int) -> Determiner:
    return Determiner("", english_number(n), german_number(n), FIXED, STRONG)


class NP:
    """A noun phrase: the English subject and object form, and the German one by case."""

    __slots__ = (
        "en",
        "object",
        "agreement",
        "person",
        "gender",
        "sex",
        "pronoun",
        "possessive",
        "forms",
        "noun",
        "determiner",
        "modifiers",
        "attribute",
        "relative",
    )

    def __init__(
        self,
        en: str,
        obj: str,
        agreement: int,
        person: int,
        forms: tuple | None = None,
        gender: int = 0,
        sex: str | None = None,
        possessive: str | None = None,
        pronoun: bool = False,
    ):
        self.en, self.object, self.agreement, self.person, self.forms = (
            en,
            obj,
            agreement,
            person,
            forms,
        )
        self.gender, self.sex, self.possessive, self.pronoun = gender, sex, possessive, pronoun
        self.noun = self.determiner = self.relative = None

    def german(self, case: int) -> str:
        if self.forms:
            return self.forms[case]
        determiner, noun, gender = self.determiner, self.noun, self.gender
        words = [determiner.forms[case][gender]] if determiner.forms else []
        ending = determiner.adjective[case][gender]
        words += [stem + ending for _, stem in self.modifiers]
        words.append((noun.plural if self.person == 4 else noun.singular)[case])
        return " ".join(words) + self.attribute


# English agreement is the column of am / are / is; German persons are ich, du, er, wir, sie.
PRONOUNS = {
    "I": NP("I", "me", 0, 0, ("ich", "mich", "mir"), possessive="my", pronoun=True),
    "you": NP("you", "you", 1, 1, ("du", "dich", "dir"), possessive="your", pronoun=True),
    "he": NP("he", "him", 2, 2, ("er", "ihn", "ihm"), sex="m", possessive="his", pronoun=True),
    "she": NP(
        "she", "her", 2, 2, ("sie", "sie", "ihr"), 1, sex="f", possessive="her", pronoun=True
    ),
    "we": NP("we", "us", 1, 3, ("wir", "uns", "uns"), possessive="our", pronoun=True),
    "they": NP("they", "them", 1, 4, ("sie", "sie", "ihnen"), 3, possessive="their", pronoun=True),
}
IT = tuple(
    NP("it", "it", 2, 2, forms, gender, pronoun=True)
    for gender, forms in enumerate(
        [("er", "ihn", "ihm"), ("sie", "sie", "ihr"), ("es", "es", "ihm")]
    )
)
WHO = NP("who", "who", 2, 2, ("wer", "wen", "wem"))
REFLEXIVE = ("mich", "dich", "sich", "uns", "sich")
NAMES = tuple(
    NP(name, name, 2, 2, (name, name, name, name + "s"), "mf".index(sex), sex, possessive)
    for sex, possessive in (("m", "his"), ("f", "her"))
    for name in lexicon.NAMES[sex].split()
)
SIRS = tuple(
    NP(
        f"{title} {name}",
        f"{title} {name}",
        2,
        2,
        tuple(f"{form} {name}" for form in forms),
        "mf".index(sex),
        sex,
        possessive,
    )
    for title, forms, sex, possessive in (
        ("Mr", ("Herr", "Herrn", "Herrn"), "m", "his"),
        ("Mrs", ("Frau", "Frau", "Frau"), "f", "her"),
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
    """`modifiers` are (English, German stem) pairs; the genitive of an `owner` takes the article's
    place.
    """
    english_plural_, german_plural = noun.numbers[-1 if plural else 0]
    words = [english for english, _ in modifiers]
    words.append(noun.english_plural if english_plural_ else noun.english)
    head, attribute = determiner.plural if english_plural_ else determiner.singular, ""
    if owner:
        head = owner.en + ("'" if owner.agreement == 1 and owner.en.endswith("s") else "'s")
        attribute = "" if owner.forms else " " + owner.german(GEN)
        determiner = Determiner("", "", owner.forms[GEN], FIXED, STRONG) if owner.forms else THE
    elif determiner is A:
        head = article(words[0])
    elif determiner is NOT_A and not english_plural_:
        head = article(words[0]) if noun.countable else "any"
    english = f"{head} {' '.join(words)}" if head else " ".join(words)
    sex = None if german_plural else noun.sex
    possessive = (
        "their"
        if english_plural_ and noun.kind in ("person", "kin")
        else {"m": "his", "f": "her"}.get(sex)
    )
    np = NP(
        english,
        english,
        1 if english_plural_ else 2,
        4 if german_plural else 2,
        None,
        3 if german_plural else noun.gender,
        sex,
        possessive,
    )
    np.noun, np.determiner, np.modifiers, np.attribute = noun, determiner, modifiers, attribute
    return np


def conjoined(first: NP, second: NP) -> NP:
    forms = tuple(f"{first.german(case)} und {second.german(case)}" for case in (NOM, ACC, DAT))
    return NP(
        f"{first.en} and {second.en}",
        f"{first.object} and {second.object}",
        1,
        4,
        forms,
        3,
        None,
        "their",
    )


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
    """Preposition and noun phrase, contracted with a plain article: "im Garten", "zur Schule"."""
    text = np.german(case)
    if np.determiner is THE and not np.relative:
        word, _, rest = text.partition(" ")
        contracted = CONTRACTIONS.get((preposition, word))
        if contracted:
            return f"{contracted} {rest}"
    return f"{preposition} {text}"


# ---- clauses
# ---------------------------------------------------------------------------------------------------

Both = tuple[str, str]  # an adverbial or complement, English and German


@dataclass(slots=True)
class Clause:
    """The abstract structure of a clause.  `lead_time` puts the adverbial of time first."""

    subject: NP
    verb: Verb
    tense: int = PRESENT
    modal: Modal | None = None
    negated: bool = False
    accusative: NP | None = None
    dative: NP | None = None
    governed: NP | None = None  # the object of the preposition that the verb takes
    to: bool = False  # "gives the book to her", not "gives her the book"
    lead_time: bool = False
    time: Both | None = None
    frequency: Both | None = None
    already: Both | None = None
    manner: Both | None = None
    company: Both | None = None
    place: Both | None = None
    predicate: Both | None = None
    complement: Both | None = None


AM, WAS, HAVE, DO = (
    ("am", "are", "is"),
    ("was", "were", "was"),
    ("have", "have", "has"),
    ("do", "do", "does"),
)


def english_verb(clause: Clause, inverted: bool) -> Both:
    """The auxiliary, if any, and the rest of the verb: ("does", "call"), ("", "called")."""
    verb, tense, agreement, modal = (
        clause.verb,
        clause.tense,
        clause.subject.agreement,
        clause.modal,
    )
    support = inverted or clause.negated
    if tense == MODAL:
        if not modal.full:
            return modal.first, f"{modal.link} {verb.base}".strip()
        if support:
            return "did" if modal.past else DO[agreement], f"{modal.full} to {verb.base}"
        return "", f"{modal.third if agreement == 2 else modal.first} to {verb.base}"
    if tense == FUTURE:
        return "will", verb.base
    if tense == PERFECT:
        return HAVE[agreement], verb.participle
    if verb.base == "be":
        return (WAS if tense == PAST else AM)[agreement], ""
    if tense == PROGRESSIVE:
        return AM[agreement], verb.ing
    if support:
        return "did" if tense == PAST else DO[agreement], verb.base
    return "", verb.past if tense == PAST else verb.third if agreement == 2 else verb.base


def english_rest(clause: Clause, verbal: str) -> list[str]:
    """Everything from the lexical verb on."""
    verb, accusative, dative = clause.verb, clause.accusative, clause.dative
    words = [verbal, verb.tail]
    if verb.movable and not (accusative and accusative.pronoun):
        words.append(verb.movable)
    if dative and not clause.to:
        words.append(dative.object)
    if accusative:
        words.append(accusative.object)
        if accusative.relative:
            words.append(accusative.relative[0])
        if verb.movable and accusative.pronoun:
            words.append(verb.movable)
    if dative and clause.to:
        words += ("to", dative.object)
    if clause.governed:
        words.append(clause.governed.object)
    for adverbial in (clause.predicate, clause.manner, clause.place, clause.company):
        if adverbial:
            words.append(adverbial[0])
    if clause.already and clause.negated:
        words.append("yet")
    if clause.time and not clause.lead_time:
        words.append(clause.time[0])
    if clause.complement:
        words.append(clause.complement[0])
    return words


def english(clause: Clause, inverted: bool = False, shared: bool = False) -> str:
    auxiliary, verbal = english_verb(clause, inverted)
    subject = clause.subject
    words = [subject.en] if not subject.relative else [subject.en, subject.relative[0]]
    words = [auxiliary, *words] if inverted else [*words, auxiliary]
    if shared:
        words = []
    elif clause.lead_time:
        words.insert(0, clause.time[0])
    if clause.negated and auxiliary == "can" and not inverted:
        words[-1] = "cannot"
    elif clause.negated:
        words.append("not")
    elif clause.already:
        words.append("already")
    if clause.frequency:
        words.append(clause.frequency[0])
    words += english_rest(clause, verbal)
    return " ".join([word for word in words if word])


def german_verb(clause: Clause, person: int) -> tuple[str, str, str]:
    """The finite verb, the rest of the verb at the end of the clause, and both together at the end."""
    verb, tense = clause.verb, clause.tense
    if tense == MODAL and clause.modal.german:
        finite, rest = clause.modal.german[person], verb.infinitive
    elif tense == FUTURE:
        finite, rest = WERDEN[person], verb.infinitive
    elif tense == PERFECT or tense == PAST and not verb.preterite:
        finite, rest = (SEIN if verb.auxiliary == "sein" else HABEN)[person], verb.participle_german
    else:
        finite = (verb.preterite if tense == PAST else verb.present)[person]
        return finite, verb.prefix.strip(), verb.prefix + finite
    return finite, rest, f"{rest} {finite}"


def negative_object(clause: Clause) -> bool:
    """Whether the German negation is "kein" on the object and not "nicht"."""
    np = clause.accusative
    return np is not None and np.determiner is not None and np.determiner.negative


def middle_field(clause: Clause, accusative: NP | None, dative: NP | None) -> list[str]:
    """Pronouns, time, noun objects (dative first), negation, manner, company, place: the order of
    this grammar.
    """
    words = []
    if accusative and accusative.pronoun:
        words.append(accusative.german(ACC))
    if dative and dative.pronoun:
        words.append(dative.german(DAT))
    if clause.time and not clause.lead_time:
        words.append(clause.time[1])
    if clause.frequency:
        words.append(clause.frequency[1])
    if clause.tense == MODAL and not clause.modal.german:
        words.append("gern")
    if dative and not dative.pronoun:
        words.append(dative.german(DAT))
    if accusative and not accusative.pronoun:
        words.append(accusative.german(ACC))
    if clause.already:
        words.append("noch nicht" if clause.negated else "schon")
    elif clause.negated and not negative_object(clause):
        words.append("nicht")
    for adverbial in (clause.manner, clause.company, clause.place, clause.predicate):
        if adverbial:
            words.append(adverbial[1])
    if clause.governed:
        words.append(prepositional(clause.verb.preposition, clause.governed, clause.verb.case))
    return words


def german(clause: Clause, order: int = SECOND, lead: str = "") -> str:
    """A clause by the place of its finite verb; whatever leads a main clause makes the subject
    follow the verb.
    """
    subject, accusative, dative, verb = (
        clause.subject,
        clause.accusative,
        clause.dative,
        clause.verb,
    )
    if verb.frame == "pleasing":  # "Anna likes the coat" is "der Mantel gefällt Anna"
        subject, accusative, dative = accusative, None, subject
    finite, rest, final = german_verb(clause, subject.person)
    words = [subject.german(NOM) + (f", {subject.relative[1]}," if subject.relative else "")]
    lead = clause.time[1] if clause.lead_time else lead
    pronouns = [REFLEXIVE[subject.person]] if verb.reflexive else []
    if order == SHARED:
        words = pronouns if final != verb.prefix + finite else [finite, *pronouns]
    elif order == SECOND and not lead:
        words += (finite, *pronouns)
    else:
        if (
            not subject.pronoun
            and dative
            and dative.pronoun
            and not (accusative and accusative.pronoun)
        ):
            pronouns.append(dative.german(DAT))
            dative = None
        words = [*words, *pronouns] if subject.pronoun else [*pronouns, *words]
        if order != LAST:
            words = [lead, finite, *words]
    words += middle_field(clause, accusative, dative)
    words.append(final if order == LAST else rest)
    words += [f", {np.relative[1]}," for np in (accusative, dative) if np and np.relative]
    if clause.complement:
        words.append(clause.complement[1])
    return " ".join([word for word in words if word])


def infinitive(clause: Clause, gerund: bool = False, opening: Both = ("", "")) -> Both:
    """The clause as a complement: ("to call her brother", ", ihren Bruder anzurufen,")."""
    verb = clause.verb
    words = english_rest(clause, verb.ing if gerund else f"to {verb.base}")
    reflexive = [REFLEXIVE[clause.subject.person]] if verb.reflexive else []
    end = f", {clause.complement[1].strip(', ')}" if clause.complement else ""
    phrase = [
        opening[1],
        *reflexive,
        *middle_field(clause, clause.accusative, clause.dative),
        verb.zu,
    ]
    return (
        " ".join([word for word in [opening[0], *words] if word]),
        ", " + " ".join([word for word in phrase if word]) + end + ",",
    )
