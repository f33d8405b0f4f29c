"""The size of the cache of compiled programs."""

import os

import pytest

from transformer_jax import cli


@pytest.fixture
def folder(tmp_path):
    """A cache of four programs of 1 kB, the first used last, and a file of another kind."""
    for number, name in enumerate("badc"):
        (tmp_path / f"{name}-cache").write_bytes(bytes(1000))
        # `a` was written long ago, and read since.
        os.utime(tmp_path / f"{name}-cache", (10 * number if name != "a" else 100, number))
    (tmp_path / "other").write_bytes(bytes(1000))
    return tmp_path


def programs(folder):
    return {path.name[0] for path in folder.glob("*-cache")}


def test_the_least_recently_used_programs_are_removed(folder, monkeypatch, capsys):
    monkeypatch.setenv("TRANSFORMER_JAX_COMPILED_GB", "0.000002")
    cli.keep_small(folder)
    assert programs(folder) == {"a", "c"} and (folder / "other").exists()
    line = capsys.readouterr().err
    assert "beyond TRANSFORMER_JAX_COMPILED_GB=2e-06: the 2 compiled programs" in line
    monkeypatch.setenv("TRANSFORMER_JAX_COMPILED_GB", "0")
    cli.keep_small(folder)  # it looks once an hour
    assert programs(folder) == {"a", "c"}
    os.utime(folder / ".looked", (0, 0))
    cli.keep_small(folder)
    assert not programs(folder)


def test_a_cache_below_the_limit_or_missing_stays(folder, capsys):
    cli.keep_small(folder)
    assert programs(folder) == set("abcd")
    cli.keep_small(folder / "missing")
    assert not (folder / "missing").exists() and not capsys.readouterr().err
