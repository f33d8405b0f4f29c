"""The diffs of docs/extending.md are short and apply to the package, and what they add trains."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from tests.programs import ENV

ROOT = pathlib.Path(__file__).parent.parent
PAGE = ROOT / "docs" / "extending.md"
MAX_LINES = 40  # that a diff adds or removes

DIFFS = re.findall(r"^```diff\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)

# Trains two updates with each of the additions. Prints the losses of each run.
TRAIN = """
import json, sys
import transformer_jax
from transformer_jax import config as configs

small = dict(num_steps=2, batch=4, log_every=1, eval_every=2)
text = dict(train_files="text.txt", valid_files="text.txt", tokenizer="characters", cache="cache")
gpt = dict(name="gpt", vocab_size=128, d_model=16, num_layers=2, num_heads=2, max_length=16)
runs = {
    "model": dict(
        model=dict(name="my_research/decaying_average.py", vocab_size=128, d_model=16),
        task=dict(name="causal_lm", length=16, carry=True),
        data=text,
    ),
    "task, layer and optimizer": dict(
        model=gpt | dict(dynamic_tanh=True),
        task=dict(name="my_research/backward_lm.py", length=16),
        optimizer=dict(name="adabelief"),
        data=text,
    ),
    "source": dict(
        model=gpt,
        task=dict(name="my_research/next_residue.py", length=16),
        source=dict(name="my_research/fasta.py"),
        data=dict(train_files="proteins.fasta", valid_files="proteins.fasta", cache="cache"),
    ),
}
losses = {}
for name, sections in runs.items():
    config = configs.experiment(train=small, **sections)
    scores = transformer_jax.train(config, f"runs/{name}")
    losses[name] = scores["valid/loss"]
(task, params) = transformer_jax.open_run(
    "runs/model", "latest", model_file="my_research/decaying_average.py"
)
(text,) = task.generate(params, ["the "], max_tokens=8)
print(json.dumps({"losses": losses, "tokens": text.tokens}))
"""


@pytest.mark.parametrize("number", range(len(DIFFS)))
def test_a_diff_is_short(number):
    lines = [line for line in DIFFS[number].splitlines() if line[:4] not in ("--- ", "+++ ")]
    assert 0 < sum(line[:1] in ("+", "-") for line in lines) <= MAX_LINES


@pytest.mark.full
@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_diffs_apply_and_train(tmp_path):
    shutil.copytree(ROOT / "transformer_jax", tmp_path / "transformer_jax")
    for diff in DIFFS:
        apply = ["git", "apply", "--unidiff-zero", "-"]
        environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
        subprocess.run(apply, input=diff, text=True, check=True, cwd=tmp_path, env=environment)
    (tmp_path / "text.txt").write_text("the cat sat on the mat\n\n" * 40)
    (tmp_path / "proteins.fasta").write_text(
        "".join(f">protein {number}\nMKTAYIAKQR\nQISFVKSHFS\n" for number in range(8))
    )
    program = [sys.executable, "-c", TRAIN]
    environment = {**ENV, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        program, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert set(result["losses"]) == {"model", "task, layer and optimizer", "source"}
    assert all(0 < loss < 10 for loss in result["losses"].values())
    assert result["tokens"] > 0
