"""Conversations with a causal model: the part of one that its window holds."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from transformer_jax.config import UserError
from transformer_jax.data.sources import chat
from transformer_jax.data.tokenizers import ChatTokenizer
from transformer_jax.data.tokenizers.chat import Prompt, as_messages
from transformer_jax.inference.generation import MAX_TOKENS


def room_of_answer(model: Any) -> int:
    """Returns the most tokens of an answer, by default: a quarter of the window."""
    return MAX_TOKENS if model.max_length is None else max(model.window // 4, 1)


def prompt(tokenizer: ChatTokenizer, model: Any, max_tokens: int, turns: Prompt) -> list[int]:
    """Returns the ids of a conversation that leaves room for `max_tokens` in the window.

    The oldest turns are left out until it does. A turn is a message of the user with those that
    follow it. The message of the system stays. Raises UserError where the last turn alone is too
    long, and for messages that are no conversation.
    """
    messages = as_messages(turns)
    chat.check_turns(messages, "messages")
    room = model.window - max_tokens
    begins = [place for place, message in enumerate(messages) if message["role"] == "user"]
    has_system = messages[0]["role"] == "system"
    for begin in [int(has_system), *begins]:
        ids = tokenizer.prompt([*messages[:has_system], *messages[begin:]])
        if len(ids) <= room:
            return ids
    raise UserError(
        f"the last message: its prompt of {len(ids)} tokens and an answer of {max_tokens} exceed "
        f"config.model.max_length={model.max_length}; write less, or give a smaller max_tokens"
    )


def each(encode: Callable[[Prompt], list[int]], prompts: Iterable[Prompt]) -> Iterator[list[int]]:
    """Yields the ids of each prompt. An error names its number."""
    for number, turns in enumerate(prompts, 1):
        try:
            yield encode(turns)
        except UserError as error:
            raise UserError(f"prompt {number}: {error}") from None
