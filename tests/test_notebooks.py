"""Every notebook runs at its tiny setting from a clean kernel, in a folder of its own; what is
committed was executed, in order, without an error.
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
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def test_there_are_six():
    assert [path.name[0] for path in NOTEBOOKS] == list("123456")


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
    client.execute(env=env)  # raises what a cell raises
    pictures = [
        output
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    assert pictures and all(
        cell.execution_count for cell in notebook.cells if cell.cell_type == "code"
    )


@pytest.fixture(scope="module")
def shell():
    """IPython, in which `%pip` records its arguments and does no more."""
    found = InteractiveShell.instance()
    found.pip = []
    found.register_magic_function(found.pip.append, magic_name="pip")
    yield found
    InteractiveShell.clear_instance()


@pytest.mark.parametrize(
    "given, asked, source",
    [
        ("", ["https://host/us.git "], "git+https://host/us.git"),
        ("https://host/us.git", [], "git+https://host/us.git"),
        (None, [], f"file://{ROOT}"),  # beside its checkout
    ],
)
def test_the_first_cell_installs_the_package(given, asked, source, shell, tmp_path, monkeypatch):
    """Where it is missing: from the address given, asked for, or from the checkout."""
    first, *others = [nbformat.read(path, as_version=4).cells[1].source for path in NOTEBOOKS]
    assert all(other == first for other in others)
    monkeypatch.chdir(ROOT / "notebooks" if given is None else tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr("shutil.which", lambda name: None)
    answers = iter(asked)
    monkeypatch.setattr("builtins.input", lambda question: next(answers))
    shell.pip.clear()
    cell = first.replace('REPOSITORY = ""', f'REPOSITORY = "{given or ""}"')
    shell.run_cell(cell).raise_error()
    assert shell.pip == [f'install --quiet "transformer_jax[] @ {source}"']
    assert not [*answers]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_committed(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    outputs = [output for cell in code for output in cell.outputs]
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)]
    assert outputs and not any(output.output_type == "error" for output in outputs)
    assert path.stat().st_size < 450_000
    assert "%pip install" in code[0].source
    local = ("/work/", "/tmp/", "/root/", "/home/")  # paths of the machine that executed it
    assert not any(place in json.dumps(output) for place in local for output in outputs)
    for cell in code[1:]:  # what is worth a definition belongs in the package
        plain = "\n".join(line for line in cell.source.splitlines() if not line.startswith("%"))
        assert not any(
            isinstance(node, (ast.FunctionDef, ast.ClassDef)) for node in ast.walk(ast.parse(plain))
        ), cell.source
