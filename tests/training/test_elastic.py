"""A run resumes on any other mesh, with the same state and rows; losses differ only by rounding."""

import jax
import numpy as np
import pytest

from tests.conftest import build_bert, build_config, build_gpt
from transformer_jax.runs.spec import make_task
from transformer_jax.training import step as states
from transformer_jax.training import trainer
from transformer_jax.training.checkpoint import Checkpoints
from transformer_jax.training.step import Program

FAMILIES = {"encoder_decoder": build_config, "gpt": build_gpt, "bert": build_bert}
EIGHT = (8, dict(data=2, fsdp=2, tensor=2))
JOURNEYS = {
    "from two devices to one": [(2, dict(fsdp=2)), (1, {})],
    "from eight to four, two, one and back": [
        EIGHT,
        (4, dict(fsdp=4)),
        (2, dict(tensor=2)),
        (1, {}),
        EIGHT,
    ],
}
STEPS = 2  # on each mesh


def of_mesh(config, task, devices, axes):
    for axis in ("data", "fsdp", "tensor"):
        config.mesh[axis] = axes.get(axis, 1)
    return Program.of(config, task, jax.devices()[:devices])


def trained(task, program, state, stop):
    """The state at `stop`, the loss of each update on the way, and the batches."""
    train = task.rows().train
    losses = []
    read = []
    for batch in trainer.stream(
        train.batch, train.size(0), 1, program.batch_sharding, range(int(state.step), stop)
    ):
        read.append(jax.device_get(batch))
        state = program.train_step(
            state.replace(metrics=states.zeros(program.state.metrics)), batch
        )
        total, count = jax.device_get(state.metrics["loss"])
        losses.append(total / count)
    return state, losses, read


@pytest.mark.sample("from two devices to one-gpt")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("journey", JOURNEYS)
def test_a_run_goes_on_with_other_devices(journey, family, tmp_path):
    meshes = JOURNEYS[journey]
    config = FAMILIES[family](tmp_path, model__dropout=0.1, train__num_steps=30, train__batch=8)
    task = make_task(config)
    first = of_mesh(config, task, *meshes[0])
    initial = states.init(task.config, first)
    _, expected, rows = trained(task, first, initial, STEPS * len(meshes))
    state = states.init(task.config, first)
    losses = []
    read = []
    for stage, (devices, axes) in enumerate(meshes):
        program = first if axes == meshes[0][1] else of_mesh(config, task, devices, axes)
        if stage:
            saved = jax.device_get(state)
            checkpoints = Checkpoints(tmp_path / "run", config.checkpoint, read_only=True)
            state, _ = checkpoints.restore(program.state, stage * STEPS)
            for array, like in zip(jax.tree.leaves(state), jax.tree.leaves(program.state)):
                assert array.sharding == like.sharding
            jax.tree.map(np.testing.assert_array_equal, jax.device_get(state), saved)
        state, new_losses, new_batches = trained(task, program, state, (stage + 1) * STEPS)
        losses += new_losses
        read += new_batches
        with Checkpoints(tmp_path / "run", config.checkpoint) as checkpoints:
            checkpoints.save(state, {}, {})
    jax.tree.map(np.testing.assert_array_equal, read, rows)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
