"""Prompts with completions, as token ids.

A prompt and its completions are encoded apart. So the ids of a prompt are those that a policy
continues: as `CausalUse.replies` has them where the tokenizer knows the marks of conversations, and
else as `CausalUse.generate` has them.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from transformer_jax.config import UserError
from transformer_jax.data.tokenizers.chat import ChatTokenizer, Prompt, as_messages

Ids = list[int]


class Example(NamedTuple):
    """A prompt with its completions, the best first."""

    prompt: Ids
    completions: list[Ids]
    label: float = 1.0  # the probability that each one is preferred to those behind it


def prompt_ids(
    tokenizer: Any, prompts: Sequence[Prompt], with_start: Callable[[Ids], Ids]
) -> list[Ids]:
    """Returns the ids of prompts.

    With a ChatTokenizer a prompt is a conversation, up to the place where the assistant answers.
    Else it is a text behind the token that a document starts with, which `with_start` adds. Raises
    UserError for messages where the tokenizer knows no marks.
    """
    if isinstance(tokenizer, ChatTokenizer):
        return tokenizer.prompts([as_messages(prompt) for prompt in prompts])
    if not all(isinstance(prompt, str) for prompt in prompts):
        raise UserError(
            "a prompt has messages, but the run in config.init_from knows no marks of "
            "conversations; begin with a run of config.task.name='chat', or give texts"
        )
    return [with_start(ids) for ids in tokenizer.encode(list(prompts))]


def end_id(tokenizer: Any) -> int:
    """Returns the token at the end of a language model's completion."""
    return tokenizer.end_id if isinstance(tokenizer, ChatTokenizer) else tokenizer.eos_id


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
