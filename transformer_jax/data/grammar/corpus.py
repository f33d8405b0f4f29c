"""The built-in English-German parallel corpus: a seeded synchronous grammar.

A sentence is drawn as an abstract structure of clauses, noun phrases, verbs and adverbials.
`clauses.english` and `clauses.german` put it into words, so that both sides always say the same.
The grammar covers phenomena that make translation more than the look-up of words:

* articles, possessives and adjectives with gender, number and case; weak nouns; genitives
* German verb second, verb first and verb last; the brackets of separable verbs, modal verbs and
  the perfect
* subordinate, relative and infinitive clauses with their commas; fronting and inversion
* government: dative verbs, verbs with two objects, reflexive verbs, prepositions with their cases
  and contractions
* English do-support, progressive, irregular forms, a/an, stranded prepositions and particles
* pronouns with the gender of the German noun; numbers in words; time of day; comparison

The German is a function of the English: no sentence has two translations. Where German has several
forms, the grammar always makes the same choice. Pronouns with an unclear German gender are not
used.

`lexicon` lists the words, `morphology` inflects them, and `selection` says which fit each other.
"""

import hashlib
import zlib
from collections.abc import Iterator

from transformer_jax.data.grammar.dialogue import (
    age,
    command,
    existential,
    polar_question,
    price,
    request,
    time_of_day,
)
from transformer_jax.data.grammar.noun_phrases import Both
from transformer_jax.data.grammar.phrases import Draw
from transformer_jax.data.grammar.questions import content_question
from transformer_jax.data.grammar.statements import (
    anaphora,
    complex_statement,
    control_statement,
    coordination,
    impersonal_statement,
    purpose_statement,
    relative_statement,
    report_statement,
    statement,
)

VERSION = "1"  # part of the data fingerprint; a change of any sentence needs a new one
SPLITS = ("train", "valid", "test")
MIN_WORDS, MAX_WORDS = 3, 22
WEIGHTS = {
    statement: 16,
    complex_statement: 18,
    relative_statement: 12,
    report_statement: 10,
    control_statement: 7,
    purpose_statement: 3,
    impersonal_statement: 2,
    coordination: 8,
    anaphora: 6,
    polar_question: 7,
    request: 2,
    content_question: 6,
    command: 5,
    existential: 2,
    age: 1,
    price: 1,
    time_of_day: 0.4,
}
SENTENCES = tuple(kind for kind, weight in WEIGHTS.items() for _ in range(round(5 * weight)))


def finish(en: str, de: str) -> Both:
    """Adds capitals and merges the comma at the end of a clause with the next mark."""
    de = de.replace(" ,", ",")
    for mark in ",.?!":
        de = de.replace(f",{mark}", mark)
    return en[0].upper() + en[1:], de[0].upper() + de[1:]


def sentence(rng: Draw) -> Both:
    """Draws a sentence in both languages. WEIGHTS are the weights of its kinds."""
    return finish(*rng.pick(SENTENCES)(rng))


def split_of(english_sentence: str) -> str:
    """Returns the split of an English sentence, whatever the seed.

    80 % of the sentences are in train, 10 % in valid and 10 % in test.
    """
    bucket = zlib.crc32(english_sentence.encode()) % 10
    return SPLITS[0] if bucket < 8 else SPLITS[bucket - 7]


def sentence_pair(seed: int, split: str, index: int) -> tuple[str, str]:
    """Returns an English sentence and its German translation.

    The pair is a pure function of the arguments, on every machine and in every version of Python.
    Raises ValueError for an unknown split.
    """
    if split not in SPLITS:
        raise ValueError(f"split={split!r}: must be one of {', '.join(SPLITS)}")
    attempt = 0
    while True:
        key = f"{VERSION}/{seed}/{split}/{index}/{attempt}".encode()
        digest = hashlib.blake2b(key, digest_size=8).digest()
        pair = sentence(Draw(int.from_bytes(digest, "big")))
        if split_of(pair[0]) == split and MIN_WORDS <= pair[0].count(" ") + 1 <= MAX_WORDS:
            return pair
        attempt += 1


def pairs(seed: int, split: str, count: int) -> Iterator[tuple[str, str]]:
    """Returns the first `count` pairs of the split."""
    return (sentence_pair(seed, split, index) for index in range(count))
