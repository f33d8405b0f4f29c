"""Importing the package changes nothing outside it: no flag, logger, setting or library."""

import json
import pathlib
import subprocess
import sys

import pytest

import transformer_jax
from tests.programs import ENV

ROOT = pathlib.Path(transformer_jax.__file__).parent
LIBRARIES = """
import ast, contextlib, importlib, pathlib, sys

def names(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)

def import_libraries(root):
    for path in sorted(pathlib.Path(root).rglob("*.py")):
        for name in names(path):
            if not name.startswith("transformer_jax"):
                with contextlib.suppress(ImportError):
                    importlib.import_module(name)

import_libraries(sys.argv[1])
"""
SNAPSHOT = """
import logging, os, signal, threading, warnings
import jax, orbax.checkpoint as ocp
from absl import flags
from etils.epath import register
from orbax.checkpoint._src.path import gcs_utils

def snapshot():
    loggers = {name: logger for name, logger in logging.root.manager.loggerDict.items()
               if isinstance(logger, logging.Logger)} | {"root": logging.root}
    levels = {name: (logger.level, logger.disabled, logger.propagate, *map(id, logger.handlers))
              for name, logger in loggers.items()}
    hooks = (sys.excepthook, sys.unraisablehook, threading.excepthook,
             signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT))
    array_handler = ocp.type_handlers.get_type_handler(jax.Array)
    return {"loggers": {name: level for name, level in levels.items() if level != (0, False, True)},
            "jax": dict(jax.config.values), "warnings": list(map(str, warnings.filters)),
            "environment": {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"},
            "hooks": [id(hook) for hook in hooks], "flags": sorted(flags.FLAGS),
            "orbax": [id(array_handler), id(gcs_utils.is_hierarchical_namespace_enabled)],
            "epath": [str(register._URI_PREFIXES_TO_CLS), str(register._PATHLIKE_CLS)]}
"""
IMPORTS = (
    LIBRARIES
    + SNAPSHOT
    + """
import json, pkgutil
before = snapshot()
import pytest

import transformer_jax
for module in pkgutil.walk_packages(transformer_jax.__path__, "transformer_jax."):
    importlib.import_module(module.name)
after = snapshot()

import numpy as np
from transformer_jax import config
from transformer_jax.training.checkpoint import Checkpoints
with Checkpoints(pathlib.Path(sys.argv[2]), config.Checkpoint()) as checkpoints:
    checkpoints.save_params({"a": np.ones(3)})
used = snapshot()
snapshots = {"import": after, "use": {key: used[key] for key in ("orbax", "epath", "flags")}}
print(json.dumps([[name, key, str(before[key]), str(value)] for name, values in snapshots.items()
                  for key, value in values.items() if value != before[key]]))
"""
)
PROGRAMS = """
import sys
from transformer_jax import cli
from transformer_jax import draw, generate, translate

def ended(program, *arguments):
    sys.argv = [program.__name__, *arguments]
    try:
        cli.run(program.main, program.define_flags)
    except SystemExit as end:
        return end.code

output = f"--output={sys.argv[1]}/masks.png"
assert ended(draw, "masks", output) is None
assert ended(translate, "--workdir=/nowhere/there", "--config.decode.beam=1") == 2
assert ended(generate, "--prompt=a", "--workdir=/nowhere/here", "--scores") == 2
assert ended(draw, "masks", output, "--text=a") == 2
assert ended(draw, "curves", "--workdir=/nowhere/a", "--workdir=/nowhere/b", output) == 2
assert ended(generate, "--help") == 0
"""


def run(script, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        encoding="utf-8",
        env={**ENV, "GLIBC_TUNABLES": ""},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.full
def test_importing_every_module_changes_nothing_outside(tmp_path):
    assert json.loads(run(IMPORTS, ROOT, tmp_path / "run").stdout.splitlines()[-1]) == []


@pytest.mark.full
def test_programs_run_one_after_another_in_one_process(tmp_path):
    done = run(PROGRAMS, tmp_path)
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    expected = ["/nowhere/there: no run here", "--scores", "--text: not for masks", "/a: no"]
    assert len(errors) == len(expected)
    assert all(words in line for words, line in zip(expected, errors)), errors
    assert "Continues text" in done.stdout and "--max_tokens" in done.stdout
    assert "--[no]scores" not in done.stdout and "--workdir" in done.stdout
