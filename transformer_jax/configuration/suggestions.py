"""What a wrong name was meant to be: close spellings, and the names that other codebases use."""

import difflib
from collections.abc import Callable, Iterable

from transformer_jax.configuration.synonyms import TABLE


def near(word: str, choices: Iterable[str]) -> str:
    """'; did you mean ...?' by the whole word, else by its last part alone."""
    choices = list(choices)
    matches = difflib.get_close_matches(word, choices, n=1, cutoff=0.75)
    if not matches:
        lasts = {choice.rpartition(".")[2]: choice for choice in choices}
        last = word.rpartition(".")[2]
        matches = [lasts[n] for n in difflib.get_close_matches(last, lasts, n=1, cutoff=0.8)]
    return f"; did you mean {matches[0]}?" if matches else ""


def known_elsewhere(word: str, names: Iterable[str]) -> tuple[str, ...]:
    """Those of `names`, keys and flags ("--..."), that other codebases call `word`."""
    names, last = set(names), word.rpartition(".")[2].lower().replace("-", "_")
    alternatives = TABLE.get(last, ())
    return next((option for option in alternatives if names.issuperset(option)), ())


def key(word: str, keys: Iterable[str], meaning: Callable[[str], str]) -> str:
    """'; did you mean ...?' for a key of the config; the name of another codebase is explained."""
    keys = list(keys)
    if word.rpartition(".")[2] in {one.rpartition(".")[2] for one in keys}:
        return near(word, keys)
    names = known_elsewhere(word, [*keys, "--workdir", "--config"])
    if not names:
        return near(word, keys)
    explained = [f"{name} ({text})" if (text := meaning(name)) else name for name in names]
    return f"; did you mean {' and '.join(explained)}?"
