"""Runs on several hosts: their processes connect, agree on values, and end together."""

import contextlib
import dataclasses
import glob
import importlib.util
import itertools
import json
import os
import pathlib
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from transformer_jax.config import UserError
from transformer_jax.pictures import progress

# --------------------------------------------------------------------------------------------------
# How the processes of a run find each other: by flags, or from a Slurm step or a Cloud TPU slice.
#
# JAX's own detection is used only where there surely are several processes, because it would wait
# for others that do not exist.


def arguments(
    coordinator: str | None, num_processes: int | None, process_id: int | None
) -> dict | None:
    """Returns the arguments of jax.distributed.initialize, or None if this is the only process.

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
            # Detection is switched off, because JAX would otherwise mix the flags with what it
            # finds in the environment, such as a Slurm job.
            cluster_detection_method="deactivate",
        )
    # The shell of an allocation (salloc) is a step of one task, too, but its SLURM_NTASKS is that
    # of the whole allocation, whose other tasks do not run this program.
    num_tasks = os.environ.get("SLURM_STEP_NUM_TASKS") or os.environ.get("SLURM_NTASKS", "1")
    if "SLURM_STEP_NODELIST" in os.environ and int(num_tasks) > 1:
        one_task_per_node = num_tasks == os.environ.get("SLURM_STEP_NUM_NODES")
        # JAX's Slurm detection gives each task one GPU. A task that has a node to itself shall use
        # all GPUs of that node, which the empty list means.
        local_devices = dict(local_device_ids=[]) if one_task_per_node else {}
        return dict(num_processes=int(num_tasks), cluster_detection_method="slurm", **local_devices)
    if importlib.util.find_spec("libtpu") and _is_tpu_worker():
        return {}
    return None


def _slurm_port() -> int:
    """Returns the port at which the processes of this Slurm step find each other."""
    # JAX's own choice is the same for all steps of a job, so that two runs that a job starts at the
    # same time would meet at one port. For the first step, this is JAX's choice.
    job, step = (int(os.environ.get(f"SLURM_{name}_ID", 0)) for name in ("JOB", "STEP"))
    return (job + 997 * step) % 2**12 + 2**16 - 2**12


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


_PCI_VENDORS = "/sys/bus/pci/devices/*/vendor"
_GOOGLE = "0x1ae0"  # the PCI vendor of TPUs, and of the network cards of Google's machines


def _is_tpu_worker() -> bool:
    """Returns whether this host is a worker of a Cloud TPU slice, as libtpu and metadata have it.

    Device files would be no evidence: which ones there are depends on the generation of the TPU,
    and /dev/vfio is on machines with other devices, too. Raises UserError if the metadata server
    can't be reached.
    """
    # Kubernetes Engine sets these variables, which libtpu and JAX read. A single name, such as
    # localhost, has no other hosts to wait for.
    for name in ("TPU_PROCESS_ADDRESSES", "TPU_WORKER_HOSTNAMES"):
        if name in os.environ:
            return "," in os.environ[name] or "MEGASCALE_NUM_SLICES" in os.environ
    # On Compute Engine, a server describes the machine. It is asked only on a machine of Google's,
    # because elsewhere a slow name server would delay the start, and not where libtpu, too, is told
    # not to ask.
    if "TPU_SKIP_MDS_QUERY" in os.environ or not any(
        pathlib.Path(vendor).read_text().strip() == _GOOGLE for vendor in glob.glob(_PCI_VENDORS)
    ):
        return False
    server = os.environ.get("GCE_METADATA_IP", "metadata.google.internal")
    # JAX reads the number of the process from this attribute, which only workers have.
    request = urllib.request.Request(
        f"http://{server}/computeMetadata/v1/instance/attributes/agent-worker-number",
        headers={"Metadata-Flavor": "Google"},
    )
    # The server is on the machine's own network, so no proxy leads there.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=60):
            return True
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return False
        reason = error
    except OSError as error:
        reason = error
    raise UserError(
        f"{server}, Google's metadata server, does not say whether this machine is a worker of a "
        f"TPU slice ({reason}); TPU_SKIP_MDS_QUERY=1 in the environment says that it is none"
    )


def roll_call(coordinator: str, count: int, index: int, patience: int) -> None:
    """Waits until all processes have started, at most `patience` seconds.

    Each process sends its number to process 0 at the coordinator's address. Raises UserError that
    names the missing processes, which JAX's own time-out does not.
    """
    if index:
        _answer_roll_call(coordinator, count, index, patience)
    else:
        _call_roll(coordinator, count, patience)


def _answer_roll_call(coordinator: str, count: int, index: int, patience: int) -> None:
    host, _, port = coordinator.rpartition(":")
    end = time.monotonic() + patience
    while time.monotonic() < end:
        # Errors are suppressed, because process 0 may start later and the connection is refused
        # until then.
        with (
            contextlib.suppress(OSError),
            socket.create_connection((host, int(port)), timeout=5) as connection,
        ):
            connection.sendall(f"{index} {count}\n".encode())
            # This is longer than process 0 waits, so that its line about missing processes arrives
            # here first.
            connection.settimeout(patience + 5)
            # Without any line, the connection was closed and is tried again. An empty line means
            # that all processes are there; any other line is an error.
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
    connections: dict[int, socket.socket] = {}  # by process number
    error = ""
    with _listening(coordinator) as server, contextlib.ExitStack() as open_connections:
        while len(connections) < count - 1 and not error:
            # A time-out of 0 would mean a socket that does not block and raises another error.
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
            # Other programs may connect, too, such as port scanners. Errors are suppressed, because
            # what they send does not parse.
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
                # Wait until the other side closes the connection. The side that closes first keeps
                # its port busy for a while (TIME_WAIT), and JAX needs this port next.
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
# A parent process that explains why its child ended when JAX's runtime has aborted the child.
#
# If process 0 dies, the runtime calls abort() in the other processes, where no Python code can
# catch it. The message must therefore come from outside of the process.

_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}
RESUME = "This process ends, too; the same command continues the run"

# Both are set in the child only: the parent's process id, by which the child notices its death, and
# a pipe for what the parent needs to know about an abort, because the child itself cannot tell it
# then.
_parent: int | None = None
_pipe: int | None = None  # a pipe to the parent, in the child


def supervise() -> None:
    """Forks, and returns in the child only.

    The parent forwards SIGTERM and SIGINT to the child, and ends with the child's exit code or
    signal. If JAX's runtime aborts the child, the parent prints a line about the cause. It must be
    called before jax starts its threads, which would not survive the fork.
    """
    global _parent, _pipe
    parent = os.getpid()
    read, write = os.pipe()
    # The signals are blocked before the fork, so that none gets lost before the parent waits for
    # them.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    child = os.fork()
    if not child:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        _parent = parent
        _pipe = write
        return
    # While the parent has this end open itself, reading from an empty pipe would never return.
    os.close(write)
    status = _wait_for(child)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGABRT:
        print(_cause(os.read(read, 1000).decode()), file=sys.stderr, flush=True)
        code = 1
    if code < 0:
        # End by the same signal as the child, so that a shell or a scheduler sees the same status.
        # The handlers of SIGKILL and SIGSTOP cannot be reset.
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(parent, -code)
    os._exit(code)


def _wait_for(child: int) -> int:
    """Forwards signals to the child until it ends. Returns its wait status."""
    while True:
        received = signal.sigwaitinfo(_SIGNALS)
        if received.si_signo == signal.SIGCHLD:
            # The signal also means that the child was stopped or continued, so this must not block.
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return status
        elif received.si_code <= 0:
            # A process has sent the signal, for instance by kill. A terminal sends its signals to
            # the whole process group, so that the child has got them already.
            os.kill(child, received.si_signo)


def _cause(report: str) -> str:
    """Returns why the runtime aborted the child; `report` is the content of the pipe."""
    index, _, coordinator = report.partition(" ")
    if not coordinator:
        return "the processes of the run did not find each other"
    return (
        f"process {index}: process 0 ({coordinator}), which connects the processes, died or "
        f"can't be reached. {RESUME}"
    )


def report(index: int, coordinator: str) -> None:
    """Sends the number of this process, and the host name of process 0, to the parent."""
    if _pipe is not None:
        os.write(_pipe, f"{index} {coordinator}".encode())


def has_parent_died() -> bool:
    """Returns whether this process has a supervising parent that has died."""
    return _parent is not None and os.getppid() != _parent


# --------------------------------------------------------------------------------------------------
# How the processes of a run agree, and how they end together.
#
# JAX's distributed runtime connects the processes. Its key-value store, which lives in process 0,
# carries all agreements. Once a second, each process looks whether another one has failed or died.
# If so, all of them end with a line that names it; without this, they would wait in a collective
# forever. If process 0 itself dies, the runtime aborts the others, and the line comes from their
# parents, which `supervise` has created.


class StopPoint:
    """Lets all processes stop at the same one of the points that each of them passes.

    Every process passes the same points in the same order, but not at the same time. To agree, the
    thread of each process that watches the other hosts first holds its process before its next
    point, and then publishes in the key-value store how many points it has passed. All processes
    stop at the first point that none of them has passed yet. Stopping anywhere else would leave a
    process waiting in a collective that another one never reaches.

    Attributes:
      signal: the signal on which the processes have agreed, or None.
    """

    def __init__(self, client, index: int, count: int):
        """`client` is the client of the key-value store of `count` processes."""
        self.signal: int | None = None
        self._client = client
        self._index = index
        self._count = count
        # The lock is held from `_send` until the processes have agreed, because the number of
        # points that a process has published must stay true.
        self._lock = threading.Lock()
        self._passed = 0  # number of points passed
        self._last: int | None = None  # the number of the point at which all stop
        self._has_sent = False
        self._call: Callable[[int], None] | None = None

    def ask(self, number: int) -> None:
        """Asks all processes to stop, because this one has received the signal `number`."""
        self._client.key_value_set(f"stop/{self._index}", str(number), allow_overwrite=True)

    def on_agreed(self, call: Callable[[int], None] | None) -> None:
        """Sets a function that the watching thread calls with the signal once all have agreed."""
        self._call = call
        if call and self.signal is not None:
            call(self.signal)

    def reached(self) -> bool:
        """Returns whether all processes stop at this point. Must be called at every point."""
        with self._lock:
            self._passed += 1
            return self._last is not None and self._passed >= self._last

    def is_next(self) -> bool:
        """Returns whether all processes stop at the next point, or at an earlier one."""
        return self._last is not None and self._passed + 1 >= self._last

    def look(self) -> None:
        """Takes the next step towards the agreement. The watching thread calls it repeatedly."""
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
        """Publishes that this process passes no more points, so that the others need not wait."""
        if not self._has_sent:
            self._send(signal.SIGTERM)

    def _send(self, number: int) -> None:
        self._has_sent = True
        answer = json.dumps([self._passed, number])
        self._client.key_value_set(f"stopping/{self._index}", answer, allow_overwrite=True)


# Seconds without a heartbeat after which a process counts as dead. JAX's default is 100, during
# which the other processes would wait in a collective.
SILENCE = 20
# Seconds between two looks at the other processes. Each look is a request to process 0, whose store
# all processes share.
LOOK = 1.0
# Milliseconds, the longest time-out of the key-value store. There is no other time limit, because
# process 0 may build data for hours; if it dies, the watching thread ends the others.
_FOREVER = 2**31 - 1


@dataclasses.dataclass
class _Process:
    """This process as a member of the run."""

    client: Any = None  # of the key-value store
    index: int = 0
    count: int = 1
    names: list[str] = dataclasses.field(default_factory=lambda: [socket.gethostname()])  # of hosts
    stop_point: StopPoint | None = None
    between: Callable[[], None] | None = None  # called before each program that `run` runs

    def name(self, index: int) -> str:
        return f"process {index} ({self.names[index]})"


_process = _Process()
_leaving = threading.Event()
# Numbers that make the keys of agreements unique. They match across processes, because all of them
# reach the same agreements in the same order.
_numbers = itertools.count()
# Signatures of the programs that all processes have compiled, so that `run` waits for the others
# only before the first call of each.
_signatures = set()


def connect(arguments: dict, patience: int = 300) -> None:
    """Joins the other processes of the run. Must be called before JAX is first used.

    `arguments` is the result of the function `arguments`. Waits up to `patience` seconds for the
    other processes, and raises UserError if one of them is missing.
    """
    if "coordinator_address" in arguments:
        roll_call(
            arguments["coordinator_address"],
            arguments["num_processes"],
            arguments["process_id"],
            patience,
        )
    if arguments.get("cluster_detection_method") == "slurm":
        os.environ.setdefault("JAX_COORDINATOR_PORT", str(_slurm_port()))
    # jax is imported here, because `supervise` must fork before jax starts its threads. The module
    # is a private one, because the key-value store has no public name yet.
    import jax
    from jax._src import distributed  # the key-value store has no public name yet

    # Without it, the CPU backend has no collectives between processes.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # JAX's preemption service is not used, because it handles SIGTERM but not Ctrl-C; `StopPoint`
    # handles both.
    jax.config.update("jax_enable_preemption_service", False)
    # With this option the runtime only reports that a process has died. Without it, the runtime
    # aborts the others.
    jax.config.update("jax_enable_recoverability", True)
    try:
        jax.distributed.initialize(
            **arguments, initialization_timeout=patience, heartbeat_timeout_seconds=SILENCE
        )
    except (ValueError, RuntimeError):
        if arguments:
            raise
        return  # the machine has TPU chips, but is not part of a slice of several hosts
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
    # The other processes would show the same lines.
    progress.console.quiet = _process.index > 0
    threading.Thread(target=_watch, daemon=True).start()


def index() -> int:
    """Returns the number of this process. Process 0 writes the files that all processes share."""
    return _process.index


def count() -> int:
    """Returns the number of processes."""
    return _process.count


@contextlib.contextmanager
def first() -> Iterator[None]:
    """Lets process 0 run the context first, and the other processes after it.

    If process 0 fails in the context, the others end, too.
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
    """Returns the `value` of process 0 on all processes. It must be representable in JSON."""
    if _process.count == 1:
        return value
    key = f"share/{next(_numbers)}"
    if not _process.index:
        _process.client.key_value_set(key, json.dumps(value))
    return json.loads(_process.client.blocking_key_value_get(key, _FOREVER))


