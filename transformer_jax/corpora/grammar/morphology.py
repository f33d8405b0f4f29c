"""Inflected words of both languages, and numbers in words."""

import re
from dataclasses import dataclass

from transformer_jax.corpora.grammar import lexicon

# --------------------------------------------------------------------------------------------------
# Inflection of English and German words.
#
# A line of the lexicon becomes a noun, an adjective or a verb with all its forms in both languages.
# Regular forms follow rules, and irregular forms are listed in the lexicon. All forms are made
# once, at import, because a corpus has millions of words.

SINGULAR, PLURAL = False, True
NOM, ACC, DAT, GEN = range(4)
# The column of each declension table. The plural is the fourth, because German has one for all
# genders. The weak masculine "w" has the column of "m", because only its nouns are declined
# otherwise.
GENDERS = {"m": 0, "w": 0, "f": 1, "n": 2}


def _columns(text: str) -> tuple[tuple[str, ...], ...]:
    """Parses endings by case for masculine, feminine, neuter and plural; `-` is an empty ending."""
    return tuple(tuple(ending.strip("-") for ending in row.split()) for row in text.split("/"))


WEAK = _columns("e e e en / en e e en / en en en en / en en en en")
MIXED = _columns("er e es en / en e es en / en en en en / en en en en")
STRONG = _columns("er e es e / en e es e / em er em en / en er en er")
ARTICLE = _columns("der die das die / den die das die / dem der dem den / des der des der")
DIES = _columns("er e es e / en e es e / em er em en / es er es er")
EIN = _columns("- e - e / en e - e / em er em en / es er es er")
FIXED = _columns("- - - - / - - - - / - - - - / - - - -")
RELATIVE = _columns(
    "der die das die / den die das die / dem der dem denen / dessen deren dessen deren"
)


def umlaut(word: str) -> str:
    """Changes the last vowel that can take an umlaut: Apfel -> Äpfel, Haus -> Häus."""
    index = max(word.lower().rfind(vowel) for vowel in "aou")
    # In the diphthong "au", the "a" takes the umlaut.
    if word[index] == "u" and word[index - 1] in "aA":
        index -= 1
    vowel = {"a": "ä", "o": "ö", "u": "ü", "A": "Ä", "O": "Ö", "U": "Ü"}[word[index]]
    return word[:index] + vowel + word[index + 1 :]


def english_plural(noun: str) -> str:
    if re.search(r"(s|x|ch|sh)$", noun):
        return noun + "es"
    return noun[:-1] + "ies" if re.search(r"[^aeiou]y$", noun) else noun + "s"


def doubled(word: str) -> str:
    """Doubles the last consonant if endings require it: sit -> sitt(ing), big -> bigg(er)."""
    is_short = re.fullmatch(r"[^aeiou]*[aeiou][^aeiouwxy]", word)
    return word + word[-1] if is_short or word in ("begin", "forget", "travel") else word


def english_comparison(adjective: str) -> tuple[str, str]:
    """Returns the comparative and the superlative of an English adjective."""
    if adjective in ("good", "bad"):
        return ("better", "best") if adjective == "good" else ("worse", "worst")
    if re.search(r"[^aeiou]y$", adjective) and "-" not in adjective:
        return adjective[:-1] + "ier", adjective[:-1] + "iest"
    syllables = len(re.findall(r"[aeiou]+", adjective.removesuffix("e")))
    if syllables == 1 or adjective in ("clever", "quiet"):
        stem = doubled(adjective).removesuffix("e")
        return stem + "er", stem + "est"
    return "more " + adjective, "most " + adjective


