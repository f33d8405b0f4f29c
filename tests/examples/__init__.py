"""Small data files for each task: `<task name>.py` has a function `write(config, folder)`.

It writes files for training and evaluation and returns the overrides that name them. A task without
such a file reads what its source generates.
"""

import importlib
import importlib.util
import pathlib

CONFIGS = pathlib.Path(__file__).parents[2] / "configs"
ANIMALS = ("cat", "dog")
VERBS = ("sat", "ran")


def write(config, folder: pathlib.Path) -> dict[str, str]:
    """Writes examples for the config's task. Returns {"data.train_files": path, ...}."""
    name = f"{__name__}.{config.task.name}"
    if importlib.util.find_spec(name) is None:
        return {}
    folder.mkdir(parents=True, exist_ok=True)
    return importlib.import_module(name).write(config, folder)


def sentence(number: int) -> str:
    return f"the {ANIMALS[number % 2]} {VERBS[number // 2 % 2]} on the mat"


def save(path: pathlib.Path, text: str) -> dict[str, str]:
    """Writes the file for training and evaluation. Returns the overrides that name it."""
    path.write_text(text, encoding="utf-8")
    return {"data.train_files": str(path), "data.valid_files": str(path)}


def table(columns: list[str], rows: list[list[str]]) -> str:
    """Returns a tab-separated table. `columns` are names for a header, or numbers from 1."""
    if not columns[0].isdecimal():
        lines = [columns, *rows]
    else:
        lines = []
        for row in rows:
            cells = ["-"] * max(map(int, columns))
            for column, cell in zip(columns, row):
                cells[int(column) - 1] = cell
            lines.append(cells)
    return "".join("\t".join(line) + "\n" for line in lines)
