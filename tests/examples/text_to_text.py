"""A table of sources and targets."""

from tests.examples import save, sentence, table


def write(config, folder):
    columns = [config.task.source, config.task.target]
    rows = [[f"{sentence(i)}. It is so.", sentence(i)] for i in range(16)]
    return save(folder / "examples.tsv", table(columns, rows))
