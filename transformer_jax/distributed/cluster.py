"""How the processes of a run find each other: by flags, or in a Slurm step or Cloud TPU slice."""

import contextlib
import glob
import importlib.util
import os
import socket
import time

from transformer_jax.config import UserError


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
