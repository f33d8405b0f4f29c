"""Suggestions for a wrong name: close spellings, and the names that other codebases use."""

import difflib
from collections.abc import Callable, Iterable

from transformer_jax.configuration.errors import UserError
from transformer_jax.configuration.synonyms import TABLE


def near(word: str, choices: Iterable[str]) -> str:
    """Returns '; did you mean ...?' for a close spelling of the word, or of its last part."""
    choices = list(choices)
    matches = difflib.get_close_matches(word, choices, n=1, cutoff=0.75)
    if not matches:
        by_last_part = {choice.rpartition(".")[2]: choice for choice in choices}
        last_part = word.rpartition(".")[2]
        close = difflib.get_close_matches(last_part, by_last_part, n=1, cutoff=0.8)
        matches = [by_last_part[part] for part in close]
    return f"; did you mean {matches[0]}?" if matches else ""


def known_elsewhere(word: str, names: Iterable[str]) -> tuple[str, ...]:
    """Returns those of `names`, keys and flags ("--..."), that other codebases call `word`."""
    names = set(names)
    last_part = word.rpartition(".")[2].lower().replace("-", "_")
    alternatives = TABLE.get(last_part, ())
    return next((option for option in alternatives if names.issuperset(option)), ())


def key(word: str, keys: Iterable[str], meaning: Callable[[str], str]) -> str:
    """Returns '; did you mean ...?' for a key, with its meaning if another codebase names it so."""
    keys = list(keys)
    if word.rpartition(".")[2] in {one.rpartition(".")[2] for one in keys}:
        return near(word, keys)
    names = known_elsewhere(word, [*keys, "--workdir", "--config"])
    if not names:
        return near(word, keys)
    explained = [f"{name} ({text})" if (text := meaning(name)) else name for name in names]
    return f"; did you mean {' and '.join(explained)}?"


def choice(argument: str, choices):
    """Returns `choices[argument]`, for config files that take an argument."""
    if argument not in choices:
        raise UserError(
            f"no {argument!r}{near(argument, [*choices])}; there are: {', '.join(choices)}"
        )
    return choices[argument]
