"""Prompts with completions, as token ids.

A prompt and its completions are encoded apart. So the ids of a prompt are those that `generate`
continues.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

Ids = list[int]


class Example(NamedTuple):
    """A prompt with its completions, the best first."""

    prompt: Ids
    completions: list[Ids]
    label: float = 1.0  # the probability that each one is preferred to those behind it


def prompt_ids(tokenizer: Any, texts: Sequence[str], with_start: Callable[[Ids], Ids]) -> list[Ids]:
    """Returns the ids of prompts, each behind the token that a document starts with."""
    return [with_start(ids) for ids in tokenizer.encode(list(texts))]


def completion_ids(tokenizer: Any, texts: Sequence[str], end: Sequence[int]) -> list[Ids]:
    """Returns the ids of completions, each with its `end`."""
    return [[*ids, *end] for ids in tokenizer.encode(list(texts))]


def fitted(example: Example, room: int) -> Example:
    """Returns an example whose prompt and each completion have at most `room` tokens together.

    The prompt loses its beginning, but not its last room / 2 tokens. Then the completions lose
    their ends. All completions have the same prompt.
    """
    longest = max(map(len, example.completions))
    prompt = example.prompt[-max(room - longest, room // 2) :]
    left = room - len(prompt)
    return example._replace(prompt=prompt, completions=[ids[:left] for ids in example.completions])
