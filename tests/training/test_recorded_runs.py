"""Runs of every family that were stopped in the past: they open, and continue as they did then."""

import json
import shutil
import zipfile

import pytest

from tests.fixtures import make_runs

FAMILIES = sorted(path.stem for path in make_runs.RUNS.glob("*.zip"))


@pytest.mark.sample("decoder")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_stopped_run_opens_and_continues_as_recorded(family, tmp_path, monkeypatch):
    """To the last bit on the processor and the release of jax that recorded it."""
    monkeypatch.chdir(tmp_path)
    workdir = tmp_path / "run"
    with zipfile.ZipFile(make_runs.RUNS / f"{family}.zip") as file:
        file.extractall(workdir)
    expected = json.loads((workdir / "expected.json").read_text())
    config = make_runs.config_of(family)
    assert make_runs.scores(workdir) == pytest.approx(expected["scores"], rel=1e-5, nan_ok=True)

    config.train.num_steps = make_runs.STOP + 1
    make_runs.train(config, workdir)
    found = make_runs.end(workdir)
    assert found["line"] == pytest.approx(expected["end"]["line"], rel=1e-5, nan_ok=True)
    if found["machine"] == expected["end"]["machine"]:
        assert found["params"] == expected["end"]["params"]
    shutil.rmtree(workdir)
