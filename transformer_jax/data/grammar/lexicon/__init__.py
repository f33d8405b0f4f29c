"""The words of the built-in grammar, one lexeme a line, as in a learner's dictionary.

The modules hold tables only. `morphology` and `vocabulary` read them.

Nouns are `english[/plural] gender German genitive plural`. Endings are written as in dictionaries:
`-es` is appended, `¨er` changes the last vowel to its umlaut and is appended, `-` changes nothing.
Anything else is the whole form. A plural `.` marks a mass noun, which has no plural. The gender `w`
is masculine of the weak declension: the genitive is also accusative and dative. Some words differ
in number between the languages:

* `>` at the end: English plural, German singular (trousers, die Hose).
* `<` at the end: English singular, German plural (furniture, die Möbel).
* `pl` in place of the gender: plural in both languages.

Adjectives are `english German [comparative superlative]`. The German is `predicative:stem` where
endings are appended to another stem (teuer, ein teures Buch). `!` marks adjectives without
comparison.

Verbs are `english = German : ...`. English principal parts are `give/gave/given`. A past `-` is not
used, because it sounds or looks like the present (read, put). `+on` may follow a pronoun object
("turn it on"). German parts are `geben gibt gegeben`, with `ist` before the participle if that is
the auxiliary. `an|rufen` is separable, and so is `Klavier_spielen`, in two words. Regular parts are
left out. After the colon stand the classes or nouns that fit as object, behind the German
preposition and its case if the verb governs one. `*state` marks verbs without a progressive. Other
starred words are classes of adverbials and subjects that fit.

An English word in a frame with a class of objects has exactly one German translation. "you" is
always "du".
"""

from transformer_jax.data.grammar.lexicon.adjectives import ADJECTIVES, NOUN_ADJECTIVES
from transformer_jax.data.grammar.lexicon.adverbials import DEGREES, MANNERS, TIMES, VALUES
from transformer_jax.data.grammar.lexicon.nouns import NOUNS
from transformer_jax.data.grammar.lexicon.places import NAMES, PLACES, REGIONS, SPOTS, SURNAMES
from transformer_jax.data.grammar.lexicon.verbs import IRREGULAR, MODALS, VERBS

__all__ = [
    "ADJECTIVES",
    "DEGREES",
    "IRREGULAR",
    "MANNERS",
    "MODALS",
    "NAMES",
    "NOUNS",
    "NOUN_ADJECTIVES",
    "PLACES",
    "REGIONS",
    "SPOTS",
    "SURNAMES",
    "TIMES",
    "VALUES",
    "VERBS",
]
