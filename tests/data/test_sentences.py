import time

import pytest

from transformer_jax.data import sentences


def test_a_line_is_a_sentence():
    assert sentences.split("One. Two.\n\n \t\n  three \n", "line") == ["One. Two.", "three"]
    assert sentences.split(" \n", "line") == []


@pytest.mark.parametrize(
    "expected",
    [
        ["One.", "Two!", "Three?", "Four…", "Five...", "Six?!", "Seven"],
        ["He left (at last).", "(She stayed.)", "[Both did.]", "The end."],
        ['"Who?"', '"Me."', "“You?”", "‘Why not.’", "`f` is called.", "*Now* it ends.", "¿Sí?"],
        ["Mr. Smith met Dr. A. B. Jones and J.R.R. Tolkien in the U.S. Senate.", "They spoke."],
        ["Letters, e.g. A, i.e. The first, etc. Others, cf. Chapter 2, by Jones et al. Then more."],
        ["Ms. Lee (Ph.D. Oxford) and Acme Inc. of St. Louis (vs. Texas) agreed."],
        ["It was 3.14, not 3.", "15 came later, in 1999.", "The 2. or 3. try worked."],
        [
            "See No. 5, figs. 3 and 4, pp. 7 to 9 of vol. 2.",
            "He said no.",
            "Then, on Jan. 3, he said yes.",
        ],
        ["1. First of all.", "(2. Second.)", "4.1. Fourth.", "5) Fifth."],
        ["So am I.", "You see version 2.", "Is that all (etc.)?", "Yes!"],
        [
            "The file a.txt of python.org. is no end. what? no!",
            "It is 5 a.m. now . . . not yet.",
            "All done",
        ],
        ["Élan ends.", "Übel begins.", "中文 too."],
    ],
    ids=lambda expected: expected[0],
)
def test_running_text_ends_sentences_by_punctuation(expected):
    assert sentences.split(" ".join(expected), "punctuation") == expected
    assert sentences.split("\n  ".join(" ".join(expected).split()), "punctuation") == expected


def test_a_blank_line_ends_a_sentence_too():
    assert sentences.split("\nA title\n\n \nOne\nline. Two\n", "punctuation") == [
        "A title",
        "One line.",
        "Two",
    ]
    assert sentences.split(" \n\n", "punctuation") == []


@pytest.mark.parametrize(
    "text",
    ["Mr. A " * 100_000, "." * 200_000, "a." * 100_000, "!" * 100_000 + '"' * 100_000 + " A"],
    ids=["no end", "dots", "no space", "punctuation"],
)
def test_no_text_takes_long(text):
    start = time.monotonic()
    assert len(sentences.split(text, "punctuation")) <= 2
    assert time.monotonic() - start < 5
