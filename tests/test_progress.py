"""Progress in a terminal and elsewhere, tables of evaluations, and answers to typed lines."""

import io
import math
import re
import sys
import threading
import time

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from rich.console import Console

from tests.conftest import build_gpt
from transformer_jax.cli import conversation
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


def test_a_bar_shows_the_operation_and_its_seconds(monkeypatch):
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=110)
    monkeypatch.setattr(progress, "console", console)
    with progress.doing("training"), progress.Bar("training", 1200) as bar:
        with progress.doing("compiling the training step"):
            started = progress._doing[-1][1]
            monkeypatch.setattr(time, "monotonic", lambda: started + 12.3)
            bar.rich.refresh()
            assert "compiling the training step 12 s" in shown.getvalue()
        shown.truncate(0)
        note = "loss 6.4049  best valid/bleu 92.1996  lr 2.00e-03  17,553 tokens/s  padding 4.3%"
        bar.advance(600, note)
        bar.rich.refresh()
        last = shown.getvalue().rpartition("training")[2]
        assert "600/1200" in last and "loss 6.4049  best valid/bleu 92.1996" in last
        assert "compiling" not in last


@pytest.mark.parametrize("columns", [40, 80, 110])
def test_evaluations_are_a_table_whose_numbers_are_whole(monkeypatch, columns):
    monkeypatch.setattr(progress, "width", lambda: columns)
    names = [f"valid/{name}" for name in ("accuracy", "loss", "perplexity", "bleu", "chrf")]
    tables = [
        list(trainer.evaluation_lines(step, 1200, dict.fromkeys(names, value), is_best))
        for step, value, is_best in ((5, 0.25, False), (1200, 1234.5, True))
    ]
    for lines, value in zip(tables, ("0.2500", "1234.5000")):
        assert all(len(line) <= columns for line in lines)
        assert re.findall(r"\d+\.\d+", " ".join(lines)) == [value] * 5
    first, second = tables
    columns_of = [[line.find("valid/") for line in lines][:5] for lines in tables]
    assert columns_of[0] == columns_of[1][: len(first)]
    assert first[0].startswith("step     5  ") and second[0].startswith("step 1,200  ")
    assert second[-1].endswith("  best") and "best" not in first[-1]


def test_typed_lines_are_answered_one_by_one(monkeypatch, capsys):
    lines, batches = iter(["one", "no mask", "two"]), []

    def typed(_prompt):
        if (line := next(lines, None)) is None:
            raise EOFError
        return line

    def answer(texts):
        batches.append([*texts])
        if "no" in batches[-1][0]:
            raise UserError("text 1: no [MASK] in it")
        yield batches[-1][0].upper()

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr("builtins.input", typed)
    assert list(conversation.answers(None, answer)) == ["ONE", "TWO"]
    assert batches == [["one"], ["no mask"], ["two"]]
    error = capsys.readouterr().err
    assert "Ctrl-D ends it" in error and "error: text 1: no [MASK]" in error
    assert list(conversation.answers(["given", "two"], answer)) == ["GIVEN"]


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


def test_the_lines_of_a_cell_of_a_notebook_are_one_output(monkeypatch):
    """The newest lines remain, and the next cell has an output of its own."""
    shell = InteractiveShell.instance()
    shell.user_ns["progress"] = progress
    monkeypatch.setattr(progress, "_is_notebook", True)
    monkeypatch.setattr(progress, "_cell", progress._Cell())

    def outputs(code):
        with capture_output() as captured:
            shell.run_cell(code, store_history=True).raise_error()
        return [(each.data["text/plain"], bool(each.update)) for each in captured.outputs]

    try:
        first = outputs("for number in range(40): progress.say(f'[red] {number}\\nb')")
        assert first[0] == ("[red] 0\nb", False) and all(update for _, update in first[1:])
        lines = first[-1][0].splitlines()
        assert len(lines) == 24 and lines[0] == "..." and lines[-2:] == ["[red] 39", "b"]
        assert outputs("progress.say('x')") == [("x", False)]
    finally:
        InteractiveShell.clear_instance()
