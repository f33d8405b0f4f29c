"""Early stopping: when a run ends, what it writes, and that a resumed run ends alike."""

import math

import jax
import numpy as np
import pytest

from tests.training.stopping import stopping_at
from tests.training.test_loop import final_state, lines
from transformer_jax import config as configs
from transformer_jax.config import Preempted, UserError
from transformer_jax.distributed import hosts
from transformer_jax.runs.spec import make_task
from transformer_jax.training import trainer
from transformer_jax.training.checkpoint import Checkpoints
from transformer_jax.training.trainer import Patience, Program, run

# The loss falls at each evaluation. With the mode "max", the first score stays the best.
FALLING = dict(
    model__dropout=0.1,
    train__num_steps=12,
    train__log_every=5,
    train__eval_every=2,
    checkpoint__every=4,
    checkpoint__keep=1,
    checkpoint__best_mode="max",
    optimizer__learning_rate=0.01,
)


@pytest.mark.parametrize(
    "mode, scores, over",
    [
        ("min", [3.0, 2.0, 2.5], False),
        ("min", [3.0, 2.0, 2.5, 2.0], True),  # an equal score is no improvement
        ("min", [3.0, 2.0, 2.5, 1.9], False),
        ("max", [3.0, 2.0, 2.5], True),
        ("min", [3.0, math.nan, None], True),
        ("min", [math.nan, math.nan, 1.0], False),
    ],
)
def test_evaluations_without_improvement_are_counted(tiny, mode, scores, over):
    config = tiny(train__patience=2, checkpoint__best_mode=mode)
    recorded = [{"valid/loss": score} for score in scores]
    assert Patience(config, recorded).over == over
    straight = Patience(config, [])
    for scores in recorded:
        straight.add(scores)
    assert straight.over == over
    assert not Patience(tiny(checkpoint__best_mode=mode), recorded).over


def test_process_0_decides(tiny, monkeypatch):
    config = tiny(train__patience=1)
    monkeypatch.setattr(hosts, "share", lambda value: True)
    assert Patience(config, []).over


@pytest.mark.full
def test_patience_needs_a_score_and_a_validation_set(tiny, tmp_path, capsys):
    with pytest.raises(UserError, match="train.patience=2 needs config.checkpoint.best_metric"):
        tiny(train__patience=2, checkpoint__best_metric="")
    with pytest.raises(UserError, match="config.train.patience=-1"):
        tiny(train__patience=-1)
    config = tiny(train__patience=2, checkpoint__best_metric="valid/f1")
    with pytest.raises(UserError, match="best_metric=valid/f1: not measured.*valid/loss"):
        Patience(config, []).add({"valid/loss": 1})
    unseen = dict(data__valid_source=None, data__valid_target=None)
    config = tiny(train__patience=2, **unseen)
    with pytest.raises(UserError, match="needs a validation set.*config.data.valid_source"):
        run(config, make_task(config), tmp_path / "refused")
    config = tiny(**unseen)
    run(config, make_task(config), tmp_path / "run")
    assert "this run will not be evaluated; config.data.valid_source" in capsys.readouterr().err
    config = tiny()
    run(config, make_task(config), tmp_path / "evaluated")
    assert "will not be evaluated" not in capsys.readouterr().err


@pytest.mark.full
def test_a_run_ends_early_and_a_resumed_run_ends_alike(tiny, tmp_path, monkeypatch, capsys):
    config = tiny(**FALLING, train__patience=2)
    task = make_task(config)
    program = Program.of(config, task, jax.devices()[:1])

    def steps(workdir):
        folder = tmp_path / workdir / "checkpoints"
        checkpoints = Checkpoints(folder, config.checkpoint, read_only=True)
        return checkpoints.steps(), checkpoints.pick("best")

    def state(workdir, step):
        return final_state(tmp_path / workdir, config, program, step)

    scores = run(config, task, tmp_path / "straight", program)
    error = capsys.readouterr().err
    assert "the run ends here: valid/loss has not improved in 2 evaluations" in error
    written = lines(tmp_path / "straight")
    assert [line["step"] for line in written] == [2, 4, 5, 6]
    assert scores == {key: value for key, value in written[-1].items() if key != "step"}
    assert steps("straight") == ([4, 6], 4)  # step 2 was evaluated, but not saved

    assert run(config, task, tmp_path / "straight", program) == scores
    assert "nothing to do" in capsys.readouterr().err
    assert lines(tmp_path / "straight") == written

    # There is a point before and after each update, and two in each evaluation.
    for stop, point in ((3, 8), (6, 16)):
        with monkeypatch.context() as patch, pytest.raises(Preempted):
            patch.setattr(trainer, "Stop", stopping_at(point))
            run(config, task, tmp_path / f"stopped-{stop}", program)
        assert run(config, task, tmp_path / f"stopped-{stop}", program) == scores
        assert lines(tmp_path / f"stopped-{stop}") == written
        stopped, straight = state(f"stopped-{stop}", 6), state("straight", 6)
        jax.tree.map(np.testing.assert_array_equal, stopped, straight)

    configs.set_key(config, "train.patience", 0)
    run(config, task, tmp_path / "full", program)
    run(config, task, tmp_path / "straight", program)  # continues as if it had never ended
    assert lines(tmp_path / "straight") == lines(tmp_path / "full")
    jax.tree.map(np.testing.assert_array_equal, state("straight", 12), state("full", 12))
