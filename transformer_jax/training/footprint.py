"""A training that runs out of memory: where, what takes the memory, and what to try."""

import contextlib
import math
import traceback
from collections.abc import Iterator

import jax

from transformer_jax.config import RunError
from transformer_jax.training import memory

# (part of a module's name, part of a function's name, what is done there); the first that fits
_PLACES = (
    ("training.checkpoint", "restore", "restoring a checkpoint"),
    ("training.checkpoint", "_read", "restoring a checkpoint"),
    ("training.checkpoint", "", "saving a checkpoint"),
    ("training.state", "init", "initialising parameters and optimizer state"),
    ("training.evaluation", "", "in an evaluation"),
    ("training.loop", "_evaluate", "in an evaluation"),
    ("training.loop", "__call__", "in an update"),
    ("training.footprint", "_check_host", "before the start"),
    ("transformer_jax.inference", "", "decoding in an evaluation"),
    ("transformer_jax.data", "", "reading the data"),
)


@contextlib.contextmanager
def explained(config, program) -> Iterator[None]:
    """A lack of memory within becomes a RunError of one line."""
    try:
        _check_host(config, program)
        yield
    except Exception as error:
        if isinstance(error, RunError) or not memory.ran_out(error):
            raise
        place = _place(error)
        takes = _takes(program, compiled=place == "in an update" and "compil" not in str(error))
        raise RunError(memory.line(error, place, takes, memory.training_remedies(config))) from None


def _check_host(config, program) -> None:
    """Raises MemoryError where the host can't hold the state of its devices.

    Linux would grant the memory, and kill the process when that is written to.
    """
    device, available = program.mesh.devices.flat[0], memory.of_host()
    own = [d for d in program.mesh.devices.flat if d.process_index == jax.process_index()]
    needed = sum(_state(program).values()) * len(own)
    if device.platform == "cpu" and available and needed > available:
        raise MemoryError(f"Unable to allocate {needed} bytes")


def _place(error: BaseException) -> str:
    """Where in a training the error arose, by the innermost of our functions that is known."""
    place = "in training"
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module, function = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        known = [words for part, name, words in _PLACES if part in module and name in function]
        place = known[0] if known else place
    return place


def _state(program) -> dict[str, int]:
    """Bytes of the state on a device, by what they are for."""
    return {
        "parameters": _bytes(program.state.params),
        "optimizer state": _bytes(program.state.opt_state),
    }


def _bytes(tree) -> int:
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def _takes(program, compiled: bool) -> str:
    """What the run takes of each device; activations where an update is `compiled`."""
    parts = _state(program)
    with contextlib.suppress(Exception):  # whatever can't be had on an exhausted machine
        step = compiled and program.train_step.lower(program.state, program.batch).compile()
        if step:
            parts["activations of an update"] = step.memory_analysis().temp_size_in_bytes
    sizes = ", ".join(f"{name} {memory.shown(size)}" for name, size in parts.items())
    count = program.mesh.size
    devices = f"each of {count} devices" if count > 1 else "the device"
    return f"on {devices} {sizes}{_available(program.mesh.devices.flat[0])}"


def _available(device) -> str:
    with contextlib.suppress(Exception):
        if device.platform == "cpu":
            return f" (the host has {memory.shown(memory.of_host())})"
        return f" (a device has {memory.shown(device.memory_stats()['bytes_limit'])})"
    return ""
