"""Conversations of one and of two turns, as JSON lines of both forms."""

import json

from tests import examples


def conversation(number: int) -> dict:
    """Returns the JSON object of a conversation."""
    if number % 3 == 0:
        return {"prompt": "What did it do?", "completion": examples.sentence(number)}
    messages = [{"role": "system", "content": "Be brief."}] if number % 2 else []
    for turn in range(number % 3):
        messages += [
            {"role": "user", "content": f"Where is the {examples.ANIMALS[turn % 2]}?"},
            {"role": "assistant", "content": "on the mat"},
        ]
    return {"messages": messages}


def write(config, folder):
    lines = (json.dumps(conversation(number)) for number in range(40))
    return examples.save(folder / "chats.jsonl", "\n".join(lines))