class Adjective:
    """An adjective: its degrees as (English, German stem), and its predicative forms."""

    def __init__(self, line: str):
        english, german, *degrees = line.split()
        self.english = english.rstrip("!")
        self.german, _, stem = german.partition(":")
        stem = stem or self.german
        self.comparable = not english.endswith("!")
        comparative, superlative = english_comparison(self.english)
        # A superlative needs a vowel after these sounds: "kältest", "heißest", "neuest".
        sibilant = "e" if re.search(r"(t|d|s|ß|z|sch|eu)$", stem) else ""
        regular = (f"{stem}er", f"{stem}{sibilant}st")
        self.german_comparative, self.german_superlative = degrees or regular
        self.positive = (self.english, stem)
        self.comparative = (comparative, self.german_comparative)
        self.superlative = (superlative, self.german_superlative)


class Noun:
    """A noun with its German forms by case.

    `numbers` lists its grammatical numbers as (is plural in English, is plural in German). `bare`
    is whether it can be used without an article.
    """

    def __init__(self, line: str, kind: str):
        english, gender, german, *rest = line.split()
        self.english, _, plural = english.replace("_", " ").partition("/")
        self.english_plural = plural or english_plural(self.english)
        self.kind = kind
        self.gender = GENDERS.get(gender, 3)
        self.sex = {"m": "m", "w": "m", "f": "f"}.get(gender) if kind in ("person", "kin") else None
        # These are not bare, because German needs an article where English has none: "die Hose",
        # "der Unterricht".
        is_clothing = line.endswith(">") and kind in ("wear", "thing")
        self.bare = not (is_clothing or line.endswith(".") and kind == "event")
        genitive, plural_ending = (rest + ["-", "-"])[:2] if gender != "pl" else ("-", "-")
        genitive = german if genitive == "-" else german + genitive.removeprefix("-")
        oblique = genitive if gender == "w" else german
        self.singular = (german, oblique, oblique, genitive)
        if plural_ending[0] == "¨":
            plural = umlaut(german) + plural_ending[1:]
        elif plural_ending[0] == "-":
            plural = german + plural_ending[1:]
        else:
            plural = plural_ending
        # The dative plural ends with n, except after n and after an s from another language: "den
        # Autos".
        dative = plural if plural[-1] in "ns" else plural + "n"
        self.plural = (plural, plural, dative, plural)
        self.adjectives: list[Adjective] = []
        if gender == "pl":
            self.english_plural = self.english
            self.numbers = ((not line.endswith("<"), PLURAL),)
        elif plural_ending == ".":
            if line.endswith(">"):
                self.english_plural = self.english
            self.numbers = ((line.endswith(">"), SINGULAR),)
        else:
            # The first entry is for the singular and the last one for the plural, as `noun_phrase`
            # picks them.
            self.numbers = ((SINGULAR, SINGULAR),) * 2 + ((PLURAL, PLURAL),)
        self.countable = len(self.numbers) > 1


INSEPARABLE = re.compile("be|ge|er|ver|zer|ent|emp|über(?=setz)|.*ier(?=en$)")
IRREGULAR = {line.split()[0]: line.split()[1:] for line in lexicon.IRREGULAR.strip().splitlines()}


