"""Out of memory: one line with the size asked for, what takes it and the remedies, exit code 1."""

import dataclasses
import errno
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import build_config
from tests.programs import ENV, call
from transformer_jax import cli
from transformer_jax import config as configs
from transformer_jax.config import RunError
from transformer_jax.distributed import hosts
from transformer_jax.runs.spec import make_task
from transformer_jax.runs.train import train
from transformer_jax.training import checkpoint, memory, trainer
from transformer_jax.training import step as states

ROOT = pathlib.Path(__file__).parent.parent
GIB = 2**30
REMEDIES = (
    "try, in this order: --config.train.accumulation=2 or more (now 1); "
    "--config.model.remat=full; more devices with --config.mesh.fsdp=N (now 1); "
    "python -m transformer_jax.dry_run shows what fits"
)


def of_jax(text):
    return jax.errors.JaxRuntimeError(text)


@pytest.mark.parametrize(
    "error, size",
    [
        (of_jax("RESOURCE_EXHAUSTED: Out of memory allocating 10000000000000 bytes."), 10**13),
        (of_jax("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 2.50GiB."), 2.5 * GIB),
        (
            of_jax(
                "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4096 bytes.\nBuffers: 7"
            ),
            4096,
        ),
        (
            of_jax(
                "RESOURCE_EXHAUSTED: Failed to allocate request for 2.25GiB (2415919104B) on "
                "device ordinal 0"
            ),
            2.25 * GIB,
        ),
        (
            of_jax(
                "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory "
                "space hbm. Used 20.50G of 15.75G hbm. Exceeded hbm capacity by 4.75G."
            ),
            20.5 * GIB,
        ),
        (
            of_jax(
                "RESOURCE_EXHAUSTED: Error loading program: Attempting to reserve 9.50G at the "
                "bottom of memory. That was not possible."
            ),
            9.5 * GIB,
        ),
        (of_jax("INTERNAL: CUDA_ERROR_OUT_OF_MEMORY: out of memory"), None),
        (MemoryError(), None),
        (MemoryError("std::bad_alloc"), None),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), None),
    ],
)
def test_every_kind_of_error_is_known(error, size):
    assert memory.ran_out(error) and memory.requested(error) == size
    assert "\n" not in memory.line(error, "in an update", "", "")


@pytest.mark.parametrize(
    "error",
    [
        of_jax("RESOURCE_EXHAUSTED: Received message larger than max (5 vs. 4)"),
        of_jax("INTERNAL: no"),
        ValueError("out of memory"),
        OSError(errno.ENOSPC, "No space left on device"),
    ],
)
def test_other_errors_are_not(error):
    assert not memory.ran_out(error)


def test_real_errors_of_numpy_and_xla_are_known():
    with pytest.raises(MemoryError) as of_numpy:
        np.zeros((10**7, 10**6))
    with pytest.raises(jax.errors.JaxRuntimeError) as of_xla:
        jax.jit(lambda: jnp.zeros(10**13, jnp.float32))()
    for error, size in ((of_numpy.value, 8 * 10**13), (of_xla.value, 4 * 10**13)):
        assert memory.ran_out(error) and memory.requested(error) == pytest.approx(size, rel=0.01)


