"""Workdirs of every released checkpoint format can be read and continued."""

import json
import pathlib
import shutil

import jax
import numpy as np
import pytest

from tests.conftest import build_gpt, write_pairs
from tests.jitted import jitted
from transformer_jax.config import UserError
from transformer_jax.runs import spec
from transformer_jax.runs.open import load
from transformer_jax.runs.spec import make_task
from transformer_jax.runs.train import train
from transformer_jax.training.trainer import Program, run

FIXTURES = pathlib.Path(__file__).parent / "fixtures"
RELEASED = sorted(FIXTURES.glob("format_*"))


@pytest.mark.parametrize("path", RELEASED, ids=lambda p: p.name)
def test_a_released_format_still_restores(path):
    model, params, tokenizer = load(path)
    logits = jitted(model.apply)({"params": params}, np.array([[5, 6, 3]]), np.array([[2, 7]]))
    expected = json.loads((path / "expected.json").read_text())["logits"]
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)
    assert tokenizer.source.decode(tokenizer.source.encode(["a dog runs"])) == ["a dog runs"]


@pytest.mark.parametrize("path", RELEASED, ids=lambda p: p.name)
def test_a_run_of_a_released_format_continues(path, tmp_path, monkeypatch):
    shutil.copytree(path, tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    write_pairs(pathlib.Path("text"))
    config = spec.read(tmp_path / "run").config
    config.train.num_steps = 6
    task = make_task(config, tmp_path / "run")
    program = Program.of(config, task, jax.devices()[:1])
    spec.begin(config, task, tmp_path / "run")
    assert run(config, task, tmp_path / "run", program)["valid/loss"] > 0
    assert spec.metrics(tmp_path / "run")[-1]["step"] == 6


def test_a_newer_format_and_a_broken_record_are_refused(tmp_path):
    shutil.copytree(RELEASED[-1], tmp_path / "run")
    path = tmp_path / "run" / "config.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "checkpoint_format": 999}))
    with pytest.raises(UserError, match="written by a newer version"):
        load(tmp_path / "run")
    path.write_text(path.read_text()[:50])
    with pytest.raises(UserError, match="not a run's record"):
        load(tmp_path / "run")


def test_a_run_of_another_task_is_named(tmp_path):
    with pytest.raises(
        UserError, match="holds a translation run, not a causal_lm one; take another folder"
    ):
        train(build_gpt(tmp_path / "gpt"), RELEASED[0])


def test_damaged_lines_of_metrics_are_ignored(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n\xff\xfe\n')
    assert spec.metrics(tmp_path) == [{"step": 1}]