class Verb:
    """An English verb and its German translation with all forms, objects and flags."""

    def __init__(self, line: str, frame: str):
        words, _, objects = line.partition(" : ")
        english, german = (side.split() for side in words.split(" = "))
        self.frame = frame
        self.objects = [word for word in objects.split() if word[0] != "*"]
        self.flags = {word[1:] for word in objects.split() if word[0] == "*"}
        self.preposition = self.case = None
        if frame == "prepositional":
            self.preposition, case, *self.objects = self.objects
            self.case = {"acc": ACC, "dat": DAT}[case]
        self._english(*english)
        self.reflexive = german[0] == "sich"
        self._german(*german[self.reflexive :])
        self.is_action = "state" not in self.flags and self.base != "be"
        self.nouns: tuple[Noun, ...] = ()  # the nouns that fit as its object

    def _english(self, parts: str, *tail: str) -> None:
        self.base, past, participle = (parts.split("/") + ["", ""])[:3]
        self.tail = " ".join(word for word in tail if word[0] != "+")
        self.movable = " ".join(word[1:] for word in tail if word[0] == "+")
        if not past:
            ends_in_y = re.search(r"[^aeiou]y$", self.base)
            stem = self.base[:-1] + "i" if ends_in_y else doubled(self.base)
            past = stem + ("d" if stem.endswith("e") else "ed")
        self.past = past.strip("-")
        self.participle = participle or past
        irregular = {"have": "has", "go": "goes", "be": "is"}
        self.third = irregular.get(self.base) or english_plural(self.base)
        if self.base.endswith("ie"):
            self.ing = self.base[:-2] + "ying"
        elif re.search(r"[^e]e$", self.base):
            self.ing = self.base[:-1] + "ing"
        else:
            self.ing = doubled(self.base) + "ing"

    def _german(self, infinitive: str, *parts: str) -> None:
        self.prefix, _, simple = infinitive.replace("_", " |").rpartition("|")
        self.auxiliary = "sein" if "ist" in parts else "haben"
        principal = [part for part in parts if part != "ist"]
        # These infinitives end with n and not with en: "wandern", "sammeln".
        clipped = simple.endswith(("ern", "eln"))
        stem = simple[:-1] if clipped else simple.removesuffix("n").removesuffix("e")
        # Without it, the ending could not be heard or spoken: "arbeitet", "öffnet".
        link = "e" if re.search(r"(t|d|ch[mn]|[bdfgkpt]+[mn])$", stem) else ""
        regular = stem + link + "t"
        third = principal[0] if len(principal) == 2 else regular
        root = third[:-1]
        first = stem[:-2] + "le" if clipped and stem.endswith("el") else stem + "e"
        # A second s would not be heard: "du liest", "du heißt".
        second = root + ("t" if re.search("[sßzx]$", root) else "st")
        self.present = (first, second, third, simple, simple)
        self.preterite = None
        if forms := IRREGULAR.get(simple):
            self.present = (*forms[:4], forms[3])
            self.preterite = (*forms[4:], forms[-1]) if forms[4:] else None
        if third != regular and "ä" not in third:
            self.imperative = third[:-1]  # hilf, gib, lies, but not schlaf, fahr
        else:
            self.imperative = first if link or clipped else stem
        if principal:
            participle = principal[-1]
        else:
            # Verbs with an unstressed first syllable take no "ge": "besucht", "studiert".
            participle = regular if INSEPARABLE.match(simple) else f"ge{regular}"
        self.infinitive = self.prefix + simple
        self.participle_german = self.prefix + participle
        is_one_word = self.prefix and not self.prefix.endswith(" ")
        self.zu = f"{self.prefix}zu{simple}" if is_one_word else f"{self.prefix}zu {simple}"


@dataclass(slots=True)
class Modal:
    """A modal verb. If it has no German verb, its translation is the adverb "gern"."""

    first: str  # the English first person
    third: str  # the English third person
    link: str  # words before the infinitive
    full: str  # the base of a full verb, which needs do-support; "" for other modal verbs
    past: bool
    german: tuple[str, ...] | None  # by person


# --------------------------------------------------------------------------------------------------
# Numbers from 1 to 9999 in words, because the order of tens and ones differs between the languages,
# which digits would hide.

ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen".split()
)

TENS = "- - twenty thirty forty fifty sixty seventy eighty ninety".split()

EINER = (
    "null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn "
    "sechzehn siebzehn achtzehn neunzehn".split()
)

ZEHNER = "- - zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig".split()


