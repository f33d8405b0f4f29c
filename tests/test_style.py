"""The style of the code is that of ruff, as pyproject.toml sets it."""

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
