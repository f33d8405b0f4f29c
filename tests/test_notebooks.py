"""Every notebook runs in its tiny setting, in a clean kernel and a new folder.

The committed outputs come from an execution in order and without an error.
"""

import ast
import importlib.util
import json
import os
import pathlib
import re
import shutil

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
    "repository, installed, source",
    [
        ("https://host/us.git", (), "[] @ git+https://host/us.git"),
        ("https://host/us.git", ("jax", "libtpu"), " @ git+https://host/us.git"),
        ("https://host/us.git", ("libtpu",), "[tpu] @ git+https://host/us.git"),
        (None, (), f"[] @ file://{ROOT}"),  # inside a checkout
    ],
)
def test_the_first_cell_installs_a_missing_package(
    repository, installed, source, shell, tmp_path, monkeypatch
):
    """It installs from the address, or the checkout, and leaves a JAX that is there."""
    first, *others = [nbformat.read(path, as_version=4).cells[1].source for path in NOTEBOOKS]
    assert all(other == first for other in others) and "input(" not in first
    monkeypatch.chdir(ROOT / "notebooks" if repository is None else tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name in installed or None)
    monkeypatch.setattr("shutil.which", lambda name: None)
    shell.pip.clear()
    cell = re.sub(r'REPOSITORY = ".*"', f'REPOSITORY = "{repository or ""}"', first)
    shell.run_cell(cell).raise_error()
    assert shell.pip == [f'install --quiet "transformer_jax{source}"']


def test_without_an_address_the_first_cell_says_what_to_do(shell, tmp_path, monkeypatch):
    first = nbformat.read(NOTEBOOKS[0], as_version=4).cells[1].source
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    shell.pip.clear()
    result = shell.run_cell(re.sub(r'REPOSITORY = ".*"', 'REPOSITORY = ""', first))
    assert isinstance(result.error_in_exec, SystemExit) and "Set REPOSITORY" in str(
        result.error_in_exec
    )
    assert not shell.pip


def test_one_command_writes_the_address_everywhere(tmp_path):
    spec = importlib.util.spec_from_file_location("address", ROOT / "docs" / "address.py")
    address = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(address)
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    committed = {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()}
    address.write(address.address(), tmp_path)
    assert all(path.read_bytes() == content for path, content in committed.items())
    address.write("https://github.com/us/ours.git", tmp_path)
    assert address.address(tmp_path) == "https://github.com/us/ours.git"
    for path in (tmp_path / "notebooks").glob("*.ipynb"):
        title, install, *_ = nbformat.read(path, as_version=4).cells
        badge = f"https://colab.research.google.com/github/us/ours/blob/main/notebooks/{path.name}"
        assert title.source.splitlines()[1].endswith(f"({badge})")
        assert 'REPOSITORY = "https://github.com/us/ours.git"' in install.source
    address.write(address.address(), tmp_path)
    assert all(path.read_bytes() == content for path, content in committed.items())


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
    # How long it takes, as measured or as not measured.
    assert re.search(r"^Minutes.*(measured)", notebook.cells[0].source, re.MULTILINE)
    # No path of the machine that executed it.
    for folder in ("/work/", "/tmp/", "/root/", "/home/"):
        assert not any(folder in json.dumps(output) for output in outputs)
    # Functions and classes belong in the package.
    for cell in code[1:]:
        plain = "\n".join(line for line in cell.source.splitlines() if not line.startswith("%"))
        assert not any(
            isinstance(node, (ast.FunctionDef, ast.ClassDef)) for node in ast.walk(ast.parse(plain))
        ), cell.source
