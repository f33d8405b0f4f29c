"""Checkpoints: damage, the best score, and other meshes."""

import math

import jax
import numpy as np
import pytest

from tests.training.test_loop import final_state, lines
from transformer_jax.config import RunError
from transformer_jax.runs.spec import make_task
from transformer_jax.training import checkpoint
from transformer_jax.training import step as states
from transformer_jax.training.checkpoint import Checkpoints
from transformer_jax.training.trainer import Program, run


@pytest.mark.full
def test_another_mesh_restores_the_same_state(tiny, tmp_path):
    config = tiny(train__num_steps=2, checkpoint__every=2)
    task = make_task(config)
    program = Program.of(config, task, jax.devices()[:2])
    run(config, task, tmp_path / "run", program)
    before = final_state(tmp_path / "run", config, program, 2)
    other = tiny(train__num_steps=2, mesh__data=1, mesh__fsdp=2, mesh__tensor=2)
    program = Program.of(other, make_task(other), jax.devices()[:4])
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints", other.checkpoint, read_only=True)
    after, _ = checkpoints.restore(program.state, 2)
    kernel = after.params["encoder"]["layers"]["mlp"]["wi"]["kernel"]
    assert kernel.sharding.mesh.shape["tensor"] == 2
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(after), before)


def damage(folder):
    """Cuts the files of a checkpoint's parameters in two."""
    for path in (folder / "params").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_restored(tiny, tmp_path, capsys):
    config = tiny(train__num_steps=6, train__eval_every=2)
    task = make_task(config)
    program = Program.of(config, task, jax.devices()[:1])
    run(config, task, tmp_path / "run", program)
    expected = final_state(tmp_path / "run", config, program, 6)
    expected_lines = lines(tmp_path / "run")
    damage(tmp_path / "run" / "checkpoints" / "6")
    run(config, task, tmp_path / "run", program)
    error = capsys.readouterr().err
    assert "checkpoints/6 can't be read" in error and "resuming from step 4" in error
    actual = final_state(tmp_path / "run", config, program, 6)
    jax.tree.map(np.testing.assert_array_equal, actual, expected)
    assert lines(tmp_path / "run") == expected_lines
    for step in (2, 4, 6):
        damage(tmp_path / "run" / "checkpoints" / str(step))
    with pytest.raises(RunError, match="no checkpoint can be read"):
        run(config, task, tmp_path / "run", program)
    folders = {p.name for p in (tmp_path / "run" / "checkpoints").iterdir()}
    assert {"2", "4", "6"} <= folders and any(name.startswith("damaged-6-") for name in folders)


@pytest.mark.sample("scores0-2")
@pytest.mark.parametrize(
    "scores, best",
    [([3.0, 2.0, math.nan, 5.0], 2), ([math.nan, 3.0, 2.0, 5.0], 3), ([3.0, None, 4.0, 5.0], 1)],
)
def test_a_score_that_is_not_a_number_is_not_the_best(tiny, tmp_path, scores, best):
    config = tiny(checkpoint__keep=1)
    task = make_task(config)
    program = Program.of(config, task, jax.devices()[:1])
    state = states.init(task.config, program)
    with Checkpoints(tmp_path / "checkpoints", config.checkpoint) as checkpoints:
        for step, score in enumerate(scores, 1):
            state = state.replace(step=jax.numpy.int32(step))
            checkpoints.save(state, {}, {} if score is None else {"valid/loss": score})
    reading = Checkpoints(tmp_path / "checkpoints", config.checkpoint, read_only=True)
    assert reading.steps() == sorted({best, 4}) and reading.pick("best") == best
    # Without a measured score, the best is the latest.
    for config.checkpoint.best_metric in ("valid/bleu", ""):
        reading = Checkpoints(tmp_path / "checkpoints", config.checkpoint, read_only=True)
        assert reading.pick("best") == 4


@pytest.mark.parametrize("notes", ["", " [spec='{\"recheck_cached_data\":true}']"])
def test_the_reason_of_a_failed_write_is_the_message_of_the_system(notes):
    error = ValueError(
        'RESOURCE_EXHAUSTED: Error writing local file "/d/0": Failed to write 295 bytes: '
        f"No space left on device{notes} [os_error_code='28']"
    )
    assert checkpoint.reason(error) == "No space left on device"
    assert checkpoint.reason(ValueError("first line\nsecond line")) == "first line"