def compiled(program, *arguments):
    """Returns the jitted `program` once all processes have compiled it for these arguments.

    Compilation may take much longer in one process than in another, and gloo fails if a process
    reaches its first collective more than 30 s after another one. All processes must call this
    function for the same programs in the same order.
    """
    if _process.count > 1:
        program.lower(*arguments).compile()
        _process.client.wait_at_barrier(f"compiled/{next(_numbers)}", _FOREVER)
    return program


def run(program, *arguments):
    """Returns program(*arguments), where `program` is a jitted function that uses a model.

    All processes must call it for the same programs in the same order. A use may stop
    only between two programs: within one, the other processes would be left waiting in a
    collective.
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
    """Returns a key for a program and the shapes of its arguments, with static ones as they are."""
    import jax

    leaves, structure = jax.tree.flatten(arguments)
    arrays = (jax.Array, np.ndarray, np.generic)
    shapes = [(x.shape, x.dtype) if isinstance(x, arrays) else x for x in leaves]
    return program, structure, tuple(shapes)


@contextlib.contextmanager
def stopping_between_programs(call: Callable[[], None]) -> Iterator[None]:
    """In the context, `run` calls `call` before each program; `call` may raise to stop the use."""
    _process.between = call
    try:
        yield
    finally:
        _process.between = None


def agree(values: dict[str, Any]) -> None:
    """Raises UserError if a process has other values than process 0.

    The error names the process and the keys. The values must be representable in JSON.
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
    """Returns the object by which all processes agree where to stop; None for a single process."""
    return _process.stop_point


