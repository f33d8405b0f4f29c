"""Clauses of the built-in grammar in both languages."""

import pytest

from tests.data.test_grammar_words import ANNA, np, verb
from transformer_jax.corpora.grammar.clauses import (
    FIRST,
    FUTURE,
    LAST,
    MODAL,
    PAST,
    PERFECT,
    PROGRESSIVE,
    PRONOUNS,
    SECOND,
    Clause,
    english,
    german,
    imperative,
    infinitive,
)
from transformer_jax.corpora.grammar.corpus import finish, request
from transformer_jax.corpora.grammar.morphology import MODALS
from transformer_jax.corpora.grammar.phrases import Draw

SHE, HE, YOU, THEY = (PRONOUNS[word] for word in ("she", "he", "you", "they"))
ME = PRONOUNS["I"]
BROTHER = np("her", "brother")
CALL = dict(subject=SHE, verb=verb("call"), accusative=BROTHER)


def in_both_languages(clause, order=SECOND, lead=""):
    return english(clause, inverted=order == FIRST), german(clause, order, lead)


@pytest.mark.parametrize(
    "clause, order, lead, expected_english, expected_german",
    [
        (Clause(**CALL), SECOND, "", "she calls her brother", "sie ruft ihren Bruder an"),
        (Clause(**CALL), LAST, "", "she calls her brother", "sie ihren Bruder anruft"),
        (Clause(**CALL), FIRST, "", "does she call her brother", "ruft sie ihren Bruder an"),
        (
            Clause(**CALL, tense=PAST, time=("yesterday", "gestern"), lead_time=True),
            SECOND,
            "",
            "yesterday she called her brother",
            "gestern hat sie ihren Bruder angerufen",
        ),
        (
            Clause(**CALL, tense=PERFECT, already=("already", "schon")),
            SECOND,
            "",
            "she has already called her brother",
            "sie hat ihren Bruder schon angerufen",
        ),
        (
            Clause(**CALL, tense=MODAL, modal=MODALS["want"], negated=True),
            SECOND,
            "",
            "she does not want to call her brother",
            "sie will ihren Bruder nicht anrufen",
        ),
        (
            Clause(**CALL, tense=MODAL, modal=MODALS["can"], negated=True),
            LAST,
            "",
            "she cannot call her brother",
            "sie ihren Bruder nicht anrufen kann",
        ),
        (
            Clause(SHE, verb("pick up"), accusative=PRONOUNS["they"]),
            SECOND,
            "",
            "she picks them up",
            "sie holt sie ab",
        ),
        (
            Clause(HE, verb("go", "direction"), PAST, place=("home", "nach Hause")),
            SECOND,
            "deshalb",
            "he went home",
            "deshalb ist er nach Hause gegangen",
        ),
        (
            Clause(HE, verb("have"), accusative=np("not a", "car"), negated=True),
            SECOND,
            "",
            "he does not have a car",
            "er hat kein Auto",
        ),
        (
            Clause(
                ANNA,
                verb("give", "ditransitive"),
                FUTURE,
                accusative=np("a", "book"),
                dative=np("the", "boy"),
            ),
            SECOND,
            "",
            "Anna will give the boy a book",
            "Anna wird dem Jungen ein Buch geben",
        ),
        (
            Clause(ANNA, verb("like", "pleasing"), accusative=np("the", "coat")),
            SECOND,
            "",
            "Anna likes the coat",
            "der Mantel gefällt Anna",
        ),
        (
            Clause(
                np("the", "man"),
                verb("remember", "prepositional"),
                PAST,
                governed=np("the", "trip"),
            ),
            FIRST,
            "",
            "did the man remember the trip",
            "hat sich der Mann an die Reise erinnert",
        ),
        (
            Clause(ME, verb("help", "dative"), PROGRESSIVE, dative=ANNA),
            SECOND,
            "",
            "I am helping Anna",
            "ich helfe Anna",
        ),
        (Clause(THEY, verb("know", "that"), PAST), LAST, "", "they knew", "sie wussten"),
        (
            Clause(
                SHE, verb("read"), MODAL, MODALS["like"], accusative=np("", "poem", plural=True)
            ),
            SECOND,
            "",
            "she likes to read poems",
            "sie liest gern Gedichte",
        ),
    ],
)
def test_clauses(clause, order, lead, expected_english, expected_german):
    assert in_both_languages(clause, order, lead) == (expected_english, expected_german)


def test_can_you_help_me_to_translate_this_sentence():
    expected = (
        "Can you help me to translate this sentence?",
        "Kannst du mir helfen, diesen Satz zu übersetzen?",
    )
    translate = Clause(ME, verb("translate"), accusative=np("this", "sentence"))
    clause = Clause(
        YOU,
        verb("help", "dative-infinitive"),
        MODAL,
        MODALS["can"],
        dative=ME,
        complement=infinitive(translate),
    )
    assert finish(*(f"{side}?" for side in in_both_languages(clause, FIRST))) == expected
    # the grammar draws the same sentence
    assert finish(*request(Draw(11652))) == expected


@pytest.mark.parametrize(
    "clause, expected",
    [
        (
            Clause(YOU, verb("call"), accusative=np("your", "mother")),
            ("call your mother!", "ruf deine Mutter an!"),
        ),
        (Clause(YOU, verb("hurry", "intransitive")), ("hurry!", "beeil dich!")),
        (
            Clause(PRONOUNS["we"], verb("open"), accusative=np("the", "door")),
            ("let us open the door!", "lass uns die Tür öffnen!"),
        ),
    ],
)
def test_imperatives(clause, expected):
    assert imperative(clause) == expected
