"""The built-in questions, the only ones whose replies this task can score."""


def write(config, folder):
    return {"data.corpus": "grammar", "data.corpus_size": "16"}
