"""A table with the config's columns: a context, the beginning of an ending, the choices."""

from tests.examples import save, sentence, table


def write(config, folder):
    task = config.task
    texts = [*task.context, task.beginning, *task.choices]
    rows = [
        [*(f"{sentence(i)} {j}" for j in range(len(texts))), str(i % len(task.choices))]
        for i in range(16)
    ]
    return save(folder / "examples.tsv", table([*texts, task.label], rows))
