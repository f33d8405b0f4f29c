"""Progress without a terminal: plain lines, their metrics and the remaining time."""

import math
import threading
import time

import pytest

from tests.conftest import build_gpt
from transformer_jax.config import UserError
from transformer_jax.objectives.rollouts import Policy
from transformer_jax.pictures import progress
from transformer_jax.runs.spec import make_task
from transformer_jax.tasks.causal_lm import CausalLM
from transformer_jax.training import trainer
from transformer_jax.training.step import Program


def test_remaining_time_follows_the_recent_pace(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    bar = progress.Bar("work", total=101, seconds=float("inf"))
    assert bar.left() == "?"
    now[0] = 500.0  # set-up
    bar.advance()
    for _ in range(10):
        now[0] += 2
        bar.advance()
    assert bar.left() == "0:03:00"  # 90 units of 2 seconds
    for _ in range(30):
        now[0] += 10
        bar.advance()
    assert bar.left() == "0:10:00"  # 60 units, which now cost 10 seconds


def test_plain_lines_at_intervals(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    items = []
    for item in progress.track(range(40), "reading", 40):
        items.append(item)
        now[0] += 1
    lines = capsys.readouterr().err.splitlines()
    assert items == list(range(40))
    assert len(lines) == 2 and lines[0].startswith("reading: 1")
    assert "of 40" in lines[0] and "left" in lines[0]


def test_a_long_silence_is_explained(monkeypatch):
    lines, compiling, training = [], threading.Event(), threading.Event()

    def say(text):
        lines.append(text)
        (compiling if "compiling" in text else training).set()

    monkeypatch.setattr(progress, "say", say)
    count = threading.active_count()
    with progress.doing("training"), progress.never_silent(seconds=0.01):
        with progress.doing("compiling"):
            assert compiling.wait(timeout=20)
        assert training.wait(timeout=20)
    assert {*lines} == {"still compiling", "still training"}
    assert threading.active_count() == count


@pytest.mark.parametrize(
    "task, line",
    [(CausalLM, "loss 0.0100  lr 1.00e-03"), (Policy, "reward 0.5000  kl 2.0000  loss 0.0100  lr")],
)
def test_the_line_shows_the_metrics_that_the_task_names(task, line, tmp_path, capsys):
    values = {"loss": 0.01, "reward": 0.5, "kl": 2.0, "learning_rate": 1e-3, "mfu": math.nan}
    values |= {"padding": 0.0, "skipped": 0}
    with trainer.Reporter(tmp_path, 0, 20, task.progress_metrics) as reporter:
        reporter.progress(10, {f"train/{name}": value for name, value in values.items()})
    assert f"step 10/20  {line}" in capsys.readouterr().err


def test_a_metric_that_the_loss_does_not_measure_is_refused(tmp_path):
    config = build_gpt(tmp_path)
    task = make_task(config)
    task.progress_metrics = ("loss", "rewad")
    program = Program.of(config, task)
    with pytest.raises(UserError, match="progress_metrics name 'rewad'.* there are: .*grad_norm"):
        trainer.Trainer(config, task, tmp_path / "run", program).run()
