"""A training that is faked, for the tests of what is done with many of them."""

import json

import pytest

from transformer_jax.laboratory import arms, comparison
from transformer_jax.laboratory.comparison import Comparison


@pytest.fixture
def fake(monkeypatch, tmp_path):
    """Makes training write a score that `value(arm, seed)` gives. Returns the trained runs."""
    trained = []

    def start(value):
        def train(config, workdir, *, overrides, on_evaluate):
            updates, seed = dict(overrides)["train.num_steps"], dict(overrides)["train.seed"]
            arm = workdir.parent.name
            scores = value(arm, seed)
            on_evaluate(updates, scores)
            workdir.mkdir(parents=True)
            lines = [{"step": updates // 2} | scores, {"step": updates} | scores]
            (workdir / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
            trained.append((arm, seed))

        monkeypatch.setattr(comparison, "train", train)
        monkeypatch.setattr(comparison, "check_same", lambda *run: None)
        monkeypatch.setattr(arms, "cost", lambda arm: 1e9)
        monkeypatch.setattr(Comparison, "common", lambda self: [])
        return trained

    return start
