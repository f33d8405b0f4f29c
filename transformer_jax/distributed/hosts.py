"""Several hosts at one run: how their processes find each other, agree, and end together.

JAX's distributed runtime connects them. Over its key-value store process 0 goes first where only
one may write, and every process looks, once a second, whether another has failed or died: then all
end, naming it, instead of waiting in a collective for ever. The store lives in process 0; when that
dies the runtime aborts the others, and a parent of each, which does nothing else, says so.
"""

import contextlib
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
from collections.abc import Iterator
from typing import Any

from transformer_jax.config import UserError
from transformer_jax.distributed.stop_point import StopPoint
from transformer_jax.pictures import progress

SILENCE = 20  # seconds without a heartbeat after which a process counts as dead
LOOK = 1.0  # seconds between looks at the others
_GO_ON = "This process ends, too; the same command goes on from the newest checkpoint"
# milliseconds; where process 0 builds the data the others wait as long as it lives
_FOREVER = 2**31 - 1

_client, _index, _count, _names = None, 0, 1, [socket.gethostname()]
_parent = None  # (its process id, the pipe to it)
_stop_point: StopPoint | None = None
_leaving = threading.Event()
_numbers = itertools.count()  # of agreements: every process comes by all of them in the same order


def several(
    coordinator: str | None, num_processes: int | None, process_id: int | None
) -> dict | None:
    """Arguments of jax.distributed.initialize: those given, else what a Slurm step or a Cloud TPU
    slice calls for; None where one process is alone.

    Raises UserError for flags that do not fit together.
    """
    given = {
        "--coordinator": coordinator,
        "--num_processes": num_processes,
        "--process_id": process_id,
    }
    if any(value is not None for value in given.values()):
        if missing := [flag for flag, value in given.items() if value is None]:
            raise UserError(
                f"{' and '.join(missing)} missing: --coordinator=HOST:PORT, --num_processes=N and --process_id=0..N-1 belong together"
            )
        port = coordinator.rpartition(":")[2]
        if not port.isdecimal() or not 0 < int(port) < 2**16 or not 0 <= process_id < num_processes:
            raise UserError(
                f"--coordinator={coordinator} --process_id={process_id} --num_processes={num_processes}: must be HOST:PORT and a number below that of the processes"
            )
        return dict(
            coordinator_address=coordinator,
            num_processes=num_processes,
            process_id=process_id,
            cluster_detection_method="deactivate",
        )
    if "SLURM_STEP_NODELIST" in os.environ and int(os.environ.get("SLURM_NTASKS", 1)) > 1:
        alone = os.environ["SLURM_NTASKS"] == os.environ.get("SLURM_STEP_NUM_NODES")
        # the only task of its node has all its GPUs; else one each
        return dict(
            cluster_detection_method="slurm", **(dict(local_device_ids=[]) if alone else {})
        )
    if importlib.util.find_spec("libtpu") and (
        glob.glob("/dev/accel*") or glob.glob("/dev/vfio/[0-9]*")
    ):
        return {}
    return None


def connect(found: dict, patience: int = 300) -> None:
    """Joins the other processes of the run, `found` by `several`, before JAX's first use; waits
    `patience` seconds for them. Raises UserError where one is missing.
    """
    global _client, _index, _count, _names, _stop_point
    if "coordinator_address" in found:
        _roll_call(
            found["coordinator_address"], found["num_processes"], found["process_id"], patience
        )
    import jax
    from jax._src import distributed  # the key-value store has no public name yet

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)  # it takes SIGTERM alone, not Ctrl-C
    # that is: of a death we are told, instead of being aborted with a dump
    jax.config.update("jax_enable_recoverability", True)
    try:
        jax.distributed.initialize(
            **found, initialization_timeout=patience, heartbeat_timeout_seconds=SILENCE
        )
    except (ValueError, RuntimeError):
        if found:
            raise
        return  # TPU chips, but no slice of several hosts
    _client, _index, _count = (
        distributed.global_state.client,
        jax.process_index(),
        jax.process_count(),
    )
    if _count == 1:
        return
    _client.key_value_set(f"name/{_index}", socket.gethostname())
    _names = [_client.blocking_key_value_get(f"name/{i}", 1000 * patience) for i in range(_count)]
    if _parent:
        os.write(_parent[1], f"{_index} {_names[0]}".encode())
    _stop_point = StopPoint(_client, _index, _count)
    progress.say(f"process {_index} of {_count}, on {_names[_index]}")
    progress.console.quiet = _index > 0  # one tells how it goes
    threading.Thread(target=_watch, daemon=True).start()


