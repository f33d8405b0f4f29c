"""Fractions of a run, checkpoints at intervals of time, and the learning rate of a longer run."""

import jax
import numpy as np
import pytest

from tests.conftest import build_config
from tests.training.stopping import stopping_at
from transformer_jax import config as configs
from transformer_jax.config import Preempted, UserError
from transformer_jax.distributed import hosts
from transformer_jax.runs.spec import make_task
from transformer_jax.runs.train import train
from transformer_jax.training import trainer
from transformer_jax.training.checkpoint import Checkpoints
from transformer_jax.training.trainer import Program, SaveTimer, rate_line, run


@pytest.mark.parametrize(
    "value, num_steps, span, interval",
    [
        (0.1, 30, 3, 3),
        (1 / 3, 1000, 333, 334),
        (0.03, 100_000, 3000, 3000),
        (0.001, 20, 0, 1),
        (5, 1000, 5, 5),
        (5.0, 1000, 5, 5),
        (1, 7, 1, 1),
    ],
)
def test_fractions_become_updates(value, num_steps, span, interval):
    assert configs.span(value, num_steps) == span
    assert configs.interval(value, num_steps) == interval


@pytest.mark.parametrize(
    "given, expected", [("0.5", 0.5), ("7", 7), ("1e5", 100_000), (0.25, 0.25), (2.0, 2)]
)
def test_an_interval_takes_updates_or_a_fraction(tiny, given, expected):
    config = tiny(train__eval_every=given)
    assert config.train.eval_every == expected and type(config.train.eval_every) is type(expected)


@pytest.mark.parametrize(
    "key, value, words",
    [
        ("train.eval_every", "1.5", "a whole number of updates or a fraction of the run"),
        ("train.eval_every", "0", "must be at least 1, or a fraction of the run between 0 and 1"),
        ("train.eval_every", "True", "a whole number of updates"),
        ("train.eval_every", "none", "a whole number of updates"),
        ("checkpoint.every", "often", "a whole number of updates"),
        ("checkpoint.minutes", "-1", "config.checkpoint.minutes=-1.0: must be at least 0"),
        ("optimizer.warmup_steps", "-0.1", "a whole number of updates"),
        ("optimizer.warmup_steps", "-3", "must be at least 0, or a fraction"),
        ("optimizer.warmup_steps", "1e10", "2^31"),
        ("optimizer.decay_steps", "0.01", "config.optimizer.decay_steps=10: must be more than"),
    ],
)
def test_a_wrong_length_is_refused(key, value, words):
    config = configs.experiment(
        model=dict(name="gpt"), task=dict(name="causal_lm"), optimizer=dict(warmup_steps=100)
    )
    with pytest.raises(UserError, match=r"^[^\n]*$") as error:
        configs.set_key(config, key, value)
        configs.validate(config)
    assert words in str(error.value)


def test_a_fraction_and_its_updates_are_the_same_run(tiny):
    """A warm-up of 100 updates of 1,000 equals a tenth, so a run may resume with either."""
    old = tiny(train__num_steps=1000, optimizer__warmup_steps=100)
    new = tiny(train__num_steps=3000, optimizer__warmup_steps=0.1)
    assert configs.differences(old, new) == []
    assert configs.differences(new, old) == ["optimizer.warmup_steps: 300 -> 100"]


SAVING = dict(train__num_steps=10, train__log_every=5, checkpoint__keep=30)


def saved(workdir):
    return sorted(int(p.name) for p in (workdir / "checkpoints").iterdir() if p.name.isdigit())


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """A task and its program, which the runs of this file share."""
    config = build_config(tmp_path_factory.mktemp("parts"), **SAVING, optimizer__schedule="cosine")
    task = make_task(config)
    return config, task, Program.of(config, task, jax.devices()[:1])


def changed(config, **values):
    config = config.copy_and_resolve_references()
    for key, value in values.items():
        configs.set_key(config, key.replace("__", "."), value)
    configs.validate(config)
    return config


@pytest.mark.full
@pytest.mark.parametrize(
    "intervals, steps",
    [
        (dict(checkpoint__every=3, train__eval_every=4), [3, 4, 6, 8, 9, 10]),
        (dict(checkpoint__every=0.3, train__eval_every=0.4), [3, 4, 6, 8, 9, 10]),
        (dict(checkpoint__every=10, train__eval_every=0.5), [5, 10]),
        (dict(checkpoint__every=10, train__eval_every=5, checkpoint__best_metric=""), [10]),
        (dict(checkpoint__every=4, train__eval_every=2), [4, 8, 10]),
    ],
)
def test_the_best_checkpoint_was_evaluated(parts, tmp_path, intervals, steps):
    config, task, program = parts
    config = changed(config, **intervals)
    run(config, task, tmp_path, program)
    assert saved(tmp_path) == steps


