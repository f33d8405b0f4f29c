"""Progress without a terminal: plain lines and the remaining time."""

import threading
import time

from transformer_jax.pictures import progress


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
