"""The lease of a workdir in a bucket: renewed, refused to others, and taken over from the dead."""

import json
import subprocess
import threading
import time

import pytest

from transformer_jax.config import UserError
from transformer_jax.runs import train as locking
from transformer_jax.storage import buckets


def fail(line):
    raise AssertionError(line)


def test_a_lease_is_renewed_given_back_and_refused_to_others(fast, monkeypatch):
    lock = buckets.path("gs://bucket/run/.lock")
    with locking.lease(lock, "--workdir=W", fail):
        # This process looks like one on another machine.
        monkeypatch.setattr(locking, "_machine_id", lambda: None)
        # The answers to some renewals get lost. The lease is not another's for that.
        fast.lossy = lambda number: number % 7 == 0
        message = (
            r"^--workdir=W: another run is at work there, process \d+ on .*, "
            "and has just renewed its lock"
        )
        with pytest.raises(UserError, match=message):
            with locking.lease(lock, "--workdir=W", fail):
                pass
        time.sleep(1)
        fast.lossy = lambda number: False
        assert "run/.lock" in fast.objects
    assert not fast.objects


def test_the_lease_of_a_dead_run_is_taken_over(fast, capsys):
    lock = buckets.path("gs://bucket/run/.lock")
    child = subprocess.Popen(["true"])
    child.wait()
    here = {"host": "here", "process": child.pid, "place": locking._machine_id()}
    fast.put("run/.lock", json.dumps(here).encode())
    began = time.monotonic()
    # Here the system says that the process is dead.
    with locking.lease(lock, "--workdir=W", fail):
        assert time.monotonic() - began < 0.5
    elsewhere = {"host": "there", "process": 1, "place": "another"}
    for content in (b"", json.dumps(elsewhere).encode()):
        fast.put("run/.lock", content)
        began = time.monotonic()
        with locking.lease(lock, "--workdir=W", fail):
            assert time.monotonic() - began > 0.6
        assert "--workdir=W is held by " in capsys.readouterr().err


def test_a_run_learns_that_it_has_lost_its_lease(fast):
    lock = buckets.path("gs://bucket/run/.lock")
    is_lost = threading.Event()
    with locking.lease(lock, "--workdir=W", lambda line: is_lost.set()):
        fast.put("run/.lock", b"another's")
        assert is_lost.wait(2)
    assert fast.objects["run/.lock"] == b"another's"
