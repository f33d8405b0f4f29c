"""SIGTERM and Ctrl-C: where a run stops, and that a second Ctrl-C ends it."""

import itertools
import os
import signal
import subprocess
import sys
import threading

import jax
import numpy as np
import pytest

from tests.programs import ENV
from tests.training.stopping import stopping_at
from tests.training.test_loop import final_state, lines
from transformer_jax.config import Interrupted, Preempted
from transformer_jax.distributed import hosts
from transformer_jax.distributed.hosts import StopPoint
from transformer_jax.runs.spec import make_task
from transformer_jax.training import stop, trainer
from transformer_jax.training.checkpoint import Checkpoints
from transformer_jax.training.trainer import Program, run

ERRORS = {signal.SIGTERM: Preempted, signal.SIGINT: Interrupted}


def steps(workdir, config):
    return Checkpoints(workdir / "checkpoints", config.checkpoint, read_only=True).steps()


class Killed(trainer.Reporter):
    """Sends SIGTERM after each update."""

    def step(self):
        os.kill(os.getpid(), signal.SIGTERM)


def wait_for_a_signal():
    for _ in itertools.count():
        pass


def killing():
    """An evaluation that is interrupted by Ctrl-C the first time."""
    calls = []

    def evaluation(params):
        calls.append(params)
        if len(calls) == 1:
            os.kill(os.getpid(), signal.SIGINT)
            wait_for_a_signal()
        return {"one": 1.0}

    return evaluation


def never_read(batches):
    """A feed whose second batch never comes; SIGTERM arrives while it is read."""

    def feed(*arguments):
        yield next(batches(*arguments))
        os.kill(os.getpid(), signal.SIGTERM)
        wait_for_a_signal()

    return feed


def test_a_run_stopped_at_any_point_resumes_bit_equal(tiny, tmp_path, monkeypatch):
    """By both signals: in an update, a batch of an evaluation, the task's evaluation, a read."""
    config = tiny(
        train__num_steps=4,
        train__eval_every=2,
        checkpoint__every=4,
        checkpoint__keep=9,
        model__dropout=0.2,
    )
    task = make_task(config)
    handlers = [signal.getsignal(number) for number in ERRORS]
    program = Program.of(config, task, jax.devices()[:1])
    # Two batches of an evaluation have one point between them.
    assert task.rows().eval["valid"].num_batches(config.train.batch) == 2
    monkeypatch.setattr(task, "evaluations", lambda: {"valid": lambda params: {"one": 1.0}})
    run(config, task, tmp_path / "straight", program)

    def stopped(number, step, owner, name, value):
        """Runs with another value of owner.name; asserts that the run stops at the step."""
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            with pytest.raises(ERRORS[number], match=f"stopped at step {step}, state saved"):
                run(config, task, tmp_path / "stopped", program)
        assert steps(tmp_path / "stopped", config)[-1] == step

    stopped(signal.SIGTERM, 1, trainer, "Reporter", Killed)
    # In the evaluation after update 2.
    stopped(signal.SIGINT, 2, trainer, "Stop", stopping_at(3, signal.SIGINT))
    assert not any("valid/loss" in line for line in lines(tmp_path / "stopped"))
    with monkeypatch.context() as patch:
        # In the same evaluation, before any update.
        patch.setattr(trainer, "Stop", stopping_at(1))
        with pytest.raises(Preempted, match="outside of its updates"):
            run(config, task, tmp_path / "stopped", program)
    stopped(
        signal.SIGTERM,
        3,
        trainer.Trainer,
        "_read_batches",
        never_read(trainer.Trainer._read_batches),
    )
    evaluations = {"valid": killing()}
    stopped(signal.SIGINT, 4, task, "evaluations", lambda: evaluations)
    # All updates are done. The last evaluation is not.
    run(config, task, tmp_path / "stopped", program)
    assert lines(tmp_path / "stopped") == lines(tmp_path / "straight")
    states = [final_state(tmp_path / name, config, program, 4) for name in ("straight", "stopped")]
    jax.tree.map(np.testing.assert_array_equal, *states)
    assert [signal.getsignal(number) for number in ERRORS] == handlers


