"""Conversations with a causal model: the part of one that its window holds."""

from collections.abc import Sequence
from typing import Any

from transformer_jax.config import UserError
from transformer_jax.data.tokenizers import ChatTokenizer
from transformer_jax.data.tokenizers.chat import Message
from transformer_jax.inference.generation import MAX_TOKENS


def room_of_answer(model: Any) -> int:
    """Returns the most tokens of an answer, by default: a quarter of the window."""
    return MAX_TOKENS if model.max_length is None else max(model.window // 4, 1)


def prompt(
    tokenizer: ChatTokenizer, messages: Sequence[Message], model: Any, max_tokens: int
) -> list[int]:
    """Returns the prompt of a conversation that leaves room for `max_tokens` in the window.

    The oldest turns are left out until it does. A turn is a message of the user with those that
    follow it. The message of the system stays. Raises UserError where the last turn alone is too
    long.
    """
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
