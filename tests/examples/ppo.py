"""Prompts, in which a language model writes the rest."""

import json

from tests.examples import save, sentence


def write(config, folder):
    lines = [json.dumps({"prompt": sentence(number)}) for number in range(16)]
    return save(folder / "prompts.jsonl", "\n".join(lines) + "\n")