def english_number(n: int) -> str:
    """Returns `n` in words: 2105 is "two thousand one hundred and five"."""
    if n >= 100:
        unit, word = (1000, "thousand") if n >= 1000 else (100, "hundred")
        head = f"{ONES[n // unit]} {word}"
        rest = n % unit
        link = "and " if rest < 100 else ""
        return f"{head} {link}{english_number(rest)}" if rest else head
    if n < 20:
        return ONES[n]
    return TENS[n // 10] + (f"-{ONES[n % 10]}" if n % 10 else "")


def german_number(n: int, last: bool = True) -> str:
    """Returns `n` in words: 2105 is "zweitausendeinhundertfünf".

    1 is "eins" if it is the `last` word, and otherwise "ein".
    """
    if n >= 1000:
        head = "tausend" if n < 2000 else EINER[n // 1000] + "tausend"
        rest = german_number(n % 1000) if n % 1000 else ""
        return head + ("ein" + rest if 100 <= n % 1000 < 200 else rest)
    if n >= 100:
        head = "hundert" if n < 200 else EINER[n // 100] + "hundert"
        return head + (german_number(n % 100) if n % 100 else "")
    if n < 20:
        return "eins" if n == 1 and last else EINER[n]
    return (EINER[n % 10] + "und" if n % 10 else "") + ZEHNER[n // 10]


# --------------------------------------------------------------------------------------------------
# The words of the lexicon with all their forms. Verbs and adjectives are joined with the nouns that
# fit them here, once, and not in each draw.


def _lines(table: str) -> list[str]:
    return [line.strip() for line in table.strip().splitlines()]


def _adverbs(text: str) -> tuple[tuple[str, str], ...]:
    return tuple(tuple(entry.strip().split(" = ")) for entry in text.split(";"))


def _modal(line: str) -> Modal:
    english, german = line.strip().split(" = ")
    forms, *link = english.split()
    first, third = forms.split("/")
    verb, tense = german.split()
    full_verbs = {"want": "want", "wanted": "want", "have": "have", "had": "have", "like": "like"}
    forms = IRREGULAR.get(verb)
    if forms:
        forms = forms[:4] if tense == "present" else forms[4:]
        # The third person plural of a verb equals its first person plural.
        forms = (*forms, forms[3])
    return Modal(
        first=first,
        third=third,
        link=" ".join(link),
        full=full_verbs.get(first, ""),
        past=tense == "past",
        german=forms,
    )


NOUNS = {
    (noun := Noun(line, kind)).english: noun
    for kind, table in lexicon.NOUNS.items()
    for line in _lines(table)
}


def nouns(words: list[str]) -> tuple[Noun, ...]:
    """Returns the nouns of a list of classes and single words."""
    return tuple(
        noun for word in words for noun in NOUNS.values() if word in (noun.kind, noun.english)
    )


for _kinds, _table in [*lexicon.ADJECTIVES.items(), *lexicon.NOUN_ADJECTIVES.items()]:
    for _adjective in map(Adjective, _lines(_table)):
        for _noun in nouns(_kinds.split()):
            # A noun may belong to several of the classes that an adjective is listed for.
            if all(_adjective.english != other.english for other in _noun.adjectives):
                _noun.adjectives.append(_adjective)
VERBS = {
    frame: tuple(Verb(line, frame) for line in _lines(table))
    for frame, table in lexicon.VERBS.items()
}


for _verb in (verb for verbs in VERBS.values() for verb in verbs):
    _verb.nouns = nouns(_verb.objects)
BE = VERBS["copula"][0]
MODALS = {modal.first: modal for modal in map(_modal, _lines(lexicon.MODALS))}
HABEN, SEIN, WERDEN = (  # in the present, by person
    (*IRREGULAR[verb][:4], IRREGULAR[verb][3]) for verb in ("haben", "sein", "werden")
)
TIMES = {kind: _adverbs(text) for kind, text in lexicon.TIMES.items()}
MANNERS = {kind: _adverbs(text) for kind, text in lexicon.MANNERS.items()}
DEGREES = _adverbs(lexicon.DEGREES)
REGIONS = tuple(tuple(re.split("  +", line)) for line in _lines(lexicon.REGIONS))
PLACES = {
    noun: tuple(key.split())
    for key, words in lexicon.PLACES.items()
    for noun in nouns(words.split())
}
SPOTS = tuple(
    (key.split()[0].replace("_", " "), key.split()[1], noun)
    for key, words in lexicon.SPOTS.items()
    for noun in nouns(words.split())
)
VALUES = tuple(tuple(value.split(" = ")) for value in lexicon.VALUES.split("; "))