def _roll_call(coordinator: str, count: int, number: int, patience: int) -> None:
    """Waits till all processes have come, each saying its number to process 0 at the coordinator's
    address; JAX's runtime could not tell who is missing.
    """
    host, _, port = coordinator.rpartition(":")
    end = time.monotonic() + patience
    if number:
        while time.monotonic() < end:
            with (
                contextlib.suppress(OSError),
                socket.create_connection((host, int(port)), timeout=5) as line,
            ):
                line.sendall(f"{number} {count}\n".encode())
                line.settimeout(patience + 5)
                if answer := line.makefile().readline():
                    if error := answer.strip():
                        raise UserError(error)
                    return
            time.sleep(0.2)
        raise UserError(
            f"process 0 does not answer at --coordinator={coordinator}, for {patience} s"
        )
    try:
        server = socket.create_server(("", int(port)))
    except OSError as error:
        raise UserError(
            f"--coordinator={coordinator}: process 0 can't listen there ({error.strerror})"
        ) from None
    come, error = {}, ""
    with server, contextlib.ExitStack() as lines:
        while len(come) < count - 1 and not error:
            server.settimeout(max(end - time.monotonic(), 0.01))
            try:
                line, (where, *_) = server.accept()
            except TimeoutError:
                error = f"no word of process {', '.join(str(i) for i in range(1, count) if i not in come)} of {count} within {patience} s"
                break
            line.settimeout(5)
            with contextlib.suppress(OSError, ValueError):  # whatever else knocks at the port
                i, n = map(int, lines.enter_context(line).makefile().readline().split())
                error = (
                    f"{where} is process {i} of {n}, {'as another is' if i in come else f'here there are {count}'}"
                    if i in come or n != count
                    else ""
                )
                come[i] = line
        for line in come.values():
            with contextlib.suppress(OSError):
                line.sendall(f"{error}\n".encode())
                line.recv(1)  # till it has hung up: who does so first keeps the port busy
    if error:
        raise UserError(error)


def supervise() -> None:
    """Goes on in a child.

    The parent passes SIGTERM and SIGINT on to it, ends as it ends, and has the last word where
    JAX's runtime aborts it.
    """
    global _parent
    mine, read, write = os.getpid(), *os.pipe()
    signals = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    if not (child := os.fork()):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        _parent = (mine, write)
        return
    os.close(write)
    ended = 0
    while not ended:
        come = signal.sigwaitinfo(signals)
        if come.si_signo == signal.SIGCHLD:
            ended, status = os.waitpid(child, os.WNOHANG)
        elif come.si_code <= 0:  # from a process; a terminal sends it to the child, too
            os.kill(child, come.si_signo)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGABRT:
        number, _, name = os.read(read, 1000).decode().partition(" ")
        print(
            f"process {number}: process 0 ({name}), which holds the run together, died or can't be reached. {_GO_ON}"
            if name
            else "the processes of the run did not come together",
            file=sys.stderr,
            flush=True,
        )
        code = 1
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (
            signal.SIGKILL,
            signal.SIGSTOP,
        ) else None
        os.kill(mine, -code)
    os._exit(code)


def index() -> int:
    """This process's number; 0 writes what all share."""
    return _index


def count() -> int:
    return _count


@contextlib.contextmanager
def first() -> Iterator[None]:
    """Within it process 0 is first, and the others come in when it is done. If it fails, they end
    with it.
    """
    if _count == 1:
        yield
        return
    key = f"first/{next(_numbers)}"
    if _index:
        _client.blocking_key_value_get(key, _FOREVER)
    yield
    if not _index:
        _client.key_value_set(key, "done")


