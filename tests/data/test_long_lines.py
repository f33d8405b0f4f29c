"""Splitting lines that are too long, and the warning with their numbers."""

import pytest

from transformer_jax.config import UserError
from transformer_jax.data import arguments


def words(texts):
    """Encodes a word of n characters as n, repeated 1 + n // 6 times."""
    return [
        [len(word) for word in text.split() for _ in range(1 + len(word) // 6)] for text in texts
    ]


def characters(texts):
    return [list(text) for text in texts]


@pytest.mark.parametrize(
    "line, max_tokens, expected",
    [
        ("One two. Three four!  Five", 12, ["One two.", "Three four!", "Five"]),
        ("Mr. A ran. It is 3.5 km.", 20, ["Mr. A ran.", "It is 3.5 km."]),
        ("one two three four. five", 9, ["one two", "three", "four.", "five"]),
        ("a bcdefghijkl mn", 5, ["a", "bcdef", "ghijk", "l", "mn"]),
        ("我看书。他也看！你呢", 5, ["我看书。", "他也看！", "你呢"]),
        ("我看书他也看你呢", 3, ["我看书", "他也看", "你呢"]),
        ("   ", 3, []),
    ],
)
def test_parts(line, max_tokens, expected):
    parts = arguments.split(line, characters, max_tokens)
    assert ["".join(part) for part in parts] == expected


def test_no_part_is_too_long_and_nothing_is_lost():
    line = " ".join(f"{'word' * (n % 5)}{n}{'.' * (n % 7 == 0)} Then" for n in range(300))
    for max_tokens in (4, 9, 100):
        parts = arguments.split(line, words, max_tokens)
        assert max(map(len, parts)) <= max_tokens
        assert sum(parts, []) == words([line])[0]


def test_the_warning(capsys):
    with arguments.LongLines("skip", ("skip", "refuse"), "9 tokens") as lines:
        pass
    assert capsys.readouterr().err == ""
    with lines:
        lines.add(3)
    assert capsys.readouterr().err == "warning: line 3 is longer than 9 tokens: left empty\n"
    with arguments.LongLines("split", ("split",), "9 tokens", "text") as lines:
        for number in range(1, 1031):
            lines.add(number)
    numbers = ", ".join(map(str, range(1, 21)))
    expected = (
        f"warning: texts {numbers} and 1,010 more are longer than 9 tokens: split into parts\n"
    )
    assert capsys.readouterr().err == expected
    with pytest.raises(UserError, match="line 4: longer than 9 tokens"):
        arguments.LongLines("refuse", ("skip", "refuse"), "9 tokens").add(4)
    with pytest.raises(UserError, match="long='cut': must be one of skip, refuse"):
        arguments.LongLines("cut", ("skip", "refuse"), "9 tokens")
