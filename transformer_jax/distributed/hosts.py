"""Several hosts at one run: their processes agree, and end together.

JAX's distributed runtime connects them. Its key-value store lies in process 0. There, process 0
says when the others may proceed. Once a second, each process looks whether another has failed or
died. Then all end with a line that names it, where they would wait in a collective for ever. When
process 0 itself dies, the runtime aborts the others, and their `supervisor` writes the line.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from transformer_jax.config import UserError
from transformer_jax.distributed import cluster, supervisor
from transformer_jax.pictures import progress


class StopPoint:
    """Counts the points of a run, and lets all processes stop at the same one.

    Every process passes all points in the same order. The threads that watch the other hosts agree
    over JAX's key-value store: each holds its process before the next point, and sends the number
    of points that it has passed. All stop at the first point that none has passed.

    Attributes:
      signal: the signal on which they have agreed, or None.
    """

    def __init__(self, client, index: int, count: int):
        """`client` is that of the key-value store; `index` and `count` of the processes."""
        self.signal: int | None = None
        self._client = client
        self._index = index
        self._count = count
        self._lock = threading.Lock()  # held from `_send` until they have agreed
        self._passed = 0  # points
        self._last: int | None = None  # the number of the last point
        self._has_sent = False
        self._call: Callable[[int], None] | None = None

    def ask(self, number: int) -> None:
        """Asks all processes to stop: this one has received the signal `number`."""
        self._client.key_value_set(f"stop/{self._index}", str(number), allow_overwrite=True)

    def on_agreed(self, call: Callable[[int], None] | None) -> None:
        """Sets a function of the signal. The watching thread calls it once all have agreed."""
        self._call = call
        if call and self.signal is not None:
            call(self.signal)

    def reached(self) -> bool:
        """Whether all stop at this point. Every process calls it at every point."""
        with self._lock:
            self._passed += 1
            return self._last is not None and self._passed >= self._last

    def is_next(self) -> bool:
        """Whether all stop at the next point, or at an earlier one."""
        return self._last is not None and self._passed + 1 >= self._last

    def look(self) -> None:
        """Makes a step towards the agreement. The watching thread calls it again and again."""
        if self._last is not None:
            return
        if not self._has_sent:
            requests = self._client.key_value_dir_get("stop/")
            if not requests:
                return
            self._lock.acquire()
            self._send(min(int(number) for _, number in requests))
        answers = [json.loads(value) for _, value in self._client.key_value_dir_get("stopping/")]
        if len(answers) == self._count:
            self._last = 1 + max(passed for passed, _ in answers)
            self.signal = min(number for _, number in answers)
            self._lock.release()
            if self._call:
                self._call(self.signal)

    def leave(self) -> None:
        """This process passes no more points, so the others need not wait for its answer."""
        if not self._has_sent:
            self._send(signal.SIGTERM)

    def _send(self, number: int) -> None:
        self._has_sent = True
        answer = json.dumps([self._passed, number])
        self._client.key_value_set(f"stopping/{self._index}", answer, allow_overwrite=True)


SILENCE = 20  # seconds without a heartbeat after which a process counts as dead
LOOK = 1.0  # seconds between two looks at the other processes
# Milliseconds. Where process 0 builds the data, the others wait while it lives.
_FOREVER = 2**31 - 1


@dataclasses.dataclass
class _Process:
    """This process within the run."""

    client: Any = None  # of the key-value store
    index: int = 0
    count: int = 1
    names: list[str] = dataclasses.field(default_factory=lambda: [socket.gethostname()])  # of hosts
    stop_point: StopPoint | None = None
    between: Callable[[], None] | None = None  # called between the programs of a use

    def name(self, index: int) -> str:
        return f"process {index} ({self.names[index]})"


_process = _Process()
_leaving = threading.Event()
# Numbers of agreements. Every process reaches all of them in the same order.
_numbers = itertools.count()
_signatures = set()  # of the programs that all processes have compiled for `run`


def connect(arguments: dict, patience: int = 300) -> None:
    """Joins the other processes of the run; must come before JAX's first use.

    `arguments` are those of `cluster.arguments`. Waits `patience` seconds for the others, and
    raises UserError where one is missing.
    """
    if "coordinator_address" in arguments:
        cluster.roll_call(
            arguments["coordinator_address"],
            arguments["num_processes"],
            arguments["process_id"],
            patience,
        )
    import jax
    from jax._src import distributed  # the key-value store has no public name yet

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # The service handles SIGTERM, but not Ctrl-C.
    jax.config.update("jax_enable_preemption_service", False)
    # With it, the runtime reports the death of a process. Otherwise it aborts the others.
    jax.config.update("jax_enable_recoverability", True)
    try:
        jax.distributed.initialize(
            **arguments, initialization_timeout=patience, heartbeat_timeout_seconds=SILENCE
        )
    except (ValueError, RuntimeError):
        if arguments:
            raise
        return  # TPU chips, but no slice of several hosts
    client = distributed.global_state.client
    _process.client = client
    _process.index = jax.process_index()
    _process.count = jax.process_count()
    if _process.count == 1:
        return
    client.key_value_set(f"name/{_process.index}", socket.gethostname())
    _process.names = [
        client.blocking_key_value_get(f"name/{i}", 1000 * patience) for i in range(_process.count)
    ]
    supervisor.report(_process.index, _process.names[0])
    _process.stop_point = StopPoint(client, _process.index, _process.count)
    own_name = _process.names[_process.index]
    progress.say(f"process {_process.index} of {_process.count}, on {own_name}")
    # Only process 0 shows the progress.
    progress.console.quiet = _process.index > 0
    threading.Thread(target=_watch, daemon=True).start()


def index() -> int:
    """The number of this process; process 0 writes the files that all share."""
    return _process.index


def count() -> int:
    """The number of processes."""
    return _process.count


@contextlib.contextmanager
def first() -> Iterator[None]:
    """Process 0 runs the context first, and the others after it.

    If process 0 fails in it, the others end, too.
    """
    if _process.count == 1:
        yield
        return
    key = f"first/{next(_numbers)}"
    if _process.index:
        _process.client.blocking_key_value_get(key, _FOREVER)
    yield
    if not _process.index:
        _process.client.key_value_set(key, "done")


def share(value: Any) -> Any:
    """Returns the `value` of process 0 on all processes. It must have a form in JSON."""
    if _process.count == 1:
        return value
    key = f"share/{next(_numbers)}"
    if not _process.index:
        _process.client.key_value_set(key, json.dumps(value))
    return json.loads(_process.client.blocking_key_value_get(key, _FOREVER))


def compiled(program, *arguments):
    """Returns the jitted `program`, once all processes have compiled it for the arguments.

    Compilation may take much longer on one process than on another. gloo fails where a process
    reaches its first collective 30 s after another. Every process must call it for the same
    programs in the same order.
    """
    if _process.count > 1:
        program.lower(*arguments).compile()
        _process.client.wait_at_barrier(f"compiled/{next(_numbers)}", _FOREVER)
    return program


def run(program, *arguments):
    """Returns program(*arguments), where `program` is a jitted function of a use.

    Every process calls it for the same programs in the same order. A use that stopped elsewhere
    would leave the other processes waiting in a collective.
    """
    if _process.count > 1:
        if _process.between:
            _process.between()
        signature = _signature(program, arguments)
        if signature not in _signatures:
            compiled(program, *arguments)
            _signatures.add(signature)
    return program(*arguments)


def _signature(program, arguments: tuple):
    """The program, and the shapes of its arguments. Static arguments stand for themselves."""
    import jax

    leaves, structure = jax.tree.flatten(arguments)
    arrays = (jax.Array, np.ndarray, np.generic)
    shapes = [(x.shape, x.dtype) if isinstance(x, arrays) else x for x in leaves]
    return program, structure, tuple(shapes)


@contextlib.contextmanager
def stopping_between_programs(call: Callable[[], None]) -> Iterator[None]:
    """In the context, `run` calls `call` before each program; it raises where the use stops."""
    _process.between = call
    try:
        yield
    finally:
        _process.between = None


def agree(values: dict[str, Any]) -> None:
    """Raises UserError where a process has other values than process 0.

    The error names the process and the keys. The values must have a form in JSON.
    """
    if _process.count == 1:
        return
    client = _process.client
    key = f"agree/{next(_numbers)}"
    client.key_value_set(f"{key}/{_process.index}", json.dumps(values, sort_keys=True))
    by_process = [
        json.loads(client.blocking_key_value_get(f"{key}/{i}", _FOREVER))
        for i in range(_process.count)
    ]
    expected = by_process[0]
    for i, actual in enumerate(by_process):
        differences = [
            f"{name}: {actual.get(name)} there, {expected.get(name)} on {_process.name(0)}"
            for name in {**expected, **actual}
            if expected.get(name) != actual.get(name)
        ]
        if differences:
            raise UserError(f"{_process.name(i)} does not run the same: {'; '.join(differences)}")


def stop_point() -> StopPoint | None:
    """The point at which all processes stop; None where there is one process."""
    return _process.stop_point


def failed(line: str, code: int) -> None:
    """Ends this process with the exit code, and tells the others why. Does nothing for a single
    process.
    """
    if _process.count > 1:
        content = json.dumps([line, code])
        _process.client.key_value_set(f"failed/{_process.index}", content, allow_overwrite=True)
        _end(code)


def await_news() -> None:
    """Waits after an error whose cause may be the death of another process.

    Meanwhile the watching thread may find that out, and end this process with a better message.
    """
    time.sleep(SILENCE + 10 * LOOK)


def leave() -> None:
    """Waits until all processes have finished. Process 0 leaves last, as it has the store."""
    if _process.count == 1:
        return
    import jax

    _leaving.set()
    with contextlib.suppress(RuntimeError):
        _process.stop_point.leave()
        _process.client.wait_at_barrier("leave", 3000 * SILENCE)
    if not _process.index:
        time.sleep(2 * LOOK)
    with contextlib.suppress(RuntimeError):
        jax.distributed.shutdown()


def _watch() -> None:
    """Ends this process when another has failed or died."""
    client = _process.client
    everyone = list(range(_process.count))
    while not _leaving.wait(LOOK):
        if supervisor.has_parent_died():
            _end(1)  # the signal that killed the parent was for the run
        try:
            failures = {
                int(key.rpartition("/")[2]): json.loads(value)
                for key, value in client.key_value_dir_get("failed/")
            }
            failures.pop(_process.index, None)
            _process.stop_point.look()
            alive = client.get_live_nodes(everyone)
        except Exception as error:  # the runtime raises many kinds where process 0 does not answer
            reason = str(error).splitlines()[0][:120]
            _give_up(
                f"{_process.name(0)}, which connects the processes, can't be reached ({reason})", 1
            )
            return
        dead = [_process.name(i) for i in everyone if i not in alive]
        if failures:
            i, (line, code) = min(failures.items())
            _give_up(f"{_process.name(i)} ended: {line}", code)
        elif dead:
            _give_up(
                f"{' and '.join(dead)} died or can't be reached (no heartbeat for {SILENCE} s)", 1
            )


def _give_up(line: str, code: int) -> None:
    if not _leaving.is_set():
        message = f"process {_process.index}: {line}. {supervisor.RESUME}"
        print(message, file=sys.stderr, flush=True)
        _end(code)


def _end(code: int) -> None:
    """Ends the process at once: other threads may wait for a process that has died.

    It first leaves the others time to read the reason. Process 0 ends last, as it has the store.
    """
    time.sleep((2 if _process.index else 6) * LOOK)
    sys.stdout.flush()
    os._exit(code)
