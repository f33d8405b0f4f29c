"""A table with the config's columns and labels."""

from tests.examples import save, sentence, table


def write(config, folder):
    task = config.task
    texts = [task.text, task.pair] if task.pair else [task.text]
    labels = task.labels or ("0.5", "3.0")
    rows = [
        [*(f"{sentence(i)} {j}" for j in range(len(texts))), labels[i % len(labels)]]
        for i in range(16)
    ]
    return save(folder / "examples.tsv", table([*texts, task.label], rows))
