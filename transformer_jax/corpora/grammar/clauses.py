"""Noun phrases and clauses of the built-in grammar, rendered in both languages."""

from dataclasses import KW_ONLY, dataclass

from transformer_jax.corpora.grammar import lexicon
from transformer_jax.corpora.grammar.morphology import (
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

# --------------------------------------------------------------------------------------------------
# Noun phrases in both languages: determiners, pronouns, names, and nouns with modifiers. A phrase
# keeps its parts until a clause asks for a case, because German inflects each of them by case.

Both = tuple[str, str]  # a phrase in English and in German


class Determiner:
    """A determiner: its English singular and plural, and its German forms by case and gender.

    `adjective` is the German declension of an adjective that follows it.
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
    # "does not have a car": hat kein Auto. German negates the article where English negates the
    # verb, so these determiners look positive in English.
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
    """A noun phrase: its English subject and object forms, and its German form by case.

    A pronoun or a name has fixed German `forms`. For other phrases, the German form follows from
    the noun, its determiner and its modifiers.
    """

    en: str
    object: str  # in English
    agreement: int  # agreement of the English verb: 0 am, 1 are, 2 is
    person: int  # person of the German verb: 0 ich, 1 du, 2 er, 3 wir, 4 sie
    forms: tuple[str, ...] | None = None  # in German, by case
    _: KW_ONLY
    gender: int = 0  # column of a declension table
    sex: str | None = None
    possessive: str | None = None  # the English possessive of this person
    pronoun: bool = False
    noun: Noun | None = None
    determiner: Determiner | None = None
    modifiers: tuple[Both, ...] = ()  # adjectives: English, German stem
    attribute: str = ""  # a German genitive after the noun
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
# "it" for a thing, by the gender of the German noun: the translation of a pronoun depends on a noun
# in another clause.
IT = tuple(
    NP("it", "it", 2, 2, forms, gender=gender, pronoun=True)
    for gender, forms in enumerate(
        [("er", "ihn", "ihm"), ("sie", "sie", "ihr"), ("es", "es", "ihm")]
    )
)
WHO = NP("who", "who", 2, 2, ("wer", "wen", "wem"))
REFLEXIVE = ("mich", "dich", "sich", "uns", "sich")
# The subject of impersonal clauses, which is "es" whatever noun is near.
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
    # By sound: "university" and "useful" begin with a consonant.
    return "an" if word[0] in "aeiou" and not word.startswith(("uni", "use")) else "a"


def noun_phrase(
    determiner: Determiner,
    noun: Noun,
    plural: bool = False,
    modifiers: tuple = (),
    owner: NP | None = None,
) -> NP:
    """Returns the phrase of a noun with a determiner.

    `modifiers` are adjectives as (English, German stem). The genitive of an `owner` replaces the
    article.
    """
    # Apart, because some nouns differ in number: trousers, die Hose; furniture, die Möbel.
    is_plural, is_german_plural = noun.numbers[-1 if plural else 0]
    words = [english for english, _ in modifiers]
    words.append(noun.english_plural if is_plural else noun.english)
    head = determiner.plural if is_plural else determiner.singular
    attribute = ""
    if owner:
        head = owner.en + ("'" if owner.agreement == 1 and owner.en.endswith("s") else "'s")
        attribute = "" if owner.forms else " " + owner.german(GEN)
        # A name in the genitive replaces the article ("Annas neues Auto"), so adjectives are
        # strong.
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
    """Returns a German preposition with its phrase, such as "unter dem Tisch".

    A definite article is contracted with the preposition, as in "im Garten" and "zur Schule".
    """
    text = np.german(case)
    # Before a relative clause, the article points to it and is not contracted: "in dem Garten, in
    # dem".
    if np.determiner is THE and not np.relative:
        word, _, rest = text.partition(" ")
        contracted = CONTRACTIONS.get((preposition, word))
        if contracted:
            return f"{contracted} {rest}"
    return f"{preposition} {text}"


# --------------------------------------------------------------------------------------------------
# Clauses in both languages.
#
# A `Clause` is an abstract structure of noun phrases, a verb and adverbials. `english` and `german`
# render it by the rules of their language, so that both sides always have the same meaning. English
# has do-support, particles and inversion. German has cases, the position of the finite verb, the
# middle field and the verbal bracket.
#
# If German has several forms, the grammar always uses the same one, because a model could only
# guess among them: "you" is "du", and the English past and present perfect become the German
# perfect, except for "sein", "haben", "wissen" and the modal verbs, which take the preterite.

PRESENT, PROGRESSIVE, PAST, PERFECT, FUTURE, MODAL = range(6)
# the position of the German finite verb; SHARED omits the subject and the auxiliary
SECOND, FIRST, LAST, SHARED = range(4)


@dataclass(slots=True)
class Clause:
    """The abstract structure of a clause."""

    subject: NP
    verb: Verb
    tense: int = PRESENT
    modal: Modal | None = None
    negated: bool = False
    accusative: NP | None = None
    dative: NP | None = None
    governed: NP | None = None  # the object of the preposition that the verb takes
    to: bool = False  # "gives the book to her" instead of "gives her the book"
    lead_time: bool = False  # whether the adverbial of time comes first
    time: Both | None = None
    frequency: Both | None = None
    already: Both | None = None
    manner: Both | None = None
    company: Both | None = None
    place: Both | None = None
    predicate: Both | None = None
    complement: Both | None = None


# by agreement
AM = ("am", "are", "is")
WAS = ("was", "were", "was")
HAVE = ("have", "have", "has")
DO = ("do", "do", "does")


def english_verb(clause: Clause, inverted: bool) -> Both:
    """Returns (auxiliary or "", rest of the verb), such as ("does", "call") or ("", "called")."""
    verb = clause.verb
    tense = clause.tense
    modal = clause.modal
    agreement = clause.subject.agreement
    needs_do = inverted or clause.negated
    if tense == MODAL:
        if not modal.full:
            return modal.first, f"{modal.link} {verb.base}".strip()
        if needs_do:
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
    if needs_do:
        return "did" if tense == PAST else DO[agreement], verb.base
    if tense == PAST:
        return "", verb.past
    return "", verb.third if agreement == 2 else verb.base


def english_rest(clause: Clause, verbal: str) -> list[str]:
    """Returns the words from the lexical verb on. `verbal` is the verb itself."""
    verb = clause.verb
    accusative = clause.accusative
    dative = clause.dative
    words = [verbal, verb.tail]
    # "turn on the radio", but "turn it on".
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
    """Returns the clause in English.

    `inverted` puts the auxiliary before the subject. `shared` omits both.
    """
    auxiliary, verbal = english_verb(clause, inverted)
    subject = clause.subject
    words = [subject.en] if not subject.relative else [subject.en, subject.relative[0]]
    words = [auxiliary, *words] if inverted else [*words, auxiliary]
    if shared:
        words = []
    elif clause.lead_time:
        words.insert(0, clause.time[0])
    if clause.negated and auxiliary == "can" and not inverted:
        # "can not" is unusual in English.
        words[-1] = "cannot"
    elif clause.negated:
        words.append("not")
    elif clause.already:
        words.append("already")
    if clause.frequency:
        words.append(clause.frequency[0])
    words += english_rest(clause, verbal)
    return _joined(words)


def german_verb(clause: Clause, person: int) -> tuple[str, str, str]:
    """Returns the finite verb, the rest of the verb, and both together.

    The rest is at the end of a main clause, and both are at the end of a subordinate clause.
    """
    verb = clause.verb
    tense = clause.tense
    if tense == MODAL and clause.modal.german:
        finite = clause.modal.german[person]
        rest = verb.infinitive
    elif tense == FUTURE:
        finite = WERDEN[person]
        rest = verb.infinitive
    elif tense == PERFECT or tense == PAST and not verb.preterite:
        finite = (SEIN if verb.auxiliary == "sein" else HABEN)[person]
        rest = verb.participle_german
    else:
        finite = (verb.preterite if tense == PAST else verb.present)[person]
        return finite, verb.prefix.strip(), verb.prefix + finite
    return finite, rest, f"{rest} {finite}"


def negative_object(clause: Clause) -> bool:
    """Returns whether the German negation is "kein" with the object instead of "nicht"."""
    np = clause.accusative
    return np is not None and np.determiner is not None and np.determiner.negative


def middle_field(clause: Clause, accusative: NP | None, dative: NP | None) -> list[str]:
    """Returns the words between the two parts of the German verb.

    Their order is pronouns, time, noun objects (dative first), negation, manner, company, place.
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
    """Returns the clause in German, with its finite verb in the position `order`.

    If words `lead` a main clause, the subject comes after the verb.
    """
    verb = clause.verb
    if verb.frame == "pleasing":  # "Anna likes the coat" is "der Mantel gefällt Anna"
        subject, accusative, dative = clause.accusative, None, clause.subject
    else:
        subject, accusative, dative = clause.subject, clause.accusative, clause.dative
    finite, rest, final = german_verb(clause, subject.person)
    words = [subject.german(NOM) + (f", {subject.relative[1]}," if subject.relative else "")]
    lead = clause.time[1] if clause.lead_time else lead
    pronouns = [REFLEXIVE[subject.person]] if verb.reflexive else []
    if order == SHARED:
        words = pronouns if final != verb.prefix + finite else [finite, *pronouns]
    elif order == SECOND and not lead:
        words += (finite, *pronouns)
    else:
        # A pronoun in the dative comes before a subject that is a noun: "weil ihm der Mantel
        # gefällt".
        has_pronoun = dative and dative.pronoun and not (accusative and accusative.pronoun)
        if has_pronoun and not subject.pronoun:
            pronouns.append(dative.german(DAT))
            dative = None
        words = [*words, *pronouns] if subject.pronoun else [*pronouns, *words]
        if order != LAST:
            words = [lead, finite, *words]
    words += middle_field(clause, accusative, dative)
    words.append(final if order == LAST else rest)
    # Behind the verb, because a relative clause in the middle field would separate its two parts.
    words += [f", {np.relative[1]}," for np in (accusative, dative) if np and np.relative]
    if clause.complement:
        words.append(clause.complement[1])
    return _joined(words)


def infinitive(clause: Clause, gerund: bool = False, opening: Both = ("", "")) -> Both:
    """Returns an infinitive clause: ("to call her brother", ", ihren Bruder anzurufen,")."""
    verb = clause.verb
    english_words = english_rest(clause, verb.ing if gerund else f"to {verb.base}")
    german_words = [
        opening[1],
        REFLEXIVE[clause.subject.person] if verb.reflexive else "",
        *middle_field(clause, clause.accusative, clause.dative),
        verb.zu,
    ]
    # Without its own commas, which the end of the infinitive clause provides.
    end = f", {clause.complement[1].strip(', ')}" if clause.complement else ""
    return _joined([opening[0], *english_words]), f", {_joined(german_words)}{end},"


def imperative(clause: Clause, polite: bool = False) -> Both:
    """Returns an imperative that addresses one person, or "let us" if the subject is "we"."""
    verb = clause.verb
    together = clause.subject is PRONOUNS["we"]
    english_words = [
        "please" if polite else "",
        "do not" if clause.negated else "",
        "let us" if together else "",
        verb.base,
        *english_rest(clause, ""),
    ]
    middle = middle_field(clause, clause.accusative, clause.dative)
    if together:
        german_words = ["lass uns", *middle, verb.infinitive]
    else:
        german_words = [
            "bitte" if polite else "",
            verb.imperative,
            "dich" if verb.reflexive else "",
            *middle,
            verb.prefix.strip(),
        ]
    punctuation = "." if polite else "!"
    return _joined(english_words) + punctuation, _joined(german_words) + punctuation


def embedded(clause: Clause) -> Clause:
    """Removes what comes before the subject of the clause, and returns the clause.

    A clause that ends with a complement loses its adverbial of time.
    """
    # Otherwise the adverbial could be understood as part of the complement.
    if clause.complement:
        clause.time = None
    clause.lead_time = False
    return clause


def subclause(conjunction: Both, clause: Clause) -> Both:
    """Returns a subordinate clause: ("that he sleeps", ", dass er schläft,")."""
    embedded(clause)
    return f"{conjunction[0]} {english(clause)}", f", {conjunction[1]} {german(clause, LAST)},"


def _joined(words: list[str]) -> str:
    return " ".join([word for word in words if word])
