"""The loop: exact resume, its files, and its errors."""

import json
import re
import shutil
import time

import jax
import numpy as np
import pytest

from tests.training.stopping import stopping_at
from transformer_jax.config import Preempted, RunError, UserError
from transformer_jax.runs.spec import make_task
from transformer_jax.training import trainer
from transformer_jax.training.checkpoint import Checkpoints
from transformer_jax.training.trainer import Clock, Program, run

EXACT = dict(
    model__dropout=0.2,
    train__accumulation=2,
    train__num_steps=10,
    train__log_every=3,
    train__eval_every=7,
    checkpoint__every=1,
    checkpoint__keep=30,
)


def final_state(workdir, config, program, step):
    checkpoints = Checkpoints(workdir / "checkpoints", config.checkpoint, read_only=True)
    return jax.device_get(checkpoints.restore(program.state, step)[0])


def lines(workdir):
    """The lines of metrics.jsonl without the measured times."""
    timed = ("train/tokens_per_second", "train/mfu")
    return [
        {k: v for k, v in line.items() if not k.startswith("seconds/") and k not in timed}
        for line in all_lines(workdir)
    ]


def all_lines(workdir):
    """The lines of metrics.jsonl."""
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def line_with(workdir, name):
    """The only line of metrics.jsonl with a value of that name."""
    [line] = [line for line in all_lines(workdir) if name in line]
    return line


def resumed_bit_equal(config, task, program, folder, stops):
    """Returns the last state of a run in folder/straight, which has a checkpoint at all `stops`.

    Checks that a run that goes on from each of them ends with the same state and metrics.
    """
    last = config.train.num_steps
    straight, resumed = folder / "straight", folder / "resumed"
    run(config, task, straight, program)
    config.checkpoint.every = last  # the resumed runs save at their end alone
    expected = final_state(straight, config, program, last)
    for stop in stops:
        shutil.copytree(straight, resumed)
        for step in saved_steps(resumed):
            if step > stop:
                shutil.rmtree(resumed / "checkpoints" / str(step))
        assert saved_steps(resumed)[-1] == stop
        run(config, task, resumed, program)
        actual = final_state(resumed, config, program, last)
        jax.tree.map(np.testing.assert_array_equal, actual, expected)
        assert lines(resumed) == lines(straight), stop
        shutil.rmtree(resumed)
    return expected


def saved_steps(workdir):
    return sorted(int(p.name) for p in (workdir / "checkpoints").iterdir() if p.name.isdigit())


@pytest.mark.full
@pytest.mark.parametrize(
    "stops", [(1, 7, 8), pytest.param((2, 3, 4, 5, 6, 9), marks=pytest.mark.full)], ids=str
)
def test_resume_is_bit_equal_at_every_step(stops, tiny, tmp_path):
    """With dropout, packing and accumulation, state and metrics are those of a straight run."""
    config = tiny(**EXACT)
    task = make_task(config)
    program = Program.of(config, task, jax.devices()[:2])
    resumed_bit_equal(config, task, program, tmp_path, stops)


def test_the_files_of_a_run(tiny, tmp_path, capsys, monkeypatch, drawn):
    pings = []  # one item for each step that the watchdog saw
    monkeypatch.setattr(trainer.Watchdog, "ping", lambda self: pings.append(1))
    config = tiny(
        train__num_steps=12,
        train__log_every=4,
        train__eval_every=4,
        checkpoint__every=2,
        checkpoint__keep=2,
        optimizer__learning_rate=0.01,
        task__bleu_lines=8,
    )
    workdir = tmp_path / "run"
    task = make_task(config)
    program = Program.of(config, task, jax.devices()[:1])
    result = run(config, task, workdir, program)
    batches = task.rows().eval["valid"].num_batches(config.train.batch)
    # The first batch of each evaluation may be compiled, so it does not count.
    assert batches > 1 and len(pings) == 12 + 3 * (batches - 1)
    # Logs, evaluations and saves between the updates cause no compilation.
    assert program.train_step._cache_size() == 1
    written = lines(workdir)
    logged = [line for line in written if "train/loss" in line]
    assert [line["step"] for line in logged] == [4, 8, 12]
    assert {
        "train/nll",
        "train/accuracy",
        "train/learning_rate",
        "train/grad_norm",
        "train/update_norm",
        "train/param_norm",
        "train/padding",
        "train/tokens_total",
        "train/flops_total",
    } <= set(logged[0])
    assert logged[-1]["train/tokens_total"] > logged[0]["train/tokens_total"] > 0
    evaluated = [line for line in written if "valid/loss" in line]
    assert [line["step"] for line in evaluated] == [4, 8, 12]
    assert all(0 <= line["valid/bleu"] <= 100 for line in evaluated)
    assert evaluated[-1]["valid/loss"] < evaluated[0]["valid/loss"]
    assert result["valid/loss"] == evaluated[-1]["valid/loss"]
    best = min(evaluated, key=lambda line: line["valid/loss"])["step"]
    assert saved_steps(workdir) == sorted({10, 12, best})
    assert (workdir / "curves.png").read_bytes()[:4] == b"\x89PNG"
    assert list((workdir / "tensorboard").iterdir())
    error = capsys.readouterr().err
    for words in ("step 4/12", "tokens/s", "padding", "first step after"):
        assert words in error
    said = error.splitlines()
    for pattern in (
        r"task       translation with the model encoder_decoder: [\d,]+ parameters",
        r"devices    \d x cpu",
        r"an update  \d+ rows, \d+ target positions",
        r"updates    1 to 12, in .*run",
        r"evaluated  valid every 4 updates, best by valid/loss",
        r"done       update 12 of 12 after .* minutes, [\d,]+ tokens in all",
        rf"best       valid/loss \d\.\d+ at step {best}$",
        r"curves     .*curves.png",
        r"next       python -m transformer_jax.translate --workdir=.*",
    ):
        assert sum(bool(re.match(pattern, line)) for line in said) == 1, pattern