@pytest.mark.full
def test_a_run_with_checkpoints_by_time_resumes_bit_equal(parts, tmp_path, monkeypatch):
    """On the simulated clock an update takes a minute. A checkpoint is due every 3 minutes."""
    config, task, program = parts
    config = changed(config, checkpoint__every=10, train__eval_every=10, checkpoint__minutes=3)
    run(changed(config, checkpoint__minutes=0), task, tmp_path / "straight", program)
    assert saved(tmp_path / "straight") == [10]

    class Minutes(SaveTimer):
        def __init__(self, minutes, step):
            self.step = step
            super().__init__(minutes, step, lambda: 60 * self.step)

        def due(self, step):
            self.step = step
            return super().due(step)

    monkeypatch.setattr(trainer, "SaveTimer", Minutes)
    with monkeypatch.context() as patch, pytest.raises(Preempted):
        patch.setattr(trainer, "Stop", stopping_at(14))
        run(config, task, tmp_path / "resumed", program)
    assert saved(tmp_path / "resumed") == [3, 6, 7]
    run(config, task, tmp_path / "resumed", program)
    assert saved(tmp_path / "resumed") == [3, 6, 7, 10]
    states = [
        Checkpoints(tmp_path / name / "checkpoints", config.checkpoint, read_only=True).restore(
            program.state, 10
        )[0]
        for name in ("straight", "resumed")
    ]
    jax.tree.map(np.testing.assert_array_equal, *states)


def test_the_clock_of_process_0_decides_for_all(monkeypatch):
    """The clocks run at different speeds. The processes share rarely, and agree at every update."""
    shared = {}  # the shared values, by update
    answers = {0: [], 1: []}
    seconds = [0.0, 0.0]
    monkeypatch.setattr(hosts, "count", lambda: 2)
    timers = []
    for number in (0, 1):
        timers.append(SaveTimer(1.0, 0, lambda number=number: seconds[number]))
    for step in range(1, 2001):
        for number, timer in enumerate(timers):
            seconds[number] += (0.5, 9.0)[number]
            monkeypatch.setattr(
                hosts,
                "share",
                lambda value, number=number, step=step: (
                    shared.setdefault(step, value) if number == 0 else shared[step]
                ),
            )
            answers[number].append(timer.due(step))
            if answers[number][-1]:
                timer.saved()
    assert answers[0] == answers[1] and len(shared) < 200
    times = [step for step, answer in enumerate(answers[0], 1) if answer]
    gaps = np.diff([0, *times])
    assert len(times) >= 14 and min(gaps) >= 120 and max(gaps) <= 140


@pytest.mark.parametrize(
    "old, new, words",
    [
        (
            dict(num_steps=1500),
            dict(num_steps=3000),
            [
                "config.train.num_steps 1,500 -> 3,000: the cosine schedule now ends at 3,000 "
                "instead of 1,500; the learning rate at update 1,001 is 0.0075 instead of 0.0025"
            ],
        ),
        (
            dict(num_steps=1500, warmup_steps=0.1),
            dict(num_steps=3000, warmup_steps=0.1),
            ["the warm-up now ends at 300 instead of 150; the cosine schedule now ends at 3,000"],
        ),
        (
            dict(num_steps=1500, schedule="constant"),
            dict(num_steps=3000, schedule="constant"),
            ["1,500 -> 3,000: the learning rate at update 1,001 stays 0.01"],
        ),
        (dict(num_steps=1500), dict(num_steps=1500), []),
    ],
)
def test_a_changed_length_prints_the_learning_rate(tiny, old, new, words):
    def config(num_steps, **optimizer):
        values = dict(learning_rate=0.01, schedule="cosine", warmup_steps=0) | optimizer
        return tiny(train__num_steps=num_steps, **{f"optimizer__{k}": v for k, v in values.items()})

    line = rate_line(config(**old), config(**new), 1000, 0)
    assert line is None if not words else "\n" not in line
    for word in words:
        assert word in line


@pytest.mark.full
def test_a_longer_run_says_so_when_it_resumes(parts, tmp_path, capsys, monkeypatch):
    config, _, program = parts
    longer = changed(config, train__num_steps=12)
    monkeypatch.setattr(trainer.Program, "of", lambda config, task: program)
    train(config, tmp_path)
    assert "config.train.num_steps" not in capsys.readouterr().err
    train(longer, tmp_path)
    [line] = [line for line in capsys.readouterr().err.splitlines() if "num_steps 10 -> 12" in line]
    assert "the cosine schedule now ends at 12 instead of 10" in line and "at update 11 is" in line
