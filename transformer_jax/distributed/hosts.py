"""Several hosts at one run: their processes find each other, agree, and end together."""

import contextlib
import dataclasses
import glob
import importlib.util
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
from transformer_jax.pictures import progress

# --------------------------------------------------------------------------------------------------
# How the processes of a run find each other: by flags, or in a Slurm step or Cloud TPU slice.


def arguments(
    coordinator: str | None, num_processes: int | None, process_id: int | None
) -> dict | None:
    """Arguments of jax.distributed.initialize, or None where this is the only process.

    They come from the flags, or else from a Slurm step or a Cloud TPU slice. Raises UserError for
    flags that do not fit together.
    """
    flags = {
        "--coordinator": coordinator,
        "--num_processes": num_processes,
        "--process_id": process_id,
    }
    if any(value is not None for value in flags.values()):
        _check_flags(flags)
        return dict(
            coordinator_address=coordinator,
            num_processes=num_processes,
            process_id=process_id,
            cluster_detection_method="deactivate",
        )
    if "SLURM_STEP_NODELIST" in os.environ and int(os.environ.get("SLURM_NTASKS", 1)) > 1:
        one_task_a_node = os.environ["SLURM_NTASKS"] == os.environ.get("SLURM_STEP_NUM_NODES")
        # The only task of a node uses all its GPUs. Otherwise each task uses one.
        local_devices = dict(local_device_ids=[]) if one_task_a_node else {}
        return dict(cluster_detection_method="slurm", **local_devices)
    if importlib.util.find_spec("libtpu") and _has_tpu():
        return {}
    return None


def _check_flags(flags: dict) -> None:
    missing = [flag for flag, value in flags.items() if value is None]
    if missing:
        raise UserError(
            f"{' and '.join(missing)} missing: --coordinator=HOST:PORT, --num_processes=N and "
            "--process_id=0..N-1 belong together"
        )
    coordinator, num_processes, process_id = flags.values()
    port = coordinator.rpartition(":")[2]
    if not port.isdecimal() or not 0 < int(port) < 2**16:
        raise UserError(f"--coordinator={coordinator}: must be HOST:PORT")
    if not 0 <= process_id < num_processes:
        raise UserError(
            f"--process_id={process_id}: must be at least 0 and less than "
            f"--num_processes={num_processes}"
        )


def _has_tpu() -> bool:
    return bool(glob.glob("/dev/accel*") or glob.glob("/dev/vfio/[0-9]*"))


def roll_call(coordinator: str, count: int, index: int, patience: int) -> None:
    """Waits until all processes have started, at most `patience` seconds.

    Each sends its number to process 0 at the coordinator's address. Raises UserError that names the
    missing processes; JAX's runtime does not name them.
    """
    if index:
        _answer_roll_call(coordinator, count, index, patience)
    else:
        _call_roll(coordinator, count, patience)


def _answer_roll_call(coordinator: str, count: int, index: int, patience: int) -> None:
    host, _, port = coordinator.rpartition(":")
    end = time.monotonic() + patience
    while time.monotonic() < end:
        with (
            contextlib.suppress(OSError),
            socket.create_connection((host, int(port)), timeout=5) as connection,
        ):
            connection.sendall(f"{index} {count}\n".encode())
            connection.settimeout(patience + 5)
            answer = connection.makefile().readline()
            if answer:
                if answer.strip():
                    raise UserError(answer.strip())
                return
        time.sleep(0.2)
    raise UserError(
        f"--coordinator={coordinator}: process 0 did not answer there within {patience} s"
    )


