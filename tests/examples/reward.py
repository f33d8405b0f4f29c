"""Pairs of completions, as JSON lines."""

import json

from tests.examples import save, sentence


def write(config, folder):
    pairs = [
        {"prompt": sentence(i), "chosen": " yes, it did", "rejected": f" no, {sentence(i + 1)}"}
        for i in range(16)
    ]
    return save(folder / "pairs.jsonl", "".join(json.dumps(pair) + "\n" for pair in pairs))
