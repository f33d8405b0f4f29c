"""Out-of-memory errors as one line: what was being done, the sizes involved, and remedies."""

import contextlib
import errno
import math
import pathlib
import re
import traceback
from collections.abc import Iterator

from ml_collections import ConfigDict

from transformer_jax.config import RunError

# JAX is imported where it is used, because the command line, which imports this module, sets
# environment variables that JAX reads when it is imported.

# --------------------------------------------------------------------------------------------------
# Recognizing out-of-memory errors, and the parts of the line about them.
#
# The line has the same form whether the host or a device has run out of memory. XLA raises
# JaxRuntimeError, while NumPy and Python raise MemoryError.

_JAX_ERRORS = ("JaxRuntimeError", "XlaRuntimeError")  # the name depends on the release of jax
# XLA, CUDA and NumPy name the size in different words, and in bytes or in larger units.
_SIZE = re.compile(
    r"(?:allocat\w*|reserve|Used|request for)[^\d\n]{0,20}"
    r"([\d.]*\d) ?([KMGTP]?)(?:i?B|bytes)?\b",
    re.IGNORECASE,
)
_UNITS = "KMGTP"


def ran_out(error: BaseException | None) -> bool:
    """Returns whether an error, or its cause, says that memory has run out."""
    if error is None:
        return False
    text = str(error).lower()
    exhausted = "resource_exhausted" in text and ("memory" in text or "allocat" in text)
    from_jax = type(error).__name__ in _JAX_ERRORS and (exhausted or "out of memory" in text)
    from_system = isinstance(error, OSError) and error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or from_jax or from_system or ran_out(error.__cause__)


def requested(error: BaseException) -> int | None:
    """Returns the number of bytes that the failed request asked for, if the error says so."""
    match = _SIZE.search(str(error))
    if match is None:
        return requested(error.__cause__) if error.__cause__ else None
    power = 1 + _UNITS.index(match[2].upper()) if match[2] else 0
    return int(float(match[1]) * 1024**power)


def readable(size: float) -> str:
    """Returns a number of bytes with its unit, such as "2.0 KiB"."""
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"
        size /= 1024


def host_memory() -> int | None:
    """Returns the number of bytes that this process can use, or None if the system does not say.

    It is the memory of the machine, or the limit of the container if that is smaller.
    """
    sizes = []
    with contextlib.suppress(OSError, ValueError):
        text = pathlib.Path("/proc/meminfo").read_text()
        kibibytes = [
            int(re.search(rf"{name}: +(\d+)", text)[1]) for name in ("MemTotal", "SwapTotal")
        ]
        sizes.append(1024 * sum(kibibytes))
    # The limit of the container, by version 2 or version 1 of cgroups. "max" is not a number, and
    # means that there is no limit.
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            sizes.append(int(pathlib.Path("/sys/fs/cgroup", name).read_text()))
    return min(sizes, default=None)


def line(error: BaseException, activity: str, use: str, remedies: str) -> str:
    """Returns the line about an error. `activity`, `use` and `remedies` may be empty."""
    size = requested(error)
    request = f"{readable(size)} requested" if size else "the size of the request is not known"
    start = f"out of memory {activity}" if activity else "out of memory"
    return "; ".join(part for part in (f"{start}: {request}", use, remedies) if part)


def training_remedies(config: ConfigDict, runs: int = 1) -> str:
    """Returns a text with what to try in training, in order; `runs` train together."""
    train = config.train
    flags = [f"fewer runs together (now {runs})"] if runs > 1 else []
    accumulation = _next_accumulation(train)
    # All microbatches are in a pipeline together, so that more of them save nothing.
    if accumulation and config.mesh.pipeline == 1:
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
    """Returns the next larger number of microbatches that divides the batches, or None."""
    for number in range(train.accumulation + 1, train.batch + 1):
        if train.batch % number == 0 and train.first_batch % number == 0:
            return number
    return None


