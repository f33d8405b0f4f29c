"""A workdir that is being written to belongs to one run at a time."""

import contextlib
import fcntl
import os
import pathlib
import sys

from transformer_jax.config import UserError
from transformer_jax.distributed import hosts
from transformer_jax.runs import lease
from transformer_jax.storage import buckets, errors


@contextlib.contextmanager
def held(workdir: pathlib.Path | buckets.Path):
    """Holds a workdir, which is made if it does not exist, against a second run.

    On a disk the system frees the lock when the process ends, however it ends. In a bucket a lease
    takes the place of the lock.
    """
    if isinstance(workdir, buckets.Path):
        with _leased(workdir):
            yield
        return
    with errors.writing(f"--workdir={workdir}"):
        workdir.mkdir(parents=True, exist_ok=True)
        lock = open(workdir / ".lock", "w")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"--workdir={workdir}: another run is at work there") from None
        try:
            yield
        finally:
            if not (workdir / "config.json").exists():  # the run was refused: leave nothing behind
                (workdir / ".lock").unlink()
                with contextlib.suppress(OSError):
                    workdir.rmdir()


@contextlib.contextmanager
def _leased(workdir: buckets.Path):
    with contextlib.ExitStack() as stack:
        with errors.writing("--workdir"):
            stack.enter_context(lease.held(workdir / ".lock", f"--workdir={workdir}", _end_process))
        yield


def _end_process(line: str) -> None:
    """Ends the process at once, from a thread: another run holds the workdir now."""
    print(f"error: {line}", file=sys.stderr, flush=True)
    hosts.failed(line, 1)
    os._exit(1)
