"""Sentences in CoNLL's format, a word and its tag per line. Animals are entities."""

from tests.examples import ANIMALS, save, sentence


def write(config, folder):
    sentences = [
        "\n".join(f"{word}\t{tag(word)}" for word in sentence(i).split()) for i in range(16)
    ]
    return save(folder / "examples.tsv", "\n\n".join(sentences) + "\n")


def tag(word):
    return "B-PET" if word in ANIMALS else "O"
