"""The loop: exact resume, what it writes, and how it stops."""

import json
import math
import shutil
import time

import jax
import numpy as np
import pytest

from tests.training.stopping import stopping_at
from transformer_jax.config import Preempted, RunError
from transformer_jax.runs.resolve import make_task
from transformer_jax.training import loop
from transformer_jax.training import state as states
from transformer_jax.training.checkpoint import Checkpoints
from transformer_jax.training.clock import Clock
from transformer_jax.training.loop import Program, run

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
    """What metrics.jsonl says, but for how long things took."""
    found = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [
        {
            k: v
            for k, v in line.items()
            if not k.startswith("seconds/") and k not in ("train/tokens_per_second", "train/mfu")
        }
        for line in found
    ]


@pytest.mark.parametrize(
    "stops", [(1, 7, 8), pytest.param((2, 3, 4, 5, 6, 9), marks=pytest.mark.slow)], ids=str
)
def test_resume_is_bit_equal_at_every_step(stops, tiny, tmp_path):
    """With dropout, packing and accumulation, whatever the step: state and metrics as if it had
    never stopped.
    """
    config, last = tiny(**EXACT), EXACT["train__num_steps"]
    task = make_task(config)
    program = Program.of(config, task, jax.devices()[:4])
    run(config, task, tmp_path / "straight", program)
    config.checkpoint.every = last  # the resumed runs save at their end alone
    expected, said = (
        final_state(tmp_path / "straight", config, program, last),
        lines(tmp_path / "straight"),
    )
    for k in stops:
        resumed = tmp_path / "resumed"
        shutil.copytree(tmp_path / "straight", resumed)
        for step in range(k + 1, last + 1):
            shutil.rmtree(resumed / "checkpoints" / str(step))
        run(config, task, resumed, program)
        jax.tree.map(
            np.testing.assert_array_equal, final_state(resumed, config, program, last), expected
        )
        assert lines(resumed) == said, k
        shutil.rmtree(resumed)


def test_what_a_run_writes(tiny, tmp_path, capsys, monkeypatch, drawn):
    fed = []
    monkeypatch.setattr(loop.Watchdog, "fed", lambda self: fed.append(1))
    config = tiny(
        train__num_steps=12,
        train__log_every=4,
        train__eval_every=4,
        checkpoint__every=2,
        checkpoint__keep=2,
        optimizer__learning_rate=0.01,
        task__bleu_lines=8,
    )
    workdir, task = tmp_path / "run", make_task(config)
    program = Program.of(config, task)
    result = run(config, task, workdir, program)
    batches = task.rows().eval["valid"].num_batches(config.train.batch)
    assert batches > 1 and len(fed) == 12 + 3 * (batches - 1)  # the first of each is compiled
    # compiled once, whatever is logged, evaluated and saved between
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
    assert [line["step"] for line in evaluated] == [4, 8, 12] and all(
        0 <= line["valid/bleu"] <= 100 for line in evaluated
    )
    assert evaluated[-1]["valid/loss"] < evaluated[0]["valid/loss"]
    assert result["valid/loss"] == evaluated[-1]["valid/loss"]
    best = min(evaluated, key=lambda line: line["valid/loss"])["step"]
    assert sorted(
        int(p.name) for p in (workdir / "checkpoints").iterdir() if p.name.isdigit()
    ) == sorted({10, 12, best})
    assert (workdir / "curves.png").read_bytes()[:4] == b"\x89PNG" and list(
        (workdir / "tensorboard").iterdir()
    )
    error = capsys.readouterr().err
    assert (
        "step 4/12" in error
        and "tokens/s" in error
        and "padding" in error
        and "first step after" in error
    )


def test_evaluations_have_the_parameters_whole_on_one_device(tiny, tmp_path, monkeypatch, capsys):
    config = tiny(
        mesh__fsdp=4,
        mesh__data=2,
        train__num_steps=2,
        train__eval_every=2,
        checkpoint__best_metric="valid/bleu",
    )
    task, seen = make_task(config), []
    monkeypatch.setattr(
        task, "evaluations", lambda: {"valid": lambda params: seen.append(params) or {}}
    )
    run(config, task, tmp_path / "run")
    assert {len(leaf.sharding.device_set) for leaf in jax.tree.leaves(seen)} == {1}
    assert "best_metric=valid/bleu: not measured" in capsys.readouterr().err


