"""The watchdog shows the stacks of a run that hangs, and ends it where it must."""

import signal
import subprocess
import sys
import time

import pytest

from tests.programs import ENV
from transformer_jax.training import stop
from transformer_jax.training.stop import Stop


def test_silence_dumps_the_stacks_and_the_run_continues(capfd, monkeypatch):
    monkeypatch.setattr(stop, "SILENCE", 0.3)
    with stop.Watchdog(Stop(), grace=60) as dog:
        time.sleep(0.5)  # before the first step, nothing is watched
        for _ in range(5):
            dog.ping()
            time.sleep(0.1)
        assert "Timeout" not in capfd.readouterr().err
        time.sleep(0.6)
        error = capfd.readouterr().err
        assert error.count("Timeout") == 1
        assert "most recent call first" in error and __file__ in error
        dog.ping()
    time.sleep(0.5)
    assert not capfd.readouterr().err


HUNG = """
import ctypes, signal, sys
from transformer_jax.distributed import hosts
from transformer_jax.training import stop

stop.SILENCE = {silence}
hosts.count = lambda: {hosts}

def hang():
    signals = {{signal.SIGTERM, signal.SIGINT}}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # no signal ends the call
    print("hangs", file=sys.stderr, flush=True)
    ctypes.CDLL(None).sleep(1000)

class Hung(stop.Stop):
    def _handle(self, *_):  # a signal that comes before the call has no effect
        pass

with Hung({grace}) as run_stop, stop.Watchdog(run_stop, {grace}) as dog:
    if {has_started}:
        run_stop.begin()
        dog.ping()
    hang()
"""


def hung(hosts=1, silence=1000, grace=1000, has_started=True):
    """A process that hangs, after the first update or before it."""
    code = HUNG.format(has_started=has_started, hosts=hosts, silence=silence, grace=grace)
    return subprocess.Popen(
        [sys.executable, "-c", code], stderr=subprocess.PIPE, env=ENV, text=True
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_no_signal_reaches_ends_after_the_grace(number):
    """The main thread is in a call that does not return, so Python runs no handler."""
    process = hung(grace=0.2)
    assert process.stderr.readline() == "hangs\n"
    process.send_signal(number)
    error = process.stderr.read()
    assert process.wait(60) == 1 and "Timeout" in error and "in hang" in error, error


def test_before_the_first_update_the_exit_code_is_that_of_a_preemption():
    process = hung(grace=0.2, has_started=False)
    assert process.stderr.readline() == "hangs\n"
    process.send_signal(signal.SIGTERM)
    error = process.stderr.read()
    assert process.wait(60) == 75 and "in hang" in error and "stopped outside" in error, error


@pytest.mark.parametrize("hosts", [1, 2])
def test_nothing_ends_a_save_or_a_compilation(hosts, monkeypatch):
    timers = []  # (seconds, whether the process exits)
    signals = Stop()
    monkeypatch.setattr(stop.hosts, "count", lambda: hosts)
    monkeypatch.setattr(
        stop.faulthandler,
        "dump_traceback_later",
        lambda seconds, file, exit: timers.append((seconds, exit)),
    )
    dump = (stop.SILENCE, False)
    dump_or_exit = (stop.SILENCE, hosts == 2)
    grace = (7, True)
    with stop.Watchdog(signals, grace=7) as dog:
        with dog.paused():
            pass
        assert timers == []  # before the first update, nothing is watched
        dog.ping()
        with dog.paused():
            signals.requested = True
            signals.on_request()
        dog.ping()
    signals.on_request()
    assert timers == [dump_or_exit, dump, dump, grace, grace]


def test_of_several_hosts_one_that_hangs_ends():
    process = hung(hosts=2, silence=0.2)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == 1 and "Timeout" in error and "in hang" in error, error