def failed(line: str, code: int) -> None:
    """Ends this process with an exit code, and tells the other processes why.

    If there is only one process, this does nothing.
    """
    if _process.count > 1:
        content = json.dumps([line, code])
        _process.client.key_value_set(f"failed/{_process.index}", content, allow_overwrite=True)
        _end(code)


def await_news() -> None:
    """Waits after an error that may have been caused by the death of another process.

    The watching thread may meanwhile find out about it, and end this process with a better message.
    """
    time.sleep(SILENCE + 10 * LOOK)


def leave() -> None:
    """Waits until all processes have finished. Process 0 leaves last, as it hosts the store."""
    if _process.count == 1:
        return
    import jax

    _leaving.set()
    # The work is done, so that the death of another process at this moment is no error any more.
    with contextlib.suppress(RuntimeError):
        _process.stop_point.leave()
        _process.client.wait_at_barrier("leave", 3000 * SILENCE)
    if not _process.index:
        time.sleep(2 * LOOK)
    with contextlib.suppress(RuntimeError):
        jax.distributed.shutdown()


def _watch() -> None:
    """Ends this process when another one has failed or died."""
    client = _process.client
    everyone = list(range(_process.count))
    while not _leaving.wait(LOOK):
        if has_parent_died():
            _end(1)  # a signal such as SIGKILL, which the parent could not forward, was for the run
        try:
            failures = {
                int(key.rpartition("/")[2]): json.loads(value)
                for key, value in client.key_value_dir_get("failed/")
            }
            # The own failure is left out, because it ends this process already, with its own exit
            # code.
            failures.pop(_process.index, None)
            _process.stop_point.look()
            alive = client.get_live_nodes(everyone)
        except Exception as error:  # the runtime raises many kinds if process 0 does not answer
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
    # Processes that leave at the end of a run look dead, too, so this is no error then.
    if not _leaving.is_set():
        message = f"process {_process.index}: {line}. {RESUME}"
        print(message, file=sys.stderr, flush=True)
        _end(code)


def _end(code: int) -> None:
    """Ends the process without cleaning up, because other threads may wait for a dead process.

    It first gives the other processes time to read the reason. Process 0 ends last, because it
    hosts the key-value store.
    """
    time.sleep((2 if _process.index else 6) * LOOK)
    sys.stdout.flush()
    os._exit(code)
