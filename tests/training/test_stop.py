"""SIGTERM and Ctrl-C: where a run stops, that nothing is lost, and that a second Ctrl-C ends it."""

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
from transformer_jax.distributed.stop_point import StopPoint
from transformer_jax.runs.resolve import make_task
from transformer_jax.training import loop, stop
from transformer_jax.training.checkpoint import Checkpoints
from transformer_jax.training.loop import Program, run

ERRORS = {signal.SIGTERM: Preempted, signal.SIGINT: Interrupted}


def steps(workdir, config):
    return Checkpoints(workdir / "checkpoints", config.checkpoint, read_only=True).steps()


def test_stopped_anywhere_it_goes_on_bit_equal(tiny, tmp_path, monkeypatch):
    """By both signals: in an update, an evaluation's batch, what a task evaluates, the last one."""
    config = tiny(
        train__num_steps=4,
        train__eval_every=2,
        checkpoint__every=4,
        checkpoint__keep=9,
        model__dropout=0.2,
    )
    task, handlers = make_task(config), [signal.getsignal(number) for number in ERRORS]
    program = Program.of(config, task, jax.devices()[:1])
    batches = task.rows().eval["valid"].num_batches(config.train.batch)
    assert batches == 2  # one point
    monkeypatch.setattr(task, "evaluations", lambda: {"valid": lambda params: {"one": 1.0}})
    run(config, task, tmp_path / "straight", program)

    def stopped(number, at):
        with pytest.raises(ERRORS[number], match=f"stopped at step {at}, state saved"):
            run(config, task, tmp_path / "stopped", program)
        assert steps(tmp_path / "stopped", config)[-1] == at

    class Killed(loop.Reporter):
        def step(self):
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "Reporter", Killed)
        stopped(signal.SIGTERM, 1)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "Stop", stopping_at(3, signal.SIGINT))  # update 2, the first batch
        stopped(signal.SIGINT, 2)
    assert not any("valid/loss" in line for line in lines(tmp_path / "stopped"))
    with monkeypatch.context() as patch:
        patch.setattr(loop, "Stop", stopping_at(1))  # the same batch, before any update
        with pytest.raises(Preempted, match="outside of its updates"):
            run(config, task, tmp_path / "stopped", program)
    read, begun = loop._batches, []

    def unread(*arguments):
        """The second batch is read for ever."""
        yield next(read(*arguments))
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in itertools.count():
            pass

    with monkeypatch.context() as patch:
        patch.setattr(loop, "_batches", unread)
        stopped(signal.SIGTERM, 3)

    def killing(params):
        begun.append(params)
        if len(begun) == 1:
            os.kill(os.getpid(), signal.SIGINT)
            for _ in itertools.count():  # until the signal is handled
                pass
        return {"one": 1.0}

    with monkeypatch.context() as patch:
        patch.setattr(task, "evaluations", lambda: {"valid": killing})
        stopped(signal.SIGINT, 4)
    run(config, task, tmp_path / "stopped", program)  # it is done, but for the last evaluation
    assert lines(tmp_path / "stopped") == lines(tmp_path / "straight")
    states = [final_state(tmp_path / name, config, program, 4) for name in ("straight", "stopped")]
    jax.tree.map(np.testing.assert_array_equal, *states)
    assert [signal.getsignal(number) for number in ERRORS] == handlers


@pytest.mark.parametrize("number", ERRORS)
def test_outside_of_the_updates_it_stops_at_once(number):
    """What has been read and tokenised by then is found again."""
    before = signal.getsignal(number)
    with pytest.raises(ERRORS[number], match="stopped outside of its updates; run the same"):
        with stop.Stop():
            os.kill(os.getpid(), number)
            threading.Event().wait()
    assert signal.getsignal(number) is before


def test_asked_after_the_last_update_it_stops_when_that_is_saved():
    with pytest.raises(Preempted, match="outside of its updates"), stop.Stop() as run_stop:
        run_stop.begin()
        os.kill(os.getpid(), signal.SIGTERM)
        saved = True
    assert saved and not run_stop.reached


def program(*lines):
    """A Python program that runs the lines; its stderr is read as it comes."""
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


def test_one_ctrl_c_that_comes_twice_is_one():
    """As from a terminal and from a script."""
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
    """JAX's key-value store, for processes that are threads."""

    def __init__(self):
        self.values = {}

    def key_value_set(self, key, value, allow_overwrite=False):
        assert allow_overwrite or key not in self.values
        self.values[key] = value

    def key_value_dir_get(self, prefix):
        return [(key, value) for key, value in self.values.items() if key.startswith(prefix)]


def test_processes_agree_on_the_first_point_that_none_has_passed():
    store, agreed = Store(), []
    points = [StopPoint(store, index, 3) for index in range(3)]
    for index, passed in enumerate((5, 6, 5)):
        assert not any(points[index].reached() for _ in range(passed))
        points[index].on_agreed(agreed.append)
    points[1].ask(signal.SIGTERM), points[2].ask(signal.SIGINT)
    for _ in range(2):
        for point in points:
            point.look()
    assert agreed == [signal.SIGINT] * 3  # a script does not start it again
    assert [point.is_next() for point in points] == [False, True, False]
    assert [[point.reached() for _ in range(2)] for point in points[::2]] == [[False, True]] * 2
    assert points[1].reached()


def test_a_process_that_is_done_keeps_no_other_waiting():
    store = Store()
    done, late = (StopPoint(store, index, 2) for index in range(2))
    assert not done.reached() and not done.reached() and not late.reached()
    done.leave()
    late.ask(signal.SIGTERM)
    late.look()
    assert late.signal == signal.SIGTERM and not late.reached()
