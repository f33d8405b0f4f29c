"""Reader processes: they read the rows of coming updates beside the training process.

Rows are a pure function of (config, step), so the results are those of one process.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler

import numpy as np

from transformer_jax.config import RunError, UserError
from transformer_jax.configuration import variants

Batch = dict[str, np.ndarray]
Read = Callable[[int, np.ndarray], Batch]  # from the number of an update, and places in its batch

_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[2])
from transformer_jax.data import readers
readers.serve(int(sys.argv[1]))
"""
_ENDING = {signal.SIGINT, signal.SIGTERM}


class Readers:
    """`count` processes that call `read`, each for one update at a time.

    They end with this process, however it ends. SIGTERM and Ctrl-C leave them running: the training
    process decides when the run stops.
    """

    def __init__(self, read: Read, count: int):
        self._processes = []
        try:
            message = ForkingPickler.dumps(read)
        except Exception as error:  # Each kind of object raises its own.
            raise UserError(
                f"config.data.readers={count}: other processes can't read this task's rows "
                f"({error}); 0 reads them in the training process"
            ) from None
        for _ in range(count):
            self._processes.append(_start())
        for _, connection in self._processes:
            connection.send(variants.executed())  # `read` may be of a class in such a file
            connection.send_bytes(message)

    def batches(self, steps: range, places: np.ndarray) -> Iterator[Batch]:
        """Yields `read(step, places)` of consecutive steps. Each process is one batch ahead."""
        count = len(self._processes)
        for step in steps[:count]:
            self._ask(step, places)
        for step in steps:
            yield self._answer(step)
            if step + count in steps:
                self._ask(step + count, places)

    def _ask(self, step: int, places: np.ndarray) -> None:
        _, connection = self._processes[step % len(self._processes)]
        with contextlib.suppress(OSError):  # of a process that ended: `_answer` says so
            connection.send((step, places))

    def _answer(self, step: int) -> Batch:
        process, connection = self._processes[step % len(self._processes)]
        try:
            batch, failure = connection.recv()
        except (EOFError, OSError):
            raise RunError(
                f"reader process {process.pid} ended with exit code {process.wait()} while it read "
                f"the rows of update {step + 1}; the same command continues the run, and fewer "
                "config.data.readers take less memory"
            ) from None
        if failure is None:
            return batch
        line, trace, is_users = failure
        raise UserError(line) if is_users else RunError(line) from RuntimeError(trace)

    def close(self) -> None:
        """Ends the processes."""
        for process, connection in self._processes:
            process.kill()
            process.wait()
            connection.close()


@contextlib.contextmanager
def started(read: Read, count: int) -> Iterator[Readers | None]:
    """Yields `count` processes that call `read`, or None for 0, and ends them after the context."""
    if not count:
        yield None
        return
    with contextlib.closing(Readers(read, count)) as readers:
        yield readers


def _start() -> tuple[subprocess.Popen, Connection]:
    """Starts a process that runs `serve`, and returns it with the connection to it."""
    ours, theirs = Pipe()
    descriptor = theirs.fileno()
    command = [sys.executable, "-c", _PROGRAM, str(descriptor), json.dumps(sys.path)]
    # The process inherits the blocked signals, and so never receives them.
    earlier = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            pass_fds=[descriptor],
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)
        theirs.close()
    return process, ours


def serve(descriptor: int) -> None:
    """Answers the requests of the training process until it ends or closes the connection."""
    connection = Connection(descriptor)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        for file in connection.recv():
            variants.module("task", file)
        read = connection.recv()
        while True:
            step, places = connection.recv()
            connection.send(_read(read, step, places))


def _read(read: Read, step: int, places: np.ndarray):
    """Returns (batch, None), or (None, the line, traceback and kind of an error)."""
    try:
        return read(step, places), None
    except UserError as error:
        return None, (str(error), traceback.format_exc(), True)
    except Exception as error:
        line = f"a reader process failed at update {step + 1}: {type(error).__name__}: {error}"
        return None, (" ".join(line.split()), traceback.format_exc(), False)