@pytest.mark.full
def test_evaluations_get_the_parameters_as_they_are_sharded(tiny, tmp_path, monkeypatch, capsys):
    config = tiny(
        mesh__fsdp=2,
        train__num_steps=2,
        train__eval_every=2,
        checkpoint__best_metric="valid/bleu",
    )
    task = make_task(config)
    received = []

    def evaluation(params):
        received.extend(jax.tree.leaves(params))
        return {}

    monkeypatch.setattr(task, "evaluations", lambda: {"valid": evaluation})
    run(config, task, tmp_path / "run")
    held = sum(leaf.addressable_shards[0].data.size for leaf in received)
    # Vectors are whole on each device.
    assert held < 1.2 / 2 * sum(leaf.size for leaf in received)
    assert "best_metric=valid/bleu: not measured" in capsys.readouterr().err


@pytest.mark.full
def test_a_profile_of_some_updates(tiny, tmp_path, capsys):
    config = tiny(train__num_steps=4)
    task = make_task(config)
    program = Program.of(config, task, jax.devices()[:1])
    run(config, task, tmp_path / "run", program, profile=(2, 3))
    [trace] = (tmp_path / "run/profile").rglob("*.xplane.pb")
    events = [
        (event.name, dict(event.stats))
        for plane in jax.profiler.ProfileData.from_file(str(trace)).planes
        for line in plane.lines
        for event in line.events
    ]
    names = {name for name, _ in events}
    assert [stats["step_num"] for name, stats in events if name == "update"] == [2, 3]
    assert names > {"data", "checkpoint"} and any("dot" in name for name in names)
    assert "profile of updates 2 to 3" in capsys.readouterr().err
    # No Python calls: their tracer has crashed runs in a save.
    assert not any(name.startswith("$") for name in names)


@pytest.mark.full
def test_mfu_of_a_device_in_no_table_is_of_the_measured_rate(tiny, tmp_path, capsys, monkeypatch):
    initial = trainer.Trainer._initial

    def slowly(*arguments):
        time.sleep(2)
        return initial(*arguments)

    monkeypatch.setattr(trainer.Trainer, "_initial", slowly)
    config = tiny(train__num_steps=4, train__log_every=4)
    task = make_task(config)
    program = Program.of(config, task, jax.devices()[:2])
    run(config, task, tmp_path / "run", program)
    line = line_with(tmp_path / "run", "train/mfu")
    assert "the peak of 'cpu' is not known" in capsys.readouterr().err
    assert 1e9 < program.peak < 1e14  # two virtual devices are one machine
    flops = 3 * task.flops(0) * config.train.batch  # the first update is compilation time
    seconds = line["seconds/step"] + line["seconds/data"]
    assert line["train/mfu"] * program.peak * seconds == pytest.approx(flops)
    assert line["seconds/step"] < 2  # without the time before the first update


@pytest.mark.parametrize("mfu, shown", [(0.43, True), (1.43, False), (float("nan"), False)])
def test_an_mfu_above_100_percent_is_not_printed(mfu, shown):
    """The rate of a CPU is measured, which is too low while other processes run."""
    values = dict(loss=2.0, learning_rate=1e-3, skipped=0, padding=0.0, tokens_per_second=9.0)
    note = trainer._note(
        {f"train/{name}": value for name, value in (values | {"mfu": mfu}).items()}, ("loss",)
    )
    assert ("MFU 43%" in note) == shown and ("MFU" in note) == shown
    assert ("9 tokens/s" in note) == np.isfinite(mfu)


