"""Texts and published files for the tests of tokenizers."""

import json

ENGLISH = [
    "The dog runs.",
    "A cat sleeps in the house.",
    "We see two women.",
    "The child reads a book to the cat.",
    "How are you, my friend?",
]


GERMAN = [
    "Der Hund läuft.",
    "Eine Katze schläft im Haus.",
    "Wir sehen zwei Frauen.",
    "Das Kind liest der Katze ein Buch vor.",
    "Wie geht es dir, größer Freund?",
]


KINDS = ["unigram", "bpe", "byte_bpe", "roberta_bpe", "characters"]


TEXTS = [
    "def f(x):\n    return  x\n\n\n# the end\n",
    " We don't  see\nthe cat in the house. ",
    *ENGLISH,
    *GERMAN,
] * 3


GPT1_MERGES = ["l o", "lo w</w>", "e r</w>", "lo w", "low er</w>"]


def gpt1_vocab():
    letters = sorted({*"lowern!'i"})
    merged = [merge.replace(" ", "") for merge in GPT1_MERGES]
    return {
        piece: i
        for i, piece in enumerate(
            ["<unk>", *letters, *(f"{letter}</w>" for letter in letters), *merged, "\n</w>"]
        )
    }


def write(folder, **files):
    """Writes files of text or JSON; "__" in a name stands for the dot."""
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name.replace("__", ".")).write_bytes(text.encode())
    return folder


def gpt1(folder, merges=GPT1_MERGES):
    return write(
        folder, vocab__json=gpt1_vocab(), merges__txt="\n".join(["#version: 0.2", *merges, ""])
    )