def test_sizes_are_readable():
    assert [memory.readable(size) for size in (5, 2048, 3.5 * GIB, 10**13, 10**18)] == [
        "5 bytes",
        "2.0 KiB",
        "3.5 GiB",
        "9.1 TiB",
        "909,494.7 TiB",
    ]


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Returns a config with one checkpoint and one evaluation, and its program on one device."""
    config = build_config(tmp_path_factory.mktemp("memory"), task__bleu_lines=0)
    return config, trainer.Program.of(config, make_task(config), jax.devices()[:1])


def exhausted(*_, **__):
    raise of_jax("RESOURCE_EXHAUSTED: Out of memory allocating 1073741824 bytes.")


@pytest.mark.sample("Manager-save-saving a checkpoint")
@pytest.mark.parametrize(
    "owner, name, where",
    [
        (states, "init", None),
        (checkpoint.Manager, "save", "saving a checkpoint"),
        (checkpoint.Manager, "restore", "restoring a checkpoint"),
    ],
)
def test_a_training_names_the_program_and_the_sizes(
    parts, tmp_path, monkeypatch, owner, name, where
):
    config, program = parts
    monkeypatch.setattr(trainer.Program, "of", lambda config, task: program)
    if name == "restore":
        train(config, tmp_path)
        configs.set_key(config := config.copy_and_resolve_references(), "train.num_steps", 6)
    monkeypatch.setattr(owner, name, exhausted)
    with pytest.raises(RunError, match=r"^[^\n]*$") as error:
        train(config, tmp_path)
    assert str(error.value).startswith(
        f"out of memory {where or 'in training'}: 1.0 GiB requested; "
    )
    assert "on the device parameters 4" in str(error.value) and REMEDIES in str(error.value)


def test_an_update_names_the_size_of_its_activations(parts, tmp_path, monkeypatch):
    config, program = parts

    def update(*_):
        exhausted()

    update.lower = program.train_step.lower
    program = dataclasses.replace(program, train_step=update)
    monkeypatch.setattr(trainer.Program, "of", lambda config, task: program)
    with pytest.raises(RunError) as error:
        train(config, tmp_path)
    assert "out of memory in an update: 1.0 GiB requested" in str(error.value)
    assert "activations of an update" in str(error.value)


def test_an_evaluation_is_named(parts, tmp_path, monkeypatch):
    config, program = parts
    program = dataclasses.replace(program, eval_step=exhausted)
    monkeypatch.setattr(trainer.Program, "of", lambda config, task: program)
    with pytest.raises(RunError, match="out of memory in an evaluation: 1.0 GiB requested"):
        train(config, tmp_path)


BIG = ("--config=configs/gpt/quickstart.py", "--config.model.d_model=600000")


def test_a_model_too_big_for_the_host_ends_before_anything_is_read(tmp_path):
    done = call(
        "train_gpt",
        *BIG,
        f"--workdir={tmp_path}/run",
        f"--config.data.cache={tmp_path}/data",
        JAX_NUM_CPU_DEVICES="8",
    )
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
    assert (
        "error: out of memory before the start: 1,508.9 TiB requested; on each of 8 devices "
        "parameters 62.9 TiB, optimizer state 125.7 TiB (the host has" in done.stderr
    )
    assert REMEDIES in done.stderr and not (tmp_path / "run").exists()


@pytest.mark.full
def test_xla_refuses_such_a_model(tmp_path, monkeypatch):
    """If the host's memory is unknown, initialisation fails with the same message."""
    config = configs.load(
        str(ROOT / "configs/gpt/quickstart.py"),
        {"model.d_model": 600_000, "data.cache": str(tmp_path / "data")},
    )
    task = make_task(config)
    program = trainer.Program.of(config, task, jax.devices()[:1])
    monkeypatch.setattr(memory, "host_memory", lambda: None)
    with pytest.raises(
        RunError, match="initializing parameters and optimizer state: .* TiB requested"
    ):
        with memory.explained(task, program):
            states.init(task.config, program)


DECODING = """
import jax, jax.numpy as jnp
from transformer_jax import cli

def define_flags():
    cli.define_workdir()
    cli.define_step()

def main():
    jax.jit(lambda: jnp.zeros(10**13, jnp.float32))()

cli.run(main, define_flags)
"""


def test_decoding_names_its_own_remedies(tmp_path):
    run = next((ROOT / "tests/fixtures/format_1").glob("**/config.json")).parent
    done = subprocess.run(
        [sys.executable, "-c", DECODING, f"--workdir={run}", "--config.decode.beam=8"],
        capture_output=True,
        encoding="utf-8",
        env={**ENV, "GLIBC_TUNABLES": ""},
        timeout=300,
    )
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
    assert "error: out of memory: 36.4 TiB requested; parameters " in done.stderr
    assert "--config.decode.batch=" in done.stderr
    assert "; --config.decode.beam=4 or less (now 8)" in done.stderr


def test_running_out_of_memory_ends_the_other_hosts(monkeypatch, capsys):
    lines = []
    monkeypatch.setattr(hosts, "failed", lambda line, code: lines.append((line, code)))
    with pytest.raises(SystemExit) as ended:
        cli._end_with_error(of_jax("RESOURCE_EXHAUSTED: Out of memory allocating 1024 bytes."))
    assert ended.value.code == 1 and lines == [("error: out of memory: 1.0 KiB requested", 1)]
