"""The watchdog: silent while the run is not; then all threads' stacks, and the end of a hang."""

import signal
import subprocess
import sys
import time

import pytest

from tests.programs import ENV
from transformer_jax.training import watchdog
from transformer_jax.training.stop import Stop


def test_silence_dumps_the_stacks_and_the_run_goes_on(capfd, monkeypatch):
    monkeypatch.setattr(watchdog, "SILENCE", 0.3)
    with watchdog.Watchdog(Stop(), grace=60) as dog:
        time.sleep(0.5)  # nothing yet: it may be compiling
        for _ in range(5):
            dog.fed()
            time.sleep(0.1)
        assert "Timeout" not in capfd.readouterr().err
        time.sleep(0.6)
        said = capfd.readouterr().err
        assert said.count("Timeout") == 1 and "most recent call first" in said and __file__ in said
        dog.fed()
    time.sleep(0.5)
    assert not capfd.readouterr().err


HUNG = """
import ctypes, signal, sys
from transformer_jax.distributed import hosts
from transformer_jax.training import stop, watchdog

watchdog.SILENCE = {silence}
hosts.count = lambda: {hosts}

def hang():
    signals = {{signal.SIGTERM, signal.SIGINT}}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # so that no signal ends the call
    print("hangs", file=sys.stderr, flush=True)
    ctypes.CDLL(None).sleep(1000)

class Hung(stop.Stop):
    def _handle(self, *_):  # the signal may come before the call that hangs
        pass

with Hung({grace}) as run_stop, watchdog.Watchdog(run_stop, {grace}) as dog:
    if {begun}:
        run_stop.begin(), dog.fed()
    hang()
"""


def hung(hosts=1, silence=1000, grace=1000, begun=True):
    code = HUNG.format(begun=begun, hosts=hosts, silence=silence, grace=grace)
    return subprocess.Popen(
        [sys.executable, "-c", code], stderr=subprocess.PIPE, env=ENV, text=True
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_no_signal_reaches_ends_after_the_grace(number):
    """In a call that does not come back, where Python runs no handler."""
    process = hung(grace=0.2)
    assert process.stderr.readline() == "hangs\n"
    process.send_signal(number)
    said = process.stderr.read()
    assert process.wait(60) == 1 and "Timeout" in said and "in hang" in said, said


def test_before_the_first_update_the_same_command_may_be_run_again():
    process = hung(grace=0.2, begun=False)
    assert process.stderr.readline() == "hangs\n"
    process.send_signal(signal.SIGTERM)
    said = process.stderr.read()
    assert process.wait(60) == 75 and "in hang" in said and "stopped outside" in said, said


@pytest.mark.parametrize("hosts", [1, 2])
def test_nothing_ends_a_save_or_a_compilation(hosts, monkeypatch):
    timers, stop = [], Stop()
    monkeypatch.setattr(watchdog.hosts, "count", lambda: hosts)
    monkeypatch.setattr(
        watchdog.faulthandler,
        "dump_traceback_later",
        lambda seconds, file, exit: timers.append((seconds, exit)),
    )
    dump, several = (watchdog.SILENCE, False), (watchdog.SILENCE, hosts == 2)
    with watchdog.Watchdog(stop, grace=7) as dog:
        with dog.patient():
            pass
        assert timers == []  # nothing is watched before the first update
        dog.fed()
        with dog.patient():
            stop.requested = True
            stop.on_request()
        dog.fed()
    stop.on_request()
    assert timers == [several, dump, dump, (7, True), (7, True)]


def test_of_several_hosts_one_that_hangs_ends():
    process = hung(hosts=2, silence=0.2)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 1 and "Timeout" in said and "in hang" in said, said
