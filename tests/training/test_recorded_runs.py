"""Runs of every family that were stopped in the past: they open, and continue as they did then."""

import json
import shutil
import zipfile

import pytest

from tests.fixtures import make_runs

FAMILIES = sorted(path.stem for path in make_runs.RUNS.glob("*.zip"))


def assert_same(found, expected, is_same_machine):
    """Another processor may round a loss otherwise, and so decide otherwise about a prediction."""
    assert found.keys() == expected.keys()
    names = [name for name in expected if is_same_machine or name.endswith("loss")]
    for name in names:
        tolerance = 1e-5 if is_same_machine else 1e-4
        assert found[name] == pytest.approx(expected[name], rel=tolerance, nan_ok=True), name


@pytest.mark.sample("decoder")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_stopped_run_opens_and_continues_as_recorded(family, tmp_path, monkeypatch):
    """To the last bit on the processor and the release of jax that recorded it."""
    monkeypatch.chdir(tmp_path)
    workdir = tmp_path / "run"
    with zipfile.ZipFile(make_runs.RUNS / f"{family}.zip") as file:
        file.extractall(workdir)
    expected = json.loads((workdir / "expected.json").read_text())
    is_same = make_runs.machine() == expected["end"]["machine"]
    config = make_runs.config_of(family)
    assert_same(make_runs.scores(workdir), expected["scores"], is_same)

    config.train.num_steps = make_runs.STOP + 1
    make_runs.train(config, workdir)
    found = make_runs.end(workdir)
    assert_same(found["line"], expected["end"]["line"], is_same)
    if is_same:
        assert found["params"] == expected["end"]["params"]
    shutil.rmtree(workdir)
