"""Inflection of the words of the built-in English-German grammar.

Reads the tables of `lexicon.py` into nouns, adjectives and verbs that know all their forms in both
languages, and writes numbers in words.  Regular forms are computed by rule, irregular ones are
listed in the lexicon.
"""

import re
from dataclasses import dataclass

from transformer_jax.data.grammar import lexicon

SINGULAR, PLURAL = False, True
NOM, ACC, DAT, GEN = range(4)
# the fourth column of each declension table is the plural
GENDERS = {"m": 0, "w": 0, "f": 1, "n": 2}


# ---- inflection
# ------------------------------------------------------------------------------------------------


def _columns(text: str) -> tuple[tuple[str, ...], ...]:
    """Four rows (cases) of endings for masculine, feminine, neuter, plural; ``-`` is no ending."""
    return tuple(tuple(e.strip("-") for e in row.split()) for row in text.split("/"))


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
    """The last vowel that can take an umlaut: Apfel -> Äpfel, Haus -> Häus."""
    at = max(word.lower().rfind(vowel) for vowel in "aou")
    if word[at] == "u" and word[at - 1] in "aA":
        at -= 1
    return (
        word[:at]
        + {"a": "ä", "o": "ö", "u": "ü", "A": "Ä", "O": "Ö", "U": "Ü"}[word[at]]
        + word[at + 1 :]
    )


def english_plural(noun: str) -> str:
    if re.search(r"(s|x|ch|sh)$", noun):
        return noun + "es"
    return noun[:-1] + "ies" if re.search(r"[^aeiou]y$", noun) else noun + "s"


def doubled(word: str) -> str:
    """Doubles the last consonant where a vowel ending requires it: sit -> sitt(ing), big ->
    bigg(er).
    """
    short = re.fullmatch(r"[^aeiou]*[aeiou][^aeiouwxy]", word)
    return word + word[-1] if short or word in ("begin", "forget", "travel") else word


def english_comparison(adjective: str) -> tuple[str, str]:
    if adjective in ("good", "bad"):
        return ("better", "best") if adjective == "good" else ("worse", "worst")
    if re.search(r"[^aeiou]y$", adjective) and "-" not in adjective:
        return adjective[:-1] + "ier", adjective[:-1] + "iest"
    syllables = len(re.findall(r"[aeiou]+", adjective.removesuffix("e")))
    if syllables == 1 or adjective in ("clever", "quiet"):
        stem = doubled(adjective).removesuffix("e")
        return stem + "er", stem + "est"
    return "more " + adjective, "most " + adjective


ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen".split()
)
TENS = "- - twenty thirty forty fifty sixty seventy eighty ninety".split()
EINER = (
    "null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn "
    "siebzehn achtzehn neunzehn".split()
)
ZEHNER = "- - zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig".split()


