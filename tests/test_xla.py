"""The package's XLA flag makes results on a CPU right, and is set for no other jaxlib."""

import json
import os
import pathlib
import re
import subprocess
import sys
import warnings
from importlib import metadata

import jax
import pytest
from packaging.specifiers import SpecifierSet

from transformer_jax.configuration import xla_guard

TESTS = pathlib.Path(__file__).parent
USERS = {
    name: value
    for name, value in os.environ.items()
    if name not in ("XLA_FLAGS", xla_guard.ADDED) and not name.startswith("JAX_")
}
FLAG = "--xla_cpu_experimental_ynn_fusion_type"


def run_python(code, *arguments, **environment):
    """Runs the code without this suite's environment variables."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        cwd=TESTS.parent,
        env=USERS | {"JAX_PLATFORMS": "cpu"} | environment,
    )
    return done


def test_programs_that_a_jaxlib_compiles_wrongly_are_right():
    code = "import transformer_jax, runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"
    done = run_python(code, str(TESTS / "xla_programs.py"), NPROC="2")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr
    assert len(rows) == 38
    assert not [row for row in rows if not row["right"]]


@pytest.fixture
def guard(monkeypatch):
    """Returns a function of (jaxlib, flags, added) that returns XLA_FLAGS for that jaxlib."""
    monkeypatch.setattr(xla_guard, "_backend_is_open", lambda: False)

    def run(jaxlib, flags=None, added=None):
        monkeypatch.setattr(metadata, "version", lambda name: jaxlib)
        for name, value in (("XLA_FLAGS", flags), (xla_guard.ADDED, added)):
            monkeypatch.delenv(name, raising=False)
            if value is not None:
                monkeypatch.setenv(name, value)
        xla_guard.protect()
        return os.environ.get("XLA_FLAGS")

    yield run
    os.environ.pop(xla_guard.ADDED, None)


def test_the_flag_is_added_to_the_users_own(guard, tmp_path):
    assert guard("0.12.0") == f"{FLAG}=-reduce"
    assert guard("0.12.0", "--xla_dump_to=/tmp/x") == f"{FLAG}=-reduce --xla_dump_to=/tmp/x"
    file = tmp_path / "flags"
    file.write_text("--xla_dump_to=/tmp/x\n")
    assert guard("0.12.0", str(file)).split() == [f"{FLAG}=-reduce", "--xla_dump_to=/tmp/x"]


@pytest.mark.parametrize("flags", [f"{FLAG}=", f"--xla_dump_to=/tmp/x {FLAG}=reduce"])
def test_the_users_own_value_stays(guard, flags):
    assert guard("0.12.0", flags) == flags
    assert xla_guard.ADDED not in os.environ


@pytest.mark.parametrize("jaxlib", ["0.10.0", "0.10.1", "0.13.0"])
def test_no_other_jaxlib_gets_the_flag(guard, jaxlib):
    assert guard(jaxlib) is None
    assert guard(jaxlib, "--xla_dump_to=/tmp/x") == "--xla_dump_to=/tmp/x"


def test_a_file_of_flags_that_does_not_exist_is_left_to_xla(guard):
    assert guard("0.12.0", "/nonexistent") == "/nonexistent"


def test_a_child_process_with_another_jaxlib_drops_the_inherited_flag(guard):
    inherited = guard("0.12.0", "--xla_dump_to=/tmp/x")
    added = os.environ[xla_guard.ADDED]
    assert guard("0.12.0", inherited, added) == inherited
    assert guard("0.10.1", inherited, added) == "--xla_dump_to=/tmp/x"
    assert xla_guard.ADDED not in os.environ


def test_a_backend_that_is_open_gives_one_warning(monkeypatch):
    jax.devices()
    monkeypatch.setattr(metadata, "version", lambda name: "0.12.0")
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/tmp/x")
    with pytest.warns(UserWarning, match="import transformer_jax before") as warned:
        xla_guard.protect()
    assert len(warned) == 1
    assert os.environ["XLA_FLAGS"] == "--xla_dump_to=/tmp/x"
    monkeypatch.setenv("XLA_FLAGS", f"{FLAG}=")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        xla_guard.protect()


def test_import_of_the_package_sets_the_flag_and_imports_no_jax():
    code = """
import importlib.metadata, os, sys
importlib.metadata.version = lambda name: sys.argv[1]
import transformer_jax
assert "jax" not in sys.modules
print(os.environ.get("XLA_FLAGS"))"""
    for jaxlib, flags in (("0.12.0", f"{FLAG}=-reduce"), ("0.10.1", "None")):
        done = run_python(code, jaxlib)
        assert done.stdout.strip() == flags, done.stderr


def test_the_package_asks_for_no_jaxlib_that_is_wrong():
    setup = (TESTS.parent / "setup.py").read_text()
    releases = SpecifierSet(re.search('^JAX_RELEASES = "(.+)"', setup, re.MULTILINE)[1])
    assert not [version for version in xla_guard.VALUES if version in releases]
    assert all(version in releases for version in ("0.10.0", "0.10.1"))
    assert re.findall(r'"jax\W', setup) == ['"jax{', '"jax[', '"jax[']