def test_hooks_are_called_beside_the_updates(tiny, tmp_path):
    config = tiny(train__num_steps=8, train__eval_every=4, checkpoint__every=8)
    seen, workdir = [], tmp_path / "run"

    def see(run):
        seen.append((run.step, int(run.state.step), "valid/loss" in run.scores))

    def end(run):
        run.record({"seconds": jax.numpy.float32(1.5)})
        run.end("a hook has seen enough")

    program = Program.of(config, task := make_task(config), jax.devices()[:1])
    scores = run(config, task, workdir, program, hooks=[(2, see), trainer.Hook(6, end)])
    assert seen == [(2, 2, False), (4, 4, True), (6, 6, False)]
    assert saved_steps(workdir)[-1] == 6 and not scores
    assert line_with(workdir, "hook/seconds") == {"step": 6, "hook/seconds": 1.5}
    run(config, task, workdir, program, hooks=[(3, see)])
    assert seen[3:] == [(8, 8, True)]
    with pytest.raises(UserError, match="the interval must be at least 1 update"):
        run(config, task, workdir, program, hooks=[(0, see)])


@pytest.mark.full
def test_only_idle_devices_wait_for_data(tiny, tmp_path, monkeypatch):
    """The time of a slow reader counts, but not while updates are in flight."""

    def slowly(*arguments, **options):
        for batch in stream(*arguments, **options):
            time.sleep(0.2)
            yield batch

    stream = trainer.stream
    monkeypatch.setattr(trainer, "stream", slowly)
    config = tiny(train__num_steps=12, train__log_every=12)
    run(config, make_task(config), tmp_path / "run")
    # Some batches are read while the first update is compiled, and slow updates hide parts.
    assert line_with(tmp_path / "run", "train/mfu")["seconds/data"] > 0.5
    clock = Clock()
    with clock("data", lambda: False):
        time.sleep(0.05)
    spent = clock.lap()
    assert spent["data"] == 0 and spent["step"] >= 0.05


@pytest.mark.full
def test_a_model_learns_a_few_sentences_by_heart(tiny, tmp_path):
    config = tiny(
        train__num_steps=150,
        train__log_every=150,
        train__eval_every=150,
        checkpoint__every=150,
        optimizer__learning_rate=0.02,
        optimizer__warmup_steps=20,
        task__label_smoothing=0.0,
        model__d_model=32,
        model__norm_position="pre",
    )
    task = make_task(config)
    run(config, task, tmp_path / "run", Program.of(config, task, jax.devices()[:1]))
    # All texts are made of the same six sentences.
    assert lines(tmp_path / "run")[-1]["valid/accuracy"] > 0.9


@pytest.mark.full
def test_a_non_finite_loss_ends_the_run_which_saves_nothing_after_it(tiny, tmp_path):
    config = tiny(
        train__num_steps=12,
        train__log_every=3,
        checkpoint__every=2,
        optimizer__learning_rate=1e30,
        optimizer__warmup_steps=0,
    )
    with pytest.raises(RunError, match=r"not finite at update \d+"):
        run(config, make_task(config), tmp_path / "run")
    assert max(saved_steps(tmp_path / "run"), default=0) <= 2
    config.train.nonfinite = "skip"
    run(config, make_task(config), tmp_path / "skipping")
    assert lines(tmp_path / "skipping")[-1]["step"] == 12
    config.train.nonfinite = "stop"
    config.train.num_steps = 14
    config.optimizer.learning_rate = 1e-3
    # Updates that were skipped with the other setting do not end the run.
    run(config, make_task(config), tmp_path / "skipping")


@pytest.mark.full
def test_a_longer_run_resumes_and_a_finished_one_has_nothing_to_do(tiny, tmp_path, capsys):
    run(tiny(), make_task(tiny()), tmp_path / "run")
    longer = tiny(train__num_steps=6)
    run(longer, make_task(longer), tmp_path / "run")
    assert "resuming from step 4" in capsys.readouterr().err
    written = lines(tmp_path / "run")
    scores = {k: v for k, v in written[-1].items() if k != "step"}
    assert run(longer, make_task(longer), tmp_path / "run") == scores
    assert "nothing to do" in capsys.readouterr().err and lines(tmp_path / "run") == written


@pytest.mark.full
def test_a_run_stopped_at_an_evaluation_evaluates_when_it_resumes(tiny, tmp_path, monkeypatch):
    """The scores count for the checkpoint that was saved at the stop, the best of this run."""
    # The first checkpoint has the greatest loss.
    config = tiny(
        train__num_steps=8,
        train__eval_every=4,
        checkpoint__every=4,
        checkpoint__keep=1,
        checkpoint__best_mode="max",
    )
    task = make_task(config)
    program = Program.of(config, task)
    run(config, task, tmp_path / "straight", program)
    with monkeypatch.context() as patch, pytest.raises(Preempted):
        patch.setattr(trainer, "Stop", stopping_at(8))
        run(config, task, tmp_path / "stopped", program)
    assert not any("valid/loss" in line for line in lines(tmp_path / "stopped"))
    run(config, task, tmp_path / "stopped", program)
    assert lines(tmp_path / "stopped") == lines(tmp_path / "straight")
    for workdir in ("straight", "stopped"):
        checkpoints = Checkpoints(
            tmp_path / workdir / "checkpoints", config.checkpoint, read_only=True
        )
        assert (checkpoints.steps(), checkpoints.pick("best")) == ([4, 8], 4)