def english_number(n: int) -> str:
    """1 to 9999 in words: 2105 is "two thousand one hundred and five"."""
    if n >= 100:
        unit, word = (1000, "thousand") if n >= 1000 else (100, "hundred")
        head, rest = f"{ONES[n // unit]} {word}", n % unit
        link = "and " if rest < 100 else ""
        return f"{head} {link}{english_number(rest)}" if rest else head
    if n < 20:
        return ONES[n]
    return TENS[n // 10] + (f"-{ONES[n % 10]}" if n % 10 else "")


def german_number(n: int, last: bool = True) -> str:
    """1 to 9999 in words: 2105 is "zweitausendeinhundertfünf"; a final one is "eins"."""
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


# ---- words
# -----------------------------------------------------------------------------------------------------


class Adjective:
    """Its degrees, each as a modifier (English, German stem), and its predicative forms."""

    def __init__(self, line: str):
        english, german, *degrees = line.split()
        self.english = english.rstrip("!")
        self.german, _, stem = german.partition(":")
        stem = stem or self.german
        self.comparable = not english.endswith("!")
        comparative, superlative = english_comparison(self.english)
        sibilant = "e" if re.search(r"(t|d|s|ß|z|sch|eu)$", stem) else ""
        self.german_comparative, self.german_superlative = degrees or (
            stem + "er",
            f"{stem}{sibilant}st",
        )
        self.positive = (self.english, stem)
        self.comparative = (comparative, self.german_comparative)
        self.superlative = (superlative, self.german_superlative)


class Noun:
    """A noun with its German case forms; `numbers` lists its possible (English, German) numbers."""

    def __init__(self, line: str, kind: str):
        english, gender, german, *rest = line.split()
        self.english, _, plural = english.replace("_", " ").partition("/")
        self.english_plural = plural or english_plural(self.english)
        self.kind, self.gender = kind, GENDERS.get(gender, 3)
        self.sex = {"m": "m", "w": "m", "f": "f"}.get(gender) if kind in ("person", "kin") else None
        # Some never stand without an article: "die Hose", "der Unterricht".
        self.bare = not (
            line.endswith(">")
            and kind in ("wear", "thing")
            or line.endswith(".")
            and kind == "event"
        )
        genitive, nominative_plural = (rest + ["-", "-"])[:2] if gender != "pl" else ("-", "-")
        genitive = german if genitive == "-" else german + genitive.removeprefix("-")
        oblique = genitive if gender == "w" else german
        self.singular = (german, oblique, oblique, genitive)
        if nominative_plural[0] == "¨":
            plural = umlaut(german) + nominative_plural[1:]
        else:
            plural = (
                german + nominative_plural[1:] if nominative_plural[0] == "-" else nominative_plural
            )
        dative = plural if plural[-1] in "ns" else plural + "n"
        self.plural = (plural, plural, dative, plural)
        self.adjectives: list[Adjective] = []
        if gender == "pl":
            self.english_plural, self.numbers = self.english, ((not line.endswith("<"), PLURAL),)
        elif nominative_plural == ".":
            if line.endswith(">"):
                self.english_plural = self.english
            self.numbers = ((line.endswith(">"), SINGULAR),)
        else:
            self.numbers = ((SINGULAR, SINGULAR),) * 2 + ((PLURAL, PLURAL),)
        self.countable = len(self.numbers) > 1


INSEPARABLE = re.compile("be|ge|er|ver|zer|ent|emp|über(?=setz)|.*ier(?=en$)")
IRREGULAR = {line.split()[0]: line.split()[1:] for line in lexicon.IRREGULAR.strip().splitlines()}


class Verb:
    """Both verbs of one translation, fully conjugated, with what they govern."""

    def __init__(self, line: str, frame: str):
        words, _, objects = line.partition(" : ")
        english, german = (side.split() for side in words.split(" = "))
        self.frame, self.objects = frame, [word for word in objects.split() if word[0] != "*"]
        self.flags = {word[1:] for word in objects.split() if word[0] == "*"}
        self.preposition = self.case = None
        if frame == "prepositional":
            self.preposition, self.case = self.objects[0], {"acc": ACC, "dat": DAT}[self.objects[1]]
            self.objects = self.objects[2:]
        self._english(*english)
        self.reflexive = german[0] == "sich"
        self._german(*german[self.reflexive :])
        self.nouns: tuple[Noun, ...] = ()

    def _english(self, parts: str, *tail: str) -> None:
        self.base, past, participle = (parts.split("/") + ["", ""])[:3]
        self.tail = " ".join(word for word in tail if word[0] != "+")
        self.movable = " ".join(word[1:] for word in tail if word[0] == "+")
        if not past:
            stem = (
                self.base[:-1] + "i" if re.search(r"[^aeiou]y$", self.base) else doubled(self.base)
            )
            past = stem + ("d" if stem.endswith("e") else "ed")
        self.past, self.participle = past.strip("-"), participle or past
        self.third = {"have": "has", "go": "goes", "be": "is"}.get(self.base) or english_plural(
            self.base
        )
        silent = re.search(r"[^e]e$", self.base)
        lying = re.sub("ie$", "y", self.base)
        self.ing = (
            lying if lying != self.base else self.base[:-1] if silent else doubled(self.base)
        ) + "ing"

    def _german(self, infinitive: str, *parts: str) -> None:
        self.prefix, _, simple = infinitive.replace("_", " |").rpartition("|")
        self.auxiliary = "sein" if "ist" in parts else "haben"
        principal = [part for part in parts if part != "ist"]
        clipped = simple.endswith(("ern", "eln"))
        stem = simple[:-1] if clipped else simple.removesuffix("n").removesuffix("e")
        joint = "e" if re.search(r"(t|d|ch[mn]|[bdfgkpt]+[mn])$", stem) else ""
        regular = stem + joint + "t"
        third = principal[0] if len(principal) == 2 else regular
        root = third[:-1]
        first = stem[:-2] + "le" if clipped and stem.endswith("el") else stem + "e"
        self.present = (
            first,
            root + ("t" if re.search("[sßzx]$", root) else "st"),
            third,
            simple,
            simple,
        )
        self.preterite = None
        forms = IRREGULAR.get(simple)
        if forms:
            self.present, self.preterite = (
                (*forms[:4], forms[3]),
                (*forms[4:], forms[-1]) if forms[4:] else None,
            )
        if third != regular and "ä" not in third:
            self.imperative = third[:-1]  # hilf, gib, lies; but: schlaf, fahr
        else:
            self.imperative = first if joint or clipped else stem
        participle = (
            principal[-1] if principal else regular if INSEPARABLE.match(simple) else "ge" + regular
        )
        self.infinitive, self.participle_german = self.prefix + simple, self.prefix + participle
        joined = self.prefix and not self.prefix.endswith(" ")
        self.zu = f"{self.prefix}zu{simple}" if joined else f"{self.prefix}zu {simple}"


@dataclass(slots=True)
class Modal:
    """An English modal; `full` ones need do-support.  Without a German verb it is the adverb
    "gern".
    """

    first: str
    third: str
    link: str
    full: str
    past: bool
    german: tuple[str, ...] | None


def _modal(line: str) -> Modal:
    english, german = line.strip().split(" = ")
    forms, *link = english.split()
    first, third = forms.split("/")
    verb, tense = german.split()
    full = {"want": "want", "wanted": "want", "have": "have", "had": "have", "like": "like"}.get(
        first, ""
    )
    forms = IRREGULAR.get(verb)
    forms = forms and (forms[:4] if tense == "present" else forms[4:])
    return Modal(first, third, " ".join(link), full, tense == "past", forms and (*forms, forms[3]))


def _lines(table: str) -> list[str]:
    return [line.strip() for line in table.strip().splitlines()]


def _adverbs(text: str) -> tuple[tuple[str, str], ...]:
    return tuple(tuple(entry.strip().split(" = ")) for entry in text.split(";"))


NOUNS = {
    (noun := Noun(line, kind)).english: noun
    for kind, table in lexicon.NOUNS.items()
    for line in _lines(table)
}


def nouns(words: list[str]) -> tuple[Noun, ...]:
    """The nouns of a list of classes and single words."""
    return tuple(
        noun for word in words for noun in NOUNS.values() if word in (noun.kind, noun.english)
    )


for _kinds, _table in [*lexicon.ADJECTIVES.items(), *lexicon.NOUN_ADJECTIVES.items()]:
    for _adjective in map(Adjective, _lines(_table)):
        for _noun in nouns(_kinds.split()):
            if all(_adjective.english != known.english for known in _noun.adjectives):
                _noun.adjectives.append(_adjective)
VERBS = {
    frame: tuple(Verb(line, frame) for line in _lines(table))
    for frame, table in lexicon.VERBS.items()
}
for _verb in (verb for verbs in VERBS.values() for verb in verbs):
    _verb.nouns = nouns(_verb.objects)
BE = VERBS["copula"][0]
MODALS = {modal.first: modal for modal in map(_modal, _lines(lexicon.MODALS))}
HABEN, SEIN, WERDEN = (
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
