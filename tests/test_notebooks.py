"""Every notebook runs in its tiny setting, in a clean kernel and a new folder.

The committed outputs come from an execution in order and without an error.
"""

import ast
import importlib.util
import json
import os
import pathlib

import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell
from nbclient import NotebookClient

ROOT = pathlib.Path(__file__).parent.parent


def _number(path: pathlib.Path) -> int:
    return int(path.name.partition("_")[0])


NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"), key=_number)


def test_they_are_numbered_from_1():
    assert [_number(path) for path in NOTEBOOKS] == [*range(1, len(NOTEBOOKS) + 1)]


@pytest.mark.full
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    env = {
        **os.environ,
        "NOTEBOOK_SETTING": "tiny",
        "PYTHONPATH": str(ROOT),
        "HOME": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    client = NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.execute(env=env)  # raises if a cell raises
    pictures = [
        output
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    assert pictures
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code")


@pytest.fixture(scope="module")
def shell():
    """Yields an IPython shell whose `%pip` only records its arguments."""
    shell = InteractiveShell.instance()
    shell.pip = []
    shell.register_magic_function(shell.pip.append, magic_name="pip")
    yield shell
    InteractiveShell.clear_instance()


@pytest.mark.parametrize(
    "repository, answers, source",
    [
        ("", ["https://host/us.git "], "git+https://host/us.git"),
        ("https://host/us.git", [], "git+https://host/us.git"),
        (None, [], f"file://{ROOT}"),  # inside a checkout
    ],
)
def test_the_first_cell_installs_a_missing_package(
    repository, answers, source, shell, tmp_path, monkeypatch
):
    """It installs from the given address, or an address that it asks for, or the checkout."""
    first, *others = [nbformat.read(path, as_version=4).cells[1].source for path in NOTEBOOKS]
    assert all(other == first for other in others)
    monkeypatch.chdir(ROOT / "notebooks" if repository is None else tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr("shutil.which", lambda name: None)
    answers = iter(answers)
    monkeypatch.setattr("builtins.input", lambda question: next(answers))
    shell.pip.clear()
    cell = first.replace('REPOSITORY = ""', f'REPOSITORY = "{repository or ""}"')
    shell.run_cell(cell).raise_error()
    assert shell.pip == [f'install --quiet "transformer_jax[] @ {source}"']
    assert not [*answers]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_committed_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    outputs = [output for cell in code for output in cell.outputs]
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)]
    assert outputs and not any(output.output_type == "error" for output in outputs)
    assert path.stat().st_size < 450_000
    assert "%pip install" in code[0].source
    # No path of the machine that executed it.
    for folder in ("/work/", "/tmp/", "/root/", "/home/"):
        assert not any(folder in json.dumps(output) for output in outputs)
    # Functions and classes belong in the package.
    for cell in code[1:]:
        plain = "\n".join(line for line in cell.source.splitlines() if not line.startswith("%"))
        assert not any(
            isinstance(node, (ast.FunctionDef, ast.ClassDef)) for node in ast.walk(ast.parse(plain))
        ), cell.source
