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

from transformer_jax import xla_guard

TESTS = pathlib.Path(__file__).parent
USERS = {
    name: value
    for name, value in os.environ.items()
    if name not in ("XLA_FLAGS", xla_guard.ADDED, xla_guard.WARNED) and not name.startswith("JAX_")
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


@pytest.mark.full
def test_programs_that_a_jaxlib_compiles_wrongly_are_right():
    code = "import transformer_jax, runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"
    done = run_python(code, str(TESTS / "xla_programs.py"), NPROC="2")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr
    assert len(rows) == 54
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


@pytest.mark.parametrize("jaxlib", ["0.10.0", "0.10.1"])
def test_a_jaxlib_that_is_right_without_the_flag_gets_none(guard, jaxlib):
    assert guard(jaxlib) is None
    assert guard(jaxlib, "--xla_dump_to=/tmp/x") == "--xla_dump_to=/tmp/x"


@pytest.fixture
def trials(monkeypatch, tmp_path):
    """Returns a list of the flags that trials were made with, and a set of those that succeed."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv(xla_guard.WARNED, raising=False)
    made, succeed = [], set()

    def start(flags):
        made.append(flags)
        return flags in succeed

    monkeypatch.setattr(xla_guard, "_starts", start)
    yield made, succeed
    os.environ.pop(xla_guard.WARNED, None)


def test_an_untried_jaxlib_gets_the_flag_that_it_accepts(guard, trials):
    made, succeed = trials
    succeed |= {"", f"{FLAG}=-reduce"}
    with pytest.warns(UserWarning, match="jaxlib 0.13.0.* It gets the XLA flag") as warned:
        assert guard("0.13.0", "--xla_dump_to=/tmp/x") == f"{FLAG}=-reduce --xla_dump_to=/tmp/x"
        # It and its child processes neither try nor warn again.
        assert guard("0.13.0") == f"{FLAG}=-reduce"
    assert len(warned) == 1
    assert made == [f"{FLAG}=-reduce"]
    # Another process warns, but makes no trial; another release is tried by itself.
    with pytest.warns(UserWarning, match=r"jaxlib 0\.14\.0"):
        assert guard("0.14.0") == f"{FLAG}=-reduce"
    with pytest.warns(UserWarning, match=r"jaxlib 0\.13\.0"):
        assert guard("0.13.0") == f"{FLAG}=-reduce"
    assert len(made) == 2


@pytest.mark.parametrize(
    ("starts", "told", "times"),
    [({""}, "It does not accept the XLA flag", 1), (set(), "could not be found out", 2)],
)
def test_an_untried_jaxlib_that_refuses_the_flag_gets_a_warning(guard, trials, starts, told, times):
    made, succeed = trials
    succeed |= starts
    with pytest.warns(UserWarning, match=rf"{told}.*tests/xla_programs\.py") as warned:
        assert guard("0.13.0", "--xla_dump_to=/tmp/x") == "--xla_dump_to=/tmp/x"
        assert guard("0.13.0") is None
    assert len(warned) == 1
    assert made == [f"{FLAG}=-reduce", ""] * times


def test_the_users_own_value_needs_no_trial(guard, trials):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert guard("0.13.0", f"{FLAG}=") == f"{FLAG}="
    assert not trials[0]


def test_a_trial_tells_a_flag_that_xla_knows_from_another(monkeypatch):
    monkeypatch.setattr(os, "environ", USERS)
    assert xla_guard._starts("--xla_cpu_enable_fast_math=false")
    assert not xla_guard._starts("--xla_no_such_flag=1")


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


def test_import_of_the_package_sets_the_flag_and_imports_no_jax(tmp_path):
    code = """
import importlib.metadata, os, sys
importlib.metadata.version = lambda name: sys.argv[1]
import transformer_jax
assert "jax" not in sys.modules
print(os.environ.get("XLA_FLAGS"))"""
    tried = tmp_path / ".cache/transformer_jax/xla_flag/jaxlib-0.13.0-reduce"
    tried.parent.mkdir(parents=True)
    tried.write_text("accepted")
    for jaxlib, flags, warned in (
        ("0.12.0", f"{FLAG}=-reduce", 0),
        ("0.10.1", "None", 0),
        ("0.13.0", f"{FLAG}=-reduce", 1),
    ):
        done = run_python(code, jaxlib, HOME=str(tmp_path))
        assert done.stdout.strip() == flags, done.stderr
        assert done.stderr.count("UserWarning") == warned


def test_the_package_accepts_the_releases_that_were_tried():
    setup = (TESTS.parent / "setup.py").read_text()
    releases = SpecifierSet(re.search('^JAX_RELEASES = "(.+)"', setup, re.MULTILINE)[1])
    assert [version for version in xla_guard.VALUES if version not in releases] == ["0.10.2"]
    assert "0.12.1" in releases  # for such a release the guard makes a trial
    assert "0.13.0" not in releases
    # every requirement names that range
    assert re.findall(r'"jax\W', setup) == ['"jax{', '"jax[', '"jax[', '"jax[', '"jax[']
    assert setup.count("{JAX_RELEASES}") == 5
