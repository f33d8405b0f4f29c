"""Questions in SQuAD's format. The answer is the animal of the last sentence."""

import json

from tests.examples import ANIMALS, save, sentence


def write(config, folder):
    content = {"data": [{"paragraphs": [paragraph(i) for i in range(16)]}]}
    return save(folder / "examples.json", json.dumps(content))


def paragraph(number):
    answer = ANIMALS[(number + 1) % 2]
    context = f"{sentence(number)}. a {answer} ran to it."
    return {
        "context": context,
        "qas": [
            {
                "id": str(number),
                "question": "who ran to it?",
                "answers": [{"text": answer, "answer_start": context.rindex("a ") + 2}],
            }
        ],
    }
