"""Runs of PPO and GRPO: their first updates, resumed runs, meshes, and refusals."""

import shutil

import jax
import numpy as np
import pytest

from tests.tasks import policies
from tests.tasks.preferences import train
from tests.training.test_loop import final_state, lines
from transformer_jax.runs.open import open_run

TASKS = {
    "ppo": dict(name="ppo", epochs=2, minibatches=2, target_kl=0.5, horizon=20),
    "grpo": dict(name="grpo", group_size=4, minibatches=2),
}


@pytest.fixture(scope="module")
def reward(gpt, tmp_path_factory):
    return policies.reward_run(tmp_path_factory.mktemp("reward"), gpt.workdir)


@pytest.mark.parametrize("name", TASKS)
def test_a_resumed_run_is_bit_equal_and_a_mesh_has_its_losses(name, gpt, reward, tmp_path):
    """The runs of reference and reward are no longer needed; their parameters do not change."""
    others = tmp_path / "gpt", tmp_path / "reward"
    for source, copy in zip((gpt.workdir, reward), others):
        shutil.copytree(source, copy)
    config = policies.build(tmp_path / "data", *others, TASKS[name])
    _, program = train(config, tmp_path / "straight")
    mesh = {f"mesh.{axis}": 2 for axis in ("data", "fsdp", "tensor")}
    train(config, tmp_path / "mesh", 8, overrides=mesh)
    shutil.copytree(tmp_path / "straight", tmp_path / "resumed")
    for step in (2, 3):
        shutil.rmtree(tmp_path / "resumed" / "checkpoints" / str(step))
    for other in others:
        shutil.rmtree(other)
    train(config, tmp_path / "resumed", program=program)

    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    assert lines(resumed) == lines(straight)
    ends = [final_state(workdir, config, program, 3) for workdir in (straight, resumed)]
    jax.tree.map(np.testing.assert_array_equal, ends[0].params, ends[1].params)
    jax.tree.map(np.testing.assert_array_equal, ends[0].memory, ends[1].memory)
    jax.tree.map(np.testing.assert_array_equal, ends[0].params["reference"], gpt.params)
    for key in ("reward", "kl", "loss", "length"):
        of_mesh, of_one = ([line[f"train/{key}"] for line in lines(w) if f"train/{key}" in line]
                           for w in (tmp_path / "mesh", straight))
        np.testing.assert_allclose(of_mesh, of_one, atol=1e-4, rtol=1e-4)
    task, params = open_run(resumed)
    (continuation,) = task.generate(params, ["the cat"], max_tokens=3)
    assert continuation.tokens <= 3
    assert set(task.evaluate(params, "valid")) >= {"reward", "kl", "ended", "prompts"}
