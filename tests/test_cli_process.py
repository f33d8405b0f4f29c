"""Programs without a run: help, signals, streams, config files, dry runs."""

import json
import pathlib
import signal
import subprocess
import sys

import pytest

from tests.programs import ENV, call, command, here, refused

ROOT = pathlib.Path(__file__).parent.parent


def test_help_lists_the_flags():
    done = call("translate", "--help")
    assert done.returncode == 0
    assert "--n_best" in done.stdout
    assert "--workdir" in done.stdout
    assert "stdin to stdout" in done.stdout


def test_no_program_imports_jax_before_its_environment_is_set():
    # jax sets the variable that mutes XLA itself if it is imported first.
    package = ROOT / "transformer_jax"
    programs = [path.stem for path in package.glob("*.py") if "cli.run(" in path.read_text()]
    assert {"train_gpt", "translate", "dry_run"} < set(programs)
    script = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(f"transformer_jax.{name}")
    assert "jax" not in sys.modules, name
"""
    done = subprocess.run(
        [sys.executable, "-c", script, *programs],
        check=False,
        capture_output=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr


def test_training_starts_without_slow_imports():
    script = """
import sys
import transformer_jax.training.trainer
from transformer_jax.tasks import causal_lm, classification, masked_lm, translation
slow = {"scipy.stats", "scipy.signal", "matplotlib", "pandas", "sklearn", "torch", "transformers"}
assert not slow & set(sys.modules), slow & set(sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr


def test_a_missing_config_file_is_refused(tmp_path):
    refused(
        here("train_wmt", "--config=configs/wmt/none.py", f"--workdir={tmp_path}"),
        "configs/wmt/none.py",
        "no such file",
    )


WAITING = """
import sys
from transformer_jax import cli

def main():
    print("ready", file=sys.stderr, flush=True)
    sys.stdin.read()

cli.run(main, lambda: None)
"""


def test_ctrl_c_prints_one_line():
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING],
        stdin=subprocess.PIPE,
        env=ENV,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    assert process.stderr.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.stderr.read() == "interrupted\n" and process.wait() == 130


def test_dry_run_plans_a_small_model():
    sizes = dict(d_model=16, num_heads=2, num_layers=2, max_length=32, vocab_size=300)
    keys = [f"--config.model.{key}={size}" for key, size in sizes.items()]
    keys += ["--config.task.length=32", "--config.task.sample_tokens=0"]
    keys += ["--config.train.batch=4", "--config.mesh.fsdp=2"]
    done = call("dry_run", "--config=configs/gpt/quickstart.py", "--devices=2", *keys)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout.splitlines()[-1])
    assert plan["mesh"] == dict(pipeline=1, data=1, fsdp=2, expert=1, tensor=1, sequence=1)
    assert plan["tokens_per_step"] == 4 * 32
    # parameters and two moments, of which each device has half
    assert plan["bytes_per_device"]["arguments"] == pytest.approx(6 * plan["params"], rel=0.1)


@pytest.mark.full
def test_dry_run_prints_one_json_object_last_and_opens_no_data(tmp_path):
    done = call(
        "dry_run",
        "--config=configs/wmt/base.py",
        "--devices=8",
        "--config.mesh.fsdp=2",
        "--config.mesh.tensor=2",
        "--config.train.batch=16",
    )
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout.splitlines()[-1])
    assert plan["params"] == 63_082_496
    assert plan["mesh"] == {
        "pipeline": 1,
        "data": 2,
        "fsdp": 2,
        "expert": 1,
        "tensor": 2,
        "sequence": 1,
    }
    assert plan["tokens_per_step"] == 16 * 256 and plan["flops_per_step"] > 6 * 44e6 * 16 * 256
    # parameters and two moments
    assert plan["bytes_per_device"]["arguments"] == pytest.approx(3 * 4 * 63_082_496 / 4, rel=0.02)
    assert "target_embed/embedding" in done.stderr and "tensor, fsdp" in done.stderr
    refused(
        call("dry_run", "--config=configs/wmt/base.py", "--devices=8", "--config.mesh.tensor=3"),
        "config.mesh.tensor=3",
    )


@pytest.mark.full
def test_closed_streams_are_read_as_empty():
    """A daemon's streams are closed."""
    done = subprocess.run(
        ["bash", "-c", '"$@" <&- >&-', "_", *command("costs")],
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env=ENV,
        timeout=300,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)


def test_a_config_is_a_python_file(tmp_path):
    for name, content, message in (
        ("a.json", "{}", "a config is a Python file"),
        ("b.py", "raise ValueError('one\\ntwo')", "b.py:1: ValueError: one two"),
        ("c.py", "import sys; sys.exit(3)", "c.py:1: SystemExit: 3"),
    ):
        (tmp_path / name).write_text(content)
        refused(
            here("train_gpt", f"--config={tmp_path}/{name}", f"--workdir={tmp_path}/run"), message
        )
