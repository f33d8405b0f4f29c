"""Out of memory, in one line: where, the size of the request, the use, and remedies."""

import contextlib
import errno
import math
import pathlib
import re
import traceback
from collections.abc import Iterator

import jax
from ml_collections import ConfigDict

from transformer_jax.config import RunError

# --------------------------------------------------------------------------------------------------
# Errors of a lack of memory, and the parts of the line about it.
#
# The line is of one form for the memory of the host and of a device. XLA raises a JaxRuntimeError,
# and numpy and Python raise a MemoryError.

_JAX_ERRORS = ("JaxRuntimeError", "XlaRuntimeError")  # the name depends on the release of jax
_SIZE = re.compile(
    r"(?:allocat\w*|reserve|Used|request for)[^\d\n]{0,20}"
    r"([\d.]*\d) ?([KMGTP]?)(?:i?B|bytes)?\b",
    re.IGNORECASE,
)
_UNITS = "KMGTP"


def ran_out(error: BaseException | None) -> bool:
    """Whether the error, or its cause, is a lack of memory."""
    if error is None:
        return False
    text = str(error).lower()
    exhausted = "resource_exhausted" in text and ("memory" in text or "allocat" in text)
    of_jax = type(error).__name__ in _JAX_ERRORS and (exhausted or "out of memory" in text)
    of_system = isinstance(error, OSError) and error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or of_jax or of_system or ran_out(error.__cause__)


def requested(error: BaseException) -> int | None:
    """The bytes that the failed request asked for, if the error says so."""
    match = _SIZE.search(str(error))
    if match is None:
        return requested(error.__cause__) if error.__cause__ else None
    power = 1 + _UNITS.index(match[2].upper()) if match[2] else 0
    return int(float(match[1]) * 1024**power)


def readable(size: float) -> str:
    """A number of bytes with its unit, such as "2.0 KiB"."""
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"
        size /= 1024


def host_memory() -> int | None:
    """The most bytes that this process can have: those of the machine, or the container's limit.

    Returns None where the system does not say.
    """
    sizes = []
    with contextlib.suppress(OSError, ValueError):
        text = pathlib.Path("/proc/meminfo").read_text()
        kibibytes = [
            int(re.search(rf"{name}: +(\d+)", text)[1]) for name in ("MemTotal", "SwapTotal")
        ]
        sizes.append(1024 * sum(kibibytes))
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            sizes.append(int(pathlib.Path("/sys/fs/cgroup", name).read_text()))
    return min(sizes, default=None)


def line(error: BaseException, activity: str, use: str, remedies: str) -> str:
    """The message. `activity`, `use` and `remedies` may be empty."""
    size = requested(error)
    request = f"{readable(size)} requested" if size else "the size of the request is not known"
    start = f"out of memory {activity}" if activity else "out of memory"
    return "; ".join(part for part in (f"{start}: {request}", use, remedies) if part)


def training_remedies(config: ConfigDict) -> str:
    """The flags to try in training, in this order."""
    train = config.train
    flags = []
    accumulation = _next_accumulation(train)
    if accumulation:
        flags.append(
            f"--config.train.accumulation={accumulation} or more (now {train.accumulation})"
        )
    if config.model.get("remat", "full") != "full":
        flags.append("--config.model.remat=full")
    flags.append(f"more devices with --config.mesh.fsdp=N (now {config.mesh.fsdp})")
    return (
        f"try, in this order: {'; '.join(flags)}; python -m transformer_jax.dry_run shows what fits"
    )


def _next_accumulation(train: ConfigDict) -> int | None:
    """The next number of microbatches into which the batches can be divided."""
    for number in range(train.accumulation + 1, train.batch + 1):
        if train.batch % number == 0 and train.first_batch % number == 0:
            return number
    return None


def decoding_remedies(config: ConfigDict) -> str:
    """The flags to try in decoding, in this order."""
    decode = config.decode
    flags = [f"--config.decode.batch={max(decode.batch // 2, 1)} or less (now {decode.batch})"]
    if decode.beam > 1:
        flags.append(f"--config.decode.beam={decode.beam // 2} or less (now {decode.beam})")
    return f"try, in this order: {'; '.join(flags)}"


# --------------------------------------------------------------------------------------------------
# The line about a training: the activity that ran out of memory, and the use of each device.

# (part of a module's name, part of a function's name, activity). The first that fits counts.
_ACTIVITIES = (
    ("training.checkpoint", "restore", "restoring a checkpoint"),
    ("training.checkpoint", "_read", "restoring a checkpoint"),
    ("training.checkpoint", "", "saving a checkpoint"),
    ("training.state", "init", "initialising parameters and optimizer state"),
    ("training.trainer", "_evaluat", "in an evaluation"),
    ("training.trainer", "__call__", "in an update"),
    ("training.memory", "_check_host", "before the start"),
    ("transformer_jax.inference", "", "decoding in an evaluation"),
    ("transformer_jax.data", "", "reading the data"),
)


@contextlib.contextmanager
def explained(task, program) -> Iterator[None]:
    """Raises a lack of memory of a task's training in the context as a RunError of one line."""
    try:
        _check_host(program)
        yield
    except Exception as error:
        if isinstance(error, RunError) or not ran_out(error):
            raise
        activity = _activity(error)
        compiled = activity == "in an update" and "compil" not in str(error)
        use = _use(program, compiled)
        remedies = training_remedies(task.config)
        raise RunError(line(error, activity, use, remedies)) from None


def _check_host(program) -> None:
    """Raises MemoryError where the devices are CPUs and the host can't hold their state.

    Linux would grant such memory, and kill the process when the process writes to it.
    """
    device = program.mesh.devices.flat[0]
    available = host_memory()
    index = jax.process_index()
    num_local = sum(local.process_index == index for local in program.mesh.devices.flat)
    needed = sum(_state(program).values()) * num_local
    if device.platform == "cpu" and available and needed > available:
        raise MemoryError(f"Unable to allocate {needed} bytes")


def _activity(error: BaseException) -> str:
    """The part of a training in which the error arose.

    The innermost function of this package that stands in the table decides.
    """
    activity = "in training"
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module = frame.f_globals.get("__name__", "")
        function = frame.f_code.co_name
        for part, name, words in _ACTIVITIES:
            if part in module and name in function:
                activity = words
                break
    return activity


def _state(program) -> dict[str, int]:
    """The bytes of the state on one device, by purpose."""
    return {
        "parameters": _bytes(program.state.params),
        "optimizer state": _bytes(program.state.opt_state),
    }


def _bytes(tree) -> int:
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def _use(program, compiled: bool) -> str:
    """The memory that the run uses on each device; with the activations if the step `compiled`."""
    parts = _state(program)
    # On an exhausted machine this may fail in any way, and the line does without it.
    with contextlib.suppress(Exception):
        if compiled:
            step = program.train_step.lower(program.state, program.batch).compile()
            parts["activations of an update"] = step.memory_analysis().temp_size_in_bytes
    sizes = ", ".join(f"{name} {readable(size)}" for name, size in parts.items())
    count = program.mesh.size
    devices = f"each of {count} devices" if count > 1 else "the device"
    return f"on {devices} {sizes}{_available(program.mesh.devices.flat[0])}"


def _available(device) -> str:
    """The memory of the host or the device, in brackets; empty where it is not known."""
    with contextlib.suppress(Exception):
        if device.platform == "cpu":
            return f" (the host has {readable(host_memory())})"
        return f" (a device has {readable(device.memory_stats()['bytes_limit'])})"
    return ""
