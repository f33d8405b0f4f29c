"""The style of the code is that of ruff, as pyproject.toml sets it."""

import ast
import importlib.util
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent


@pytest.mark.skipif(importlib.util.find_spec("ruff") is None, reason="ruff is not installed")
@pytest.mark.parametrize("arguments", [("format", "--check"), ("check",)])
def test_ruff_finds_nothing(arguments):
    command = [sys.executable, "-m", "ruff", *arguments, "."]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_function_is_named_by_a_preposition():
    """`tensor_name(path)` says what `of_path(path)` leaves to its reader."""
    named = [
        f"{path.relative_to(ROOT)}: {node.name}"
        for path in sorted((ROOT / "transformer_jax").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith(("of_", "by_"))
    ]
    assert not named, "\n".join(named)
