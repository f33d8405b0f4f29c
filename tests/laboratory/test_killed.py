"""A comparison whose process is killed at random gives the verdict of one that is not."""

import json
import random
import subprocess
import sys
import time

import pytest

from tests.layers.test_mup import TINY

KEYS = TINY | {"train.num_steps": 60, "train.eval_every": 20, "checkpoint.every": 20}


def start(workdir) -> subprocess.Popen:
    command = [sys.executable, "-m", "transformer_jax.compare", "gpt/quickstart"]
    command += ["--arm=b95:optimizer.b2=0.95", "--pairs=3", f"--workdir={workdir}"]
    command += [f"--config.{key}={value}" for key, value in KEYS.items()]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(5))
def test_a_killed_comparison_has_the_same_verdict_bit_for_bit(tmp_path, seed, whole):
    """It is killed once somewhere in its work, and then the same command is given again."""
    draw = random.Random(seed)
    workdir = tmp_path / "killed"
    killed = start(workdir)
    # The moment is drawn from those at which a run has just written a line or a checkpoint.
    writes = draw.randrange(1, whole["writes"])
    pause = draw.uniform(0, 0.3)
    while killed.poll() is None and count_writes(workdir) < writes:
        time.sleep(0.01)
    time.sleep(pause)
    was_running = killed.poll() is None
    killed.kill()
    killed.communicate()
    assert was_running
    again = start(workdir)
    output, messages = again.communicate(timeout=900)
    assert again.returncode == 0, messages
    assert verdict(output) == whole["verdict"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("whole")
    process = start(workdir)
    output, messages = process.communicate(timeout=900)
    assert process.returncode == 0, messages
    return {"verdict": verdict(output), "writes": count_writes(workdir)}


def count_writes(workdir) -> int:
    """Returns how many lines and checkpoints the runs have written so far."""
    found = 0
    for run in workdir.glob("*/seed-*"):
        for path in run.glob("metrics.jsonl"):
            found += path.read_text(errors="ignore").count("\n")
        found += sum(path.name.isdigit() for path in run.glob("checkpoints/*"))
    return found


def verdict(output: str) -> dict:
    """Returns the result without what names the folder."""
    result = json.loads(output)
    return {name: value for name, value in result.items() if name in ("scores", "differences")}