def test_a_profile_of_some_updates(tiny, tmp_path, capsys):
    config = tiny(train__num_steps=4)
    run(
        config,
        task := make_task(config),
        tmp_path / "run",
        Program.of(config, task, jax.devices()[:1]),
        profile=(2, 3),
    )
    [trace] = (tmp_path / "run/profile").rglob("*.xplane.pb")
    events = [
        (event.name, dict(event.stats))
        for plane in jax.profiler.ProfileData.from_file(str(trace)).planes
        for line in plane.lines
        for event in line.events
    ]
    names = {name for name, _ in events}
    assert [stats["step_num"] for name, stats in events if name == "update"] == [2, 3]
    assert (
        names > {"data", "checkpoint"}
        and any("dot" in name for name in names)
        and "profile of updates 2 to 3" in capsys.readouterr().err
    )
    # Python's calls: looking at them has crashed runs that were saving
    assert not any(name.startswith("$") for name in names)


def test_mfu_is_of_the_measured_rate_where_no_table_knows_the_device(
    tiny, tmp_path, capsys, monkeypatch
):
    begin = loop._start
    monkeypatch.setattr(loop, "_start", lambda *arguments: time.sleep(2) or begin(*arguments))
    config = tiny(train__num_steps=4, train__log_every=4)
    run(
        config,
        task := make_task(config),
        tmp_path / "run",
        program := Program.of(config, task, jax.devices()[:2]),
    )
    [line] = [
        line
        for line in map(json.loads, (tmp_path / "run/metrics.jsonl").read_text().splitlines())
        if "train/mfu" in line
    ]
    # two virtual devices are one machine
    assert "no table knows 'cpu'" in capsys.readouterr().err and 1e9 < program.peak < 1e14
    updates = 3 * task.flops(0) * config.train.batch  # the first is compiled in its time
    assert line["train/mfu"] * program.peak * (
        line["seconds/step"] + line["seconds/data"]
    ) == pytest.approx(updates)
    assert line["seconds/step"] < 2  # what a run does before its updates is none of theirs


def test_only_idle_devices_wait_for_data(tiny, tmp_path, monkeypatch):
    """What a slow reader takes is waited for; what a reader takes while updates are under way is
    not.
    """

    def slowly(*arguments):
        for batch in stream(*arguments):
            time.sleep(0.2)
            yield batch

    stream = loop.batches.stream
    monkeypatch.setattr(loop.batches, "stream", slowly)
    config = tiny(train__num_steps=12, train__log_every=12)
    run(config, make_task(config), tmp_path / "run")
    [line] = [
        line
        for line in map(json.loads, (tmp_path / "run/metrics.jsonl").read_text().splitlines())
        if "train/mfu" in line
    ]
    # some batches are read while the first update is compiled, and a slow machine's updates hide
    # parts
    assert line["seconds/data"] > 0.5
    clock = Clock()
    with clock("data", lambda: False):
        time.sleep(0.05)
    spent = clock.lap()
    assert spent["data"] == 0 and spent["step"] >= 0.05


def test_it_learns_one_batch_by_heart(tiny, tmp_path):
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
    run(
        config,
        task := make_task(config),
        tmp_path / "run",
        Program.of(config, task, jax.devices()[:1]),
    )
    # the sentences are drawn from the same six
    assert lines(tmp_path / "run")[-1]["valid/accuracy"] > 0.9


def test_a_non_finite_loss_stops_with_the_step_named_and_saves_nothing_after_it(tiny, tmp_path):
    config = tiny(
        train__num_steps=12,
        train__log_every=3,
        checkpoint__every=2,
        optimizer__learning_rate=1e30,
        optimizer__warmup_steps=0,
    )
    with pytest.raises(RunError, match=r"not finite at update \d+"):
        run(config, make_task(config), tmp_path / "run")
    kept = [int(p.name) for p in (tmp_path / "run" / "checkpoints").iterdir() if p.name.isdigit()]
    assert max(kept, default=0) <= 2
    config.train.nonfinite = "skip"
    run(config, make_task(config), tmp_path / "skipping")
    assert lines(tmp_path / "skipping")[-1]["step"] == 12
    config.train.nonfinite, config.train.num_steps, config.optimizer.learning_rate = (
        "stop",
        14,
        1e-3,
    )
    # what was skipped as it was allowed to be stops nothing now
    run(config, make_task(config), tmp_path / "skipping")