def _call_roll(coordinator: str, count: int, patience: int) -> None:
    end = time.monotonic() + patience
    connections: dict[int, socket.socket] = {}  # by number of process
    error = ""
    with _listening(coordinator) as server, contextlib.ExitStack() as open_connections:
        while len(connections) < count - 1 and not error:
            server.settimeout(max(end - time.monotonic(), 0.01))
            try:
                connection, (address, *_) = server.accept()
            except TimeoutError:
                missing = [str(i) for i in range(1, count) if i not in connections]
                error = (
                    f"process {', '.join(missing)} of {count} did not connect to process 0 "
                    f"within {patience} s"
                )
                break
            connection.settimeout(5)
            # Other programs may connect to the port, too.
            with contextlib.suppress(OSError, ValueError):
                line = open_connections.enter_context(connection).makefile().readline()
                index, its_count = map(int, line.split())
                if index in connections:
                    error = f"{address} is process {index} of {count}, and so is another one"
                elif its_count != count:
                    error = f"{address} is process {index} of {its_count}, process 0 is of {count}"
                connections[index] = connection
        for connection in connections.values():
            with contextlib.suppress(OSError):
                connection.sendall(f"{error}\n".encode())
                # The other side closes first: who does so keeps the port busy for a while.
                connection.recv(1)
    if error:
        raise UserError(error)


def _listening(coordinator: str) -> socket.socket:
    port = coordinator.rpartition(":")[2]
    try:
        return socket.create_server(("", int(port)))
    except OSError as error:
        raise UserError(
            f"--coordinator={coordinator}: process 0 can't listen there ({error.strerror})"
        ) from None


# --------------------------------------------------------------------------------------------------
# A parent process that explains the end of its child when JAX's runtime aborts the child.

_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}
RESUME = "This process ends, too; the same command goes on with the run"

_parent: int | None = None  # the parent's process id, in the child
_pipe: int | None = None  # a pipe to the parent, in the child


def supervise() -> None:
    """Forks; returns in the child.

    The parent forwards SIGTERM and SIGINT to the child, and ends with the child's exit code or
    signal. Where JAX's runtime aborts the child, the parent writes a line about the cause.
    """
    global _parent, _pipe
    parent = os.getpid()
    read, write = os.pipe()
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    child = os.fork()
    if not child:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        _parent = parent
        _pipe = write
        return
    os.close(write)
    status = _wait_for(child)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGABRT:
        print(_cause(os.read(read, 1000).decode()), file=sys.stderr, flush=True)
        code = 1
    if code < 0:
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(parent, -code)
    os._exit(code)


def _wait_for(child: int) -> int:
    """Forwards signals to the child until it ends. Returns its wait status."""
    while True:
        received = signal.sigwaitinfo(_SIGNALS)
        if received.si_signo == signal.SIGCHLD:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return status
        elif received.si_code <= 0:
            # From a process. A terminal sends its signals to the child itself.
            os.kill(child, received.si_signo)


def _cause(report: str) -> str:
    """Why the runtime aborted the child; `report` is the content of the pipe."""
    index, _, coordinator = report.partition(" ")
    if not coordinator:
        return "the processes of the run did not find each other"
    return (
        f"process {index}: process 0 ({coordinator}), which connects the processes, died or "
        f"can't be reached. {RESUME}"
    )


def report(index: int, coordinator: str) -> None:
    """Sends the parent the number of this process, and the name of process 0's host."""
    if _pipe is not None:
        os.write(_pipe, f"{index} {coordinator}".encode())


def has_parent_died() -> bool:
    """Whether this process has a supervising parent that has died."""
    return _parent is not None and os.getppid() != _parent


# --------------------------------------------------------------------------------------------------
# How the processes of a run agree, and how they end together.
#
# JAX's distributed runtime connects them. Its key-value store lies in process 0. There, process 0
# says when the others may proceed. Once a second, each process looks whether another has failed or
# died. Then all end with a line that names it, where they would wait in a collective for ever. When
# process 0 itself dies, the runtime aborts the others, and their parents, which `supervise` makes,
# write the line.


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

    `arguments` are what the function `arguments` returns. Waits `patience` seconds for the others,
    and raises UserError where one is missing.
    """
    if "coordinator_address" in arguments:
        roll_call(
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
    report(_process.index, _process.names[0])
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
        if has_parent_died():
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
        message = f"process {_process.index}: {line}. {RESUME}"
        print(message, file=sys.stderr, flush=True)
        _end(code)


def _end(code: int) -> None:
    """Ends the process at once: other threads may wait for a process that has died.

    It first leaves the others time to read the reason. Process 0 ends last, as it has the store.
    """
    time.sleep((2 if _process.index else 6) * LOOK)
    sys.stdout.flush()
    os._exit(code)