def share(value: Any) -> Any:
    """Process 0's `value` (JSON-able), for all."""
    if _count == 1:
        return value
    key = f"share/{next(_numbers)}"
    if not _index:
        _client.key_value_set(key, json.dumps(value))
    return json.loads(_client.blocking_key_value_get(key, _FOREVER))


def compiled(program, *arguments):
    """The jitted `program`, compiled for the arguments by all processes before any runs it.

    One may compile for much longer than another, and gloo gives up where a process comes to its
    first collective 30 s after another. Every process asks for the same programs in turn.
    """
    if _count > 1:
        program.lower(*arguments).compile()
        _client.wait_at_barrier(f"compiled/{next(_numbers)}", _FOREVER)
    return program


def agree(what: dict[str, Any]) -> None:
    """Raises UserError, naming process and key, where a process has other values (JSON-able) than
    process 0.
    """
    if _count == 1:
        return
    key = f"agree/{next(_numbers)}"
    _client.key_value_set(f"{key}/{_index}", json.dumps(what, sort_keys=True))
    first, *others = [
        json.loads(_client.blocking_key_value_get(f"{key}/{i}", _FOREVER)) for i in range(_count)
    ]
    for i, other in enumerate(others, 1):
        if different := [
            f"{name}: {other.get(name)} there, {first.get(name)} on {_named(0)}"
            for name in {**first, **other}
            if first.get(name) != other.get(name)
        ]:
            raise UserError(f"{_named(i)} does not run the same: {'; '.join(different)}")


def stop_point() -> StopPoint | None:
    """Where all processes stop; None where one is alone."""
    return _stop_point


def failed(line: str, code: int) -> None:
    """Ends this process and tells the others why."""
    if _count > 1:
        _client.key_value_set(f"failed/{_index}", json.dumps([line, code]), allow_overwrite=True)
        _end(code)


def await_news() -> None:
    """After an error that may be another process's death: gives the watch time to find that out,
    and to end this process with the right word.
    """
    time.sleep(SILENCE + 10 * LOOK)


def leave() -> None:
    """The end of a process that is done: waits till all are; the store goes last."""
    if _count == 1:
        return
    import jax

    _leaving.set()
    with contextlib.suppress(RuntimeError):
        _stop_point.leave()
        _client.wait_at_barrier("leave", 3000 * SILENCE)
    if not _index:
        time.sleep(2 * LOOK)
    with contextlib.suppress(RuntimeError):
        jax.distributed.shutdown()


def _named(i: int) -> str:
    return f"process {i} ({_names[i]})"


def _watch() -> None:
    """Ends this process when another has failed or died."""
    everyone = list(range(_count))
    while not _leaving.wait(LOOK):
        if _parent and os.getppid() != _parent[0]:
            _end(1)  # killed by one who meant us
        try:
            told = {
                int(key.rpartition("/")[2]): json.loads(value)
                for key, value in _client.key_value_dir_get("failed/")
            }
            told.pop(_index, None)
            _stop_point.look()
            alive = _client.get_live_nodes(everyone)
        except Exception as error:  # whatever the runtime raises where nobody answers
            _give_up(
                f"{_named(0)}, which holds the run together, can't be reached ({str(error).splitlines()[0][:120]})",
                1,
            )
            return
        if told:
            i, (line, code) = min(told.items())
            _give_up(f"{_named(i)} ended: {line}", code)
        elif dead := [i for i in everyone if i not in alive]:
            _give_up(
                f"{' and '.join(map(_named, dead))} died or can't be reached (no sign of life for {SILENCE} s)",
                1,
            )


def _give_up(line: str, code: int) -> None:
    if not _leaving.is_set():
        print(f"process {_index}: {line}. {_GO_ON}", file=sys.stderr, flush=True)
        _end(code)


def _end(code: int) -> None:
    """Whatever other threads do: they may wait for a process that is no more. First all may look
    why; the store goes last.
    """
    time.sleep((2 if _index else 6) * LOOK)
    sys.stdout.flush()
    os._exit(code)