def test_a_longer_run_goes_on_and_a_finished_one_has_nothing_to_do(tiny, tmp_path, capsys):
    run(tiny(), make_task(tiny()), tmp_path / "run")
    longer = tiny(train__num_steps=6)
    run(longer, make_task(longer), tmp_path / "run")
    assert "resuming from step 4" in capsys.readouterr().err
    before = lines(tmp_path / "run")
    assert run(longer, make_task(longer), tmp_path / "run") == {
        k: v for k, v in before[-1].items() if k != "step"
    }
    assert "nothing to do" in capsys.readouterr().err and lines(tmp_path / "run") == before


def test_another_mesh_goes_on_with_the_same_state(tiny, tmp_path):
    config = tiny(train__num_steps=2, checkpoint__every=2)
    task = make_task(config)
    program = Program.of(config, task, jax.devices())
    run(config, task, tmp_path / "run", program)
    eight = final_state(tmp_path / "run", config, program, 2)
    other = tiny(train__num_steps=2, mesh__data=1, mesh__fsdp=2, mesh__tensor=2)
    program = Program.of(other, make_task(other), jax.devices()[:4])
    four = Checkpoints(tmp_path / "run" / "checkpoints", other.checkpoint, read_only=True).restore(
        program.state, 2
    )[0]
    assert (
        four.params["encoder"]["layers"]["mlp"]["wi"]["kernel"].sharding.mesh.shape["tensor"] == 2
    )
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(four), eight)


def test_stopped_at_an_evaluation_it_evaluates_when_it_goes_on(tiny, tmp_path, monkeypatch):
    """And what it finds is the score of the checkpoint it had left: the best of the run, which
    stays.
    """
    # the first has the greatest loss
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
        patch.setattr(loop, "Stop", stopping_at(8))
        run(config, task, tmp_path / "stopped", program)
    assert not any("valid/loss" in line for line in lines(tmp_path / "stopped"))
    run(config, task, tmp_path / "stopped", program)
    assert lines(tmp_path / "stopped") == lines(tmp_path / "straight")
    for workdir in ("straight", "stopped"):
        checkpoints = Checkpoints(
            tmp_path / workdir / "checkpoints", config.checkpoint, read_only=True
        )
        assert (checkpoints.steps(), checkpoints.pick("best")) == ([4, 8], 4)


def damage(folder):
    """Cuts the files of a checkpoint's parameters in two."""
    for path in (folder / "params").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_taken(tiny, tmp_path, capsys):
    config = tiny(train__num_steps=6, train__eval_every=2)
    task = make_task(config)
    program = Program.of(config, task)
    run(config, task, tmp_path / "run", program)
    expected, said = final_state(tmp_path / "run", config, program, 6), lines(tmp_path / "run")
    damage(tmp_path / "run" / "checkpoints" / "6")
    run(config, task, tmp_path / "run", program)
    error = capsys.readouterr().err
    assert "checkpoints/6 can't be read" in error and "resuming from step 4" in error
    jax.tree.map(
        np.testing.assert_array_equal, final_state(tmp_path / "run", config, program, 6), expected
    )
    assert lines(tmp_path / "run") == said
    for step in (2, 4, 6):
        damage(tmp_path / "run" / "checkpoints" / str(step))
    with pytest.raises(RunError, match="no checkpoint can be read"):
        run(config, task, tmp_path / "run", program)
    kept = {p.name for p in (tmp_path / "run" / "checkpoints").iterdir()}
    assert {"2", "4", "6"} <= kept and any(name.startswith("damaged-6-") for name in kept)


@pytest.mark.parametrize(
    "scores, best",
    [([3.0, 2.0, math.nan, 5.0], 2), ([math.nan, 3.0, 2.0, 5.0], 3), ([3.0, None, 4.0, 5.0], 1)],
)
def test_the_best_checkpoint_stays_whatever_is_not_a_number(tiny, tmp_path, scores, best):
    config = tiny(checkpoint__keep=1)
    task = make_task(config)
    program = Program.of(config, task, jax.devices()[:1])
    state = states.init(task, program.tx, program.state)
    with Checkpoints(tmp_path / "checkpoints", config.checkpoint) as checkpoints:
        for step, score in enumerate(scores, 1):
            checkpoints.save(
                state.replace(step=jax.numpy.int32(step)),
                {},
                {} if score is None else {"valid/loss": score},
            )
    reading = Checkpoints(tmp_path / "checkpoints", config.checkpoint, read_only=True)
    assert reading.steps() == sorted({best, 4}) and reading.pick("best") == best
    # never measured, or none to be kept: the best is the latest
    for config.checkpoint.best_metric in ("valid/bleu", ""):
        assert (
            Checkpoints(tmp_path / "checkpoints", config.checkpoint, read_only=True).pick("best")
            == 4
        )
