"""The style of the code: ruff as pyproject.toml says, and the sizes of functions and files."""

import ast
import importlib.util
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
FOLDERS = ("transformer_jax", "configs", "benchmarks", "docs")
FUNCTION_LINES = 59
FILE_LINES = 300
# Lists of words and rules of the built-in grammar, which no function would make clearer.
WORD_LISTS = "transformer_jax/data/grammar/"


@pytest.mark.skipif(importlib.util.find_spec("ruff") is None, reason="ruff is not installed")
@pytest.mark.parametrize("arguments", [("format", "--check"), ("check",)])
def test_ruff_finds_nothing(arguments):
    command = [sys.executable, "-m", "ruff", *arguments, "."]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def sources(*folders):
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield str(path.relative_to(ROOT)), path.read_text()


def test_functions_are_short():
    too_long = []
    for name, source in sources(*FOLDERS, "tests"):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = node.end_lineno - node.lineno + 1
                if lines > FUNCTION_LINES:
                    too_long.append(f"{name}: {node.name} has {lines} lines")
    assert not too_long, "\n".join(too_long)


def test_files_of_the_package_are_short():
    too_long = []
    for name, source in sources("transformer_jax"):
        lines = len(source.splitlines())
        if lines > FILE_LINES and not name.startswith(WORD_LISTS):
            too_long.append(f"{name} has {lines} lines")
    assert not too_long, "\n".join(too_long)
