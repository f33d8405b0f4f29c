"""Runs of PPO and GRPO: their first updates, resumed runs, meshes, and refusals."""

import shutil

import jax
import numpy as np
import pytest

from tests.tasks import policies
from tests.tasks.preferences import train
from tests.training.test_loop import final_state, lines
from transformer_jax.runs.open import open_run

# A task in a file of the user's, whose reward is a Python function.
FILE = """
from transformer_jax.tasks.rl.grpo import GRPO

class Brief(GRPO):
    def reward_of(self, prompt, completion):
        return -len(completion) - ("cat" in prompt)
"""


@pytest.fixture(scope="module")
def reward(gpt, tmp_path_factory):
    return policies.reward_run(tmp_path_factory.mktemp("reward"), gpt.workdir)


def check(config, folder, others, mesh, overrides=()):
    """Trains a run straight, resumed after its first step, and on a mesh.

    The runs of reference and reward are no longer needed after the first step. Returns the state at
    the end of the straight run.
    """
    _, program = train(config, folder / "straight", overrides=overrides)
    halved = [(f"mesh.{axis}", 2) for axis in mesh]
    train(config, folder / "mesh", 2 ** len(mesh), overrides=[*overrides, *halved])
    shutil.copytree(folder / "straight", folder / "resumed")
    shutil.rmtree(folder / "resumed" / "checkpoints" / "2")
    for other in others:
        shutil.rmtree(other)
    train(config, folder / "resumed", program=program, overrides=overrides)

    straight, resumed = folder / "straight", folder / "resumed"
    assert lines(resumed) == lines(straight)
    end, resumed_end = [final_state(workdir, config, program, 2) for workdir in (straight, resumed)]
    jax.tree.map(np.testing.assert_array_equal, end.params, resumed_end.params)
    jax.tree.map(np.testing.assert_array_equal, end.memory, resumed_end.memory)
    for key in ("train/reward", "train/kl", "train/loss", "valid/reward", "valid/length"):
        of_mesh, of_one = (
            [line[key] for line in lines(folder / name) if key in line]
            for name in ("mesh", "straight")
        )
        np.testing.assert_allclose(of_mesh, of_one, atol=1e-4, rtol=1e-4)
    return end


@pytest.mark.full
def test_ppo_resumes_bit_equal_and_a_mesh_has_its_losses(gpt, reward, tmp_path):
    others = tmp_path / "gpt", tmp_path / "reward"
    for source, copy in zip((gpt.workdir, reward), others):
        shutil.copytree(source, copy)
    task = dict(name="ppo", epochs=2, minibatches=2, target_kl=0.5, horizon=20)
    config = policies.build(tmp_path / "data", *others, task)
    end = check(config, tmp_path, others, ("fsdp",))
    assert float(end.memory) != config.task.kl_coefficient
    jax.tree.map(np.testing.assert_array_equal, end.params["reference"], gpt.params)
    task, params = open_run(tmp_path / "resumed")
    (continuation,) = task.generate(params, ["the cat"], max_tokens=3)
    assert continuation.tokens <= 3
    assert set(task.evaluate(params, "valid")) >= {"reward", "kl", "ended", "prompts"}


@pytest.mark.full
def test_grpo_with_rewards_of_a_python_function(gpt, tmp_path):
    """Its step is two programs. It learns to be brief, and resumes bit-equal."""
    (tmp_path / "brief.py").write_text(FILE)
    other = tmp_path / "gpt"
    shutil.copytree(gpt.workdir, other)
    task = dict(name="grpo", group_size=4, minibatches=2)
    config = policies.build(tmp_path / "data", other, "", task)
    file = [("task.name", str(tmp_path / "brief.py"))]
    check(config, tmp_path, [other], ("data",), file)
    (last,) = [line for line in lines(tmp_path / "straight") if "valid/reward" in line]
    assert -40 < last["valid/reward"] < 0
