"""Words and phrases of the built-in grammar: inflection, agreement, numbers."""

import pytest

from transformer_jax.corpora.grammar.clauses import (
    DETERMINERS,
    NAMES,
    SIRS,
    conjoined,
    noun_phrase,
    numeral,
    prepositional,
)
from transformer_jax.corpora.grammar.morphology import (
    ACC,
    DAT,
    GEN,
    NOM,
    NOUNS,
    VERBS,
    english_number,
    german_number,
)

ADJECTIVES = {
    adjective.english: adjective for noun in NOUNS.values() for adjective in noun.adjectives
}
ANNA = next(name for name in NAMES if name.en == "Anna")


def np(determiner, noun, *adjectives, plural=False, owner=None):
    """Returns a noun phrase. "big+" is the comparative of an adjective, "big^" the superlative."""
    if isinstance(determiner, str):
        determiner = DETERMINERS[determiner]
    else:
        determiner = numeral(determiner)
    degrees = {"+": "comparative", "^": "superlative"}
    modifiers = tuple(
        getattr(ADJECTIVES[word.rstrip("+^")], degrees.get(word[-1], "positive"))
        for word in adjectives
    )
    return noun_phrase(determiner, NOUNS[noun], plural, modifiers, owner)


def verb(english_verb, frame="accusative"):
    return next(v for v in VERBS[frame] if f"{v.base} {v.tail}{v.movable}".strip() == english_verb)


@pytest.mark.parametrize(
    "phrase, case, expected_english, expected_german",
    [
        (np("the", "man", "old"), NOM, "the old man", "der alte Mann"),
        (np("the", "man", "old"), GEN, "the old man", "des alten Mannes"),
        (np("a", "apple", "sweet"), ACC, "a sweet apple", "einen süßen Apfel"),
        (np("a", "apple"), ACC, "an apple", "einen Apfel"),
        (np("a", "university"), DAT, "a university", "einer Universität"),
        (
            np("my", "child", "young", plural=True),
            DAT,
            "my young children",
            "meinen jungen Kindern",
        ),
        (np("the", "boy"), ACC, "the boy", "den Jungen"),
        (np("every", "student"), DAT, "every student", "jedem Studenten"),
        (np("this", "mountain", "high"), ACC, "this high mountain", "diesen hohen Berg"),
        (np("", "water", "cold"), ACC, "cold water", "kaltes Wasser"),
        (np("", "coffee", "hot"), DAT, "hot coffee", "heißem Kaffee"),
        (
            np("many", "book", "expensive", plural=True),
            NOM,
            "many expensive books",
            "viele teure Bücher",
        ),
        (
            np(21, "goose", "white", plural=True),
            DAT,
            "twenty-one white geese",
            "einundzwanzig weißen Gänsen",
        ),
        (np("our", "house", "old^"), NOM, "our oldest house", "unser ältestes Haus"),
        (np("the", "dog", "big+"), ACC, "the bigger dog", "den größeren Hund"),
        (np("this", "trousers", "new"), NOM, "these new trousers", "diese neue Hose"),
        (np("the", "news"), DAT, "the news", "den Nachrichten"),
        (np("not a", "car", "red"), ACC, "a red car", "kein rotes Auto"),
        (np("the", "car", "new", owner=ANNA), ACC, "Anna's new car", "Annas neues Auto"),
        (
            np("the", "car", "new", owner=np("my", "teacher")),
            ACC,
            "my teacher's new car",
            "das neue Auto meines Lehrers",
        ),
        (SIRS[0], DAT, "Mr Weber", "Herrn Weber"),
        (
            conjoined(ANNA, np("her", "sister")),
            DAT,
            "Anna and her sister",
            "Anna und ihrer Schwester",
        ),
    ],
)
def test_noun_phrases_take_gender_number_and_case(phrase, case, expected_english, expected_german):
    assert (phrase.en, phrase.german(case)) == (expected_english, expected_german)


@pytest.mark.parametrize(
    "preposition, phrase, case, expected",
    [
        ("in", np("the", "garden"), DAT, "im Garten"),
        ("in", np("the", "cinema"), ACC, "ins Kino"),
        ("in", np("this", "cinema"), ACC, "in dieses Kino"),
        ("zu", np("the", "bank"), DAT, "zur Bank"),
        ("auf", np("the", "table"), ACC, "auf den Tisch"),
    ],
)
def test_prepositions_govern_case_and_contract_with_plain_articles(
    preposition, phrase, case, expected
):
    assert prepositional(preposition, phrase, case) == expected


@pytest.mark.parametrize(
    "number, expected_english, expected_german",
    [
        (2, "two", "zwei"),
        (16, "sixteen", "sechzehn"),
        (21, "twenty-one", "einundzwanzig"),
        (30, "thirty", "dreißig"),
        (105, "one hundred and five", "hundertfünf"),
        (777, "seven hundred and seventy-seven", "siebenhundertsiebenundsiebzig"),
        (1000, "one thousand", "tausend"),
        (2105, "two thousand one hundred and five", "zweitausendeinhundertfünf"),
        (
            9999,
            "nine thousand nine hundred and ninety-nine",
            "neuntausendneunhundertneunundneunzig",
        ),
    ],
)
def test_numbers_in_words(number, expected_english, expected_german):
    assert (english_number(number), german_number(number)) == (expected_english, expected_german)


def test_numbers_never_coincide():
    for in_words in (english_number, german_number):
        assert len({in_words(n) for n in range(2, 10000)}) == 9998


@pytest.mark.parametrize(
    "name, frame, english_forms, german_forms",
    [
        (
            "call",
            "accusative",
            "calls called called calling",
            "rufe rufst ruft rufen / angerufen / anzurufen / ruf",
        ),
        (
            "read",
            "accusative",
            "reads read reading",
            "lese liest liest lesen / gelesen / zu lesen / lies",
        ),
        (
            "invite",
            "accusative",
            "invites invited invited inviting",
            "lade lädst lädt laden / eingeladen / einzuladen / lade",
        ),
        (
            "collect",
            "accusative",
            "collects collected collected collecting",
            "sammle sammelst sammelt sammeln / gesammelt / zu sammeln / sammle",
        ),
        (
            "travel",
            "intransitive",
            "travels travelled travelled travelling",
            "reise reist reist reisen / gereist / zu reisen / reis",
        ),
        (
            "swim",
            "intransitive",
            "swims swam swum swimming",
            "schwimme schwimmst schwimmt schwimmen / geschwommen / zu schwimmen / schwimm",
        ),
        (
            "play the piano",
            "intransitive",
            "plays played played playing",
            "spiele spielst spielt spielen / Klavier gespielt / Klavier zu spielen / spiel",
        ),
        (
            "translate",
            "accusative",
            "translates translated translated translating",
            "übersetze übersetzt übersetzt übersetzen / übersetzt / zu übersetzen / übersetz",
        ),
        (
            "open",
            "accusative",
            "opens opened opened opening",
            "öffne öffnest öffnet öffnen / geöffnet / zu öffnen / öffne",
        ),
    ],
)
def test_conjugation(name, frame, english_forms, german_forms):
    v = verb(name, frame)
    english = " ".join(form for form in (v.third, v.past, v.participle, v.ing) if form)
    assert english == english_forms
    german = f"{' '.join(v.present[:4])} / {v.participle_german} / {v.zu} / {v.imperative}"
    assert german == german_forms
