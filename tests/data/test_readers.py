"""Reader processes give the rows of one process, and end with the run."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from tests.conftest import build_bert, build_config, build_gpt
from tests.data.rows_to_read import INDICES, read
from tests.training.stopping import stopping_at
from transformer_jax.config import Preempted, RunError, UserError
from transformer_jax.data import rows
from transformer_jax.runs.spec import make_task
from transformer_jax.training import step, trainer
from transformer_jax.training.checkpoint import Checkpoints
from transformer_jax.training.step import Program

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.sample("build_bert")
@pytest.mark.parametrize("build", [build_config, build_gpt, build_bert])
def test_processes_read_the_rows_of_one_process(build, tmp_path):
    direct = make_task(build(tmp_path)).rows().train.batch
    with rows.started(direct, 2) as processes:
        for steps in (range(5), range(31, 34)):  # a BERT's second phase has longer rows
            expected = [direct(step, INDICES) for step in steps]
            batches = list(processes.batches(steps, INDICES))
            jax.tree.map(np.testing.assert_array_equal, batches, expected)


def test_signals_and_failures():
    with rows.started(read, 3) as processes:
        pids = [process.pid for process, _ in processes._processes]
        batches = processes.batches(range(20), INDICES)
        for step in range(6):
            np.testing.assert_array_equal(next(batches)["tokens"], np.outer(INDICES, [step, 1]))
            for pid in pids:
                os.kill(pid, signal.SIGTERM if step % 2 else signal.SIGINT)
        with pytest.raises(UserError, match="^the rows of update 7 are wrong$"):
            next(batches)
        message = "^a reader process failed at update 8: ZeroDivisionError: two lines$"
        with pytest.raises(RunError, match=message) as caught:
            next(processes.batches(range(7, 8), INDICES))
        assert "in read" in str(caught.value.__cause__)
        message = f"^reader process {pids[2]} ended with exit code -9 .* rows of update 9; [^\n]*$"
        with pytest.raises(RunError, match=message):
            next(processes.batches(range(8, 9), INDICES))
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_rows_that_no_other_process_can_read_are_refused():
    message = r"config.data.readers=2: other processes can't read .*<lambda>.*; 0 reads them"
    with pytest.raises(UserError, match=message), rows.started(lambda *_: {}, 2):
        pass


@pytest.mark.full
def test_processes_end_with_a_killed_run():
    code = """
        import os
        from tests.data import rows_to_read
        from transformer_jax.data.rows import Readers
        processes = Readers(rows_to_read.read, 2)
        next(processes.batches(range(4), rows_to_read.INDICES))
        print(*(process.pid for process, _ in processes._processes), flush=True)
        os.kill(os.getpid(), 9)
        """
    code = re.sub("^ +", "", code, flags=re.MULTILINE)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert done.returncode == -signal.SIGKILL
    for pid in map(int, done.stdout.split()):
        deadline = time.monotonic() + 20
        while pathlib.Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not pathlib.Path(f"/proc/{pid}").exists()


@pytest.mark.full
def test_a_run_with_readers_is_bit_equal_and_stops(tmp_path, monkeypatch):
    program = None
    states = []
    for count in (0, 2):
        # A BERT's second phase has longer rows.
        config = build_bert(
            tmp_path,
            train__num_steps=6,
            train__eval_every=6,
            checkpoint__every=6,
            data__readers=count,
        )
        task = make_task(config)
        program = program or Program.of(config, task, jax.devices()[:1])
        workdir = tmp_path / f"run-{count}"
        if count:
            monkeypatch.setattr(trainer, "Stop", stopping_at(9))
            with pytest.raises(Preempted):
                trainer.run(config, task, workdir, program)
            monkeypatch.undo()
        trainer.run(config, task, workdir, program)
        checkpoints = Checkpoints(workdir / "checkpoints", config.checkpoint, read_only=True)
        shapes = step.abstract_params(task)
        states.append(checkpoints.restore_params(shapes, 6))
    jax.tree.map(np.testing.assert_array_equal, *states)