@pytest.mark.parametrize("number", ERRORS)
def test_outside_of_the_updates_it_stops_at_once(number):
    handler = signal.getsignal(number)
    with pytest.raises(ERRORS[number], match="stopped outside of its updates; run the same"):
        with stop.Stop():
            os.kill(os.getpid(), number)
            threading.Event().wait()
    assert signal.getsignal(number) is handler


def test_a_signal_after_the_last_update_stops_the_run_when_it_is_saved():
    with pytest.raises(Preempted, match="outside of its updates"), stop.Stop() as run_stop:
        run_stop.begin()
        os.kill(os.getpid(), signal.SIGTERM)
        saved = True
    assert saved and not run_stop.reached


def program(*lines):
    """A Python process that runs the lines, with pipes to stdin and from stderr."""
    code = "\n".join(["import signal, sys", "from transformer_jax.training import stop", *lines])
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        env=ENV,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_second_ctrl_c_ends_it_at_once():
    process = program(
        "stop.ECHO = 0",
        "with stop.Stop() as run_stop:",
        "    run_stop.begin()",
        "    print('ready', file=sys.stderr, flush=True)",
        "    sys.stdin.read()",
    )
    assert process.stderr.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert "saves its state after this step" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130 and "nothing saved" in process.stderr.read()


def test_two_sigints_at_once_are_one_ctrl_c():
    """A terminal and a script may both send one."""
    process = program(
        "stop.ECHO = 1000",
        "with stop.Stop() as run_stop:",
        "    run_stop.begin()",
        "    print('ready', file=sys.stderr, flush=True)",
        "    sys.stdin.readline()",
        "    run_stop.due() and sys.exit(7)",
    )
    assert process.stderr.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    process.stderr.readline()
    process.send_signal(signal.SIGINT)
    process.communicate("\n", timeout=60)
    assert process.returncode == 7


class Store:
    """A stand-in for JAX's key-value store."""

    def __init__(self):
        self.values = {}

    def key_value_set(self, key, value, allow_overwrite=False):
        assert allow_overwrite or key not in self.values
        self.values[key] = value

    def key_value_dir_get(self, prefix):
        return [(key, value) for key, value in self.values.items() if key.startswith(prefix)]

    def wait_at_barrier(self, name, milliseconds):
        pass


def test_processes_agree_on_the_first_point_that_none_has_passed():
    store = Store()
    agreed = []
    points = [StopPoint(store, index, 3) for index in range(3)]
    for index, passed in enumerate((5, 6, 5)):
        assert not any(points[index].reached() for _ in range(passed))
        points[index].on_agreed(agreed.append)
    points[1].ask(signal.SIGTERM)
    points[2].ask(signal.SIGINT)
    for _ in range(2):
        for point in points:
            point.look()
    assert agreed == [signal.SIGINT] * 3  # the smaller number
    assert [point.is_next() for point in points] == [False, True, False]
    assert [[point.reached() for _ in range(2)] for point in points[::2]] == [[False, True]] * 2
    assert points[1].reached()


def test_processes_abandon_an_evaluation_between_the_same_programs(monkeypatch):
    store = Store()
    point = StopPoint(store, 0, 2)
    monkeypatch.setattr(hosts, "_process", hosts._Process(store, 0, 2, stop_point=point))
    doubled = []
    with stop.Stop() as run_stop, pytest.raises(stop.Abandoned), run_stop.evaluating():
        for number in range(9):
            if number == 2:
                point.ask(signal.SIGTERM)
                store.key_value_set("stopping/1", "[3, 15]")  # the other has passed 3 points
                point.look()
            doubled.append(int(hosts.run(jax.jit(lambda x: 2 * x), np.int32(number))))
    assert doubled == [0, 2, 4]


def test_the_others_do_not_wait_for_a_process_that_has_finished():
    store = Store()
    done, late = (StopPoint(store, index, 2) for index in range(2))
    assert not done.reached() and not done.reached() and not late.reached()
    done.leave()
    late.ask(signal.SIGTERM)
    late.look()
    assert late.signal == signal.SIGTERM and not late.reached()
