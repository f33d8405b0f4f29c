"""Preferences between completions of a prompt, as JSON lines.

A line is {"prompt": ..., "chosen": ..., "rejected": ...}, or a ranking, {"prompt": ...,
"completions": [the best, ..., the worst]}. The "label" of a pair, 1 by default, is the probability
that `chosen` is preferred. In place of the prompt may stand "messages": a conversation that ends
with a message of the user.
"""

import dataclasses
from collections.abc import Iterator

from transformer_jax.config import UserError
from transformer_jax.data.sources import chat
from transformer_jax.data.sources.file_digests import sha256
from transformer_jax.data.sources.tables import split_files
from transformer_jax.data.sources.text_files import from_json, text_lines
from transformer_jax.data.tokenizers.chat import Prompt

FEWEST, MOST = 2, 9  # completions of a prompt (Ouyang et al. 2022, section 3.5: 4 to 9)


@dataclasses.dataclass(frozen=True)
class Ranking:
    """Completions of a prompt.

    Attributes:
      where: file and line, for error messages.
      prompt: a text that may be empty, or messages.
      completions: different texts, the best first.
      label: the probability that each of them is preferred to those behind it.
    """

    where: str
    prompt: Prompt
    completions: tuple[str, ...]
    label: float = 1.0


@dataclasses.dataclass(frozen=True)
class Preferences:
    """The rankings of files. A pair is a ranking of two. Lines without text are left out."""

    paths: tuple[str, ...]

    def fingerprint(self) -> dict:
        return {"preferences": sha256(self.paths)}

    def __iter__(self) -> Iterator[Ranking]:
        for path in self.paths:
            for number, line in enumerate(text_lines(path), 1):
                if line.strip():
                    where = f"{path}:{number}"
                    yield _ranking(from_json(line, where), where)


def of_split(data, split: str) -> Preferences | None:
    """Returns the rankings of a split that `config.data` names; None where it names none."""
    paths = split_files(data, split)
    return paths and Preferences(paths)


def _ranking(value, where: str) -> Ranking:
    """Returns the ranking of a JSON value. Raises UserError where it is none."""
    if not isinstance(value, dict):
        raise UserError(
            f"{where}: not a JSON object with 'prompt', 'chosen' and 'rejected', or with 'prompt' "
            "and 'completions'"
        )
    if "completions" in value:
        for key in ("chosen", "rejected", "label"):
            if key in value:
                raise UserError(f"{where}: {key!r} and 'completions': give a pair or a ranking")
        completions = _completions(value["completions"], where)
        named = {f"completion {number}": text for number, text in enumerate(completions, 1)}
    else:
        named = {f"'{key}'": text_of(value, key, where) for key in ("chosen", "rejected")}
    _check_different(named, where)
    return Ranking(where, prompt_of(value, where), tuple(named.values()), _label(value, where))


def prompt_of(value: dict, where: str) -> Prompt:
    """Returns the prompt of a JSON object. Raises UserError where there is none."""
    if "messages" not in value:
        return text_of(value, "prompt", where)
    if "prompt" in value:
        raise UserError(f"{where}: 'messages' and 'prompt': give one of them")
    chat.check_turns(value["messages"], where)
    return value["messages"]


def text_of(value: dict, key: str, where: str) -> str:
    """Returns the text of a key. Raises UserError where there is none."""
    if key not in value:
        raise UserError(f"{where}: no key {key!r}")
    if not isinstance(value[key], str):
        raise UserError(f"{where}: {key!r} is no text")
    return value[key]


def _completions(texts, where: str) -> list[str]:
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise UserError(f"{where}: 'completions' is no list of texts")
    if not FEWEST <= len(texts) <= MOST:
        raise UserError(
            f"{where}: 'completions' has {len(texts)}: must have from {FEWEST} to {MOST}"
        )
    return texts


def _check_different(named: dict[str, str], where: str) -> None:
    names = {}
    for name, text in named.items():
        if text in names:
            raise UserError(f"{where}: {names[text]} and {name} are equal: neither is preferred")
        names[text] = name


def _label(value: dict, where: str) -> float:
    label = value.get("label", 1.0)
    is_number = isinstance(label, int | float) and not isinstance(label, bool)
    if not is_number or not 0 <= label <= 1:
        raise UserError(f"{where}: 'label' must be a probability, a number from 0 to 1")
    return float(label)