def decoding_remedies(config: ConfigDict) -> str:
    """Returns a text with the flags to try in decoding, in order."""
    decode = config.decode
    flags = [f"--config.decode.batch={max(decode.batch // 2, 1)} or less (now {decode.batch})"]
    if decode.beam > 1:
        flags.append(f"--config.decode.beam={decode.beam // 2} or less (now {decode.beam})")
    return f"try, in this order: {'; '.join(flags)}"


# --------------------------- the line about training: what ran out of memory, and the memory in use

# (part of the name of a module, part of the name of a function, activity). The first match counts.
# The names are functions on the call stack, so that renaming one changes this table.
_ACTIVITIES = (
    ("training.checkpoint", "restore", "restoring a checkpoint"),
    ("training.checkpoint", "_read", "restoring a checkpoint"),
    ("training.checkpoint", "", "saving a checkpoint"),
    ("training.step", "init", "initializing parameters and optimizer state"),
    ("training.trainer", "_evaluat", "in an evaluation"),
    ("training.trainer", "__call__", "in an update"),
    ("training.memory", "_check_host", "before the start"),
    ("transformer_jax.inference", "", "decoding in an evaluation"),
    ("transformer_jax.data", "", "reading the data"),
)


@contextlib.contextmanager
def explained(task, program, runs: int = 1) -> Iterator[None]:
    """In the context, turns an out-of-memory error in training into a one-line RunError.

    `runs` is the number of runs that train together.
    """
    try:
        _check_host(program, runs)
        yield
    except Exception as error:
        if isinstance(error, RunError) or not ran_out(error):
            raise
        activity = _activity(error)
        # If the compilation itself ran out of memory, `_use` must not compile again.
        compiled = activity == "in an update" and "compil" not in str(error)
        use = _use(program, compiled)
        remedies = training_remedies(task.config, runs)
        raise RunError(line(error, activity, use, remedies)) from None


def _check_host(program, runs: int) -> None:
    """Raises MemoryError if the devices are CPUs and the host can't hold the states of the runs.

    Linux overcommits memory: it would grant the request, and kill the process without a message
    when the process writes to the memory.
    """
    import jax

    device = program.mesh.devices.flat[0]
    available = host_memory()
    index = jax.process_index()
    num_local = sum(local.process_index == index for local in program.mesh.devices.flat)
    needed = sum(_state(program).values()) * num_local * runs
    if device.platform == "cpu" and available and needed > available:
        raise MemoryError(f"Unable to allocate {needed} bytes")


def _activity(error: BaseException) -> str:
    """Returns what the training was doing when the error was raised.

    This is the entry of the table for the innermost function on the call stack that has one.
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
    """Returns {purpose: bytes of the state on one device}."""
    return {
        "parameters": _bytes(program.state.params),
        "optimizer state": _bytes(program.state.opt_state),
    }


def _bytes(tree) -> int:
    import jax

    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def _use(program, compiled: bool) -> str:
    """Returns a text about the memory that the run needs on each device, and how much there is.

    If the step `compiled`, it includes the activations.
    """
    parts = _state(program)
    # On an exhausted machine this may fail in any way, and the line then does without it.
    with contextlib.suppress(Exception):
        if compiled:
            step = program.train_step.lower(program.state, program.batch).compile()
            parts["activations of an update"] = step.memory_analysis().temp_size_in_bytes
    sizes = ", ".join(f"{name} {readable(size)}" for name, size in parts.items())
    count = program.mesh.size
    devices = f"each of {count} devices" if count > 1 else "the device"
    return f"on {devices} {sizes}{_available(program.mesh.devices.flat[0])}"


def _available(device) -> str:
    """Returns the memory of the host or device, in parentheses; empty if it is unknown."""
    with contextlib.suppress(Exception):
        if device.platform == "cpu":
            return f" (the host has {readable(host_memory())})"
        return f" (a device has {readable(device.memory_stats()['bytes_limit'])})"
    return ""
