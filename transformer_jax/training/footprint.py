"""A training that runs out of memory: where, the use of the memory, and remedies."""

import contextlib
import math
import traceback
from collections.abc import Iterator

import jax

from transformer_jax.config import RunError
from transformer_jax.training import memory

# (part of a module's name, part of a function's name, activity). The first that fits counts.
_ACTIVITIES = (
    ("training.checkpoint", "restore", "restoring a checkpoint"),
    ("training.checkpoint", "_read", "restoring a checkpoint"),
    ("training.checkpoint", "", "saving a checkpoint"),
    ("training.state", "init", "initialising parameters and optimizer state"),
    ("training.evaluation", "", "in an evaluation"),
    ("training.updates", "__call__", "in an update"),
    ("training.footprint", "_check_host", "before the start"),
    ("transformer_jax.inference", "", "decoding in an evaluation"),
    ("transformer_jax.data", "", "reading the data"),
)


@contextlib.contextmanager
def explained(config, program) -> Iterator[None]:
    """Raises a lack of memory in the context as a RunError of one line."""
    try:
        _check_host(config, program)
        yield
    except Exception as error:
        if isinstance(error, RunError) or not memory.ran_out(error):
            raise
        activity = _activity(error)
        compiled = activity == "in an update" and "compil" not in str(error)
        use = _use(program, compiled)
        remedies = memory.training_remedies(config)
        raise RunError(memory.line(error, activity, use, remedies)) from None


def _check_host(config, program) -> None:
    """Raises MemoryError where the devices are CPUs and the host can't hold their state.

    Linux would grant such memory, and kill the process when the process writes to it.
    """
    device = program.mesh.devices.flat[0]
    available = memory.of_host()
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
    sizes = ", ".join(f"{name} {memory.readable(size)}" for name, size in parts.items())
    count = program.mesh.size
    devices = f"each of {count} devices" if count > 1 else "the device"
    return f"on {devices} {sizes}{_available(program.mesh.devices.flat[0])}"


def _available(device) -> str:
    """The memory of the host or the device, in brackets; empty where it is not known."""
    with contextlib.suppress(Exception):
        if device.platform == "cpu":
            return f" (the host has {memory.readable(memory.of_host())})"
        return f" (a device has {memory.readable(device.memory_stats()['bytes_limit'])})"
    return ""
