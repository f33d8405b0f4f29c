"""An estimate in words: memory, speed, whether the program fits, and what would make it fit."""

import copy

from transformer_jax.config import UserError, set_key
from transformer_jax.planning.estimate import Estimate, arguments
from transformer_jax.training.program import Program

_GB = 1e9


def lines(config, task, program, estimate: Estimate) -> list[str]:
    """Returns the lines about an estimate. They end with advice if the program does not fit."""
    return [
        *_memory(estimate),
        *_speed(estimate),
        _verdict(estimate),
        *([] if estimate.fits is not False else advice(config, task, program, estimate)),
    ]


def _memory(estimate: Estimate) -> list[str]:
    sizes = {
        **estimate.consumers,
        "temporaries": estimate.temporaries,
        "live at once": estimate.peak,
    }
    rows = (
        f"  {name:<16} {'unknown' if size is None else f'{size / _GB:.3f} GB'}"
        for name, size in sizes.items()
    )
    return ["memory of a device", *rows]


def _speed(estimate: Estimate) -> list[str]:
    roofline = estimate.roofline
    if roofline is None:
        return []
    devices = f"{estimate.devices} x {estimate.chip.name}"
    return [
        f"an update takes at least (each limit by itself, on {devices})",
        f"  {'compute':<16} {1e3 * roofline.compute_s:.2f} ms",
        f"  {'memory':<16} {1e3 * roofline.memory_s:.2f} ms",
        f"  {'network':<16} {1e3 * roofline.network_s:.2f} ms",
        f"  bound by {roofline.bound}: at most {estimate.mfu:.0%} of the peak (MFU)",
    ]


def _verdict(estimate: Estimate) -> str:
    if estimate.fits is None:
        return (
            "whether it fits, and how fast it could be, is not known: these devices are in no "
            "table of chips. --topology=v5e:4x4 and the like compile for TPUs"
        )
    chip = f"{estimate.chip.memory / _GB:.1f} GB"
    if estimate.fits:
        return f"it fits: {estimate.peak / _GB:.1f} of the {chip} of a {estimate.chip.name}"
    sizes = {**estimate.consumers, "temporaries": estimate.temporaries or 0}
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:2]
    consumers = " and ".join(f"{name} ({size / _GB:.1f} GB)" for name, size in largest)
    needs = f"{estimate.peak / _GB:.1f} GB" if estimate.peak else "more than there is"
    return (
        f"it does not fit: it needs {needs}, a {estimate.chip.name} has {chip}. "
        f"Most of it: {consumers}"
    )


def advice(config, task, program, estimate: Estimate) -> list[str]:
    """Returns changes of the config that reduce the largest consumers, the surest first."""
    sizes = program.mesh.shape
    state = estimate.consumers["parameters"] + estimate.consumers["optimizer state"]
    advised = [
        *_sharded_state(config, task, program, estimate),
        *_smaller_activations(config, sizes["data"] * sizes["fsdp"]),
    ]
    # in float32, over all devices with different parts of the state
    total = state * estimate.devices // (sizes["data"] * sizes["sequence"])
    min_devices = -(-total // int(estimate.chip.memory))
    if min_devices > estimate.devices:
        advised.append(
            f"more chips: parameters and optimizer state alone are {total / _GB:.0f} GB, "
            f"{min_devices} chips' memory"
        )
    elif not advised:
        advised.append("more chips, split by config.mesh.fsdp or config.mesh.tensor")
    return ["what would help:", *(f"  {line}" for line in advised)]


def _sharded_state(config, task, program, estimate: Estimate) -> list[str]:
    """Returns the advice to shard the state over fsdp, where that applies."""
    sizes = program.mesh.shape
    rows = sizes["data"] * sizes["fsdp"]
    state = estimate.consumers["parameters"] + estimate.consumers["optimizer state"]
    if sizes["data"] == 1 or state <= 0.05 * estimate.chip.memory:
        return []
    sharded = _with(config, task, program, {"mesh.data": 1, "mesh.fsdp": rows})
    if not sharded:
        return []
    consumers = arguments(sharded)
    smaller = consumers["parameters"] + consumers["optimizer state"]
    return [
        f"--config.mesh.data=1 --config.mesh.fsdp={rows}: parameters and optimizer state from "
        f"{state / _GB:.1f} to {smaller / _GB:.1f} GB a device"
    ]


def _smaller_activations(config, rows: int) -> list[str]:
    """Returns the advice on activations. `rows` is the number of devices that split the batch."""
    advised = []
    accumulation = config.train.accumulation
    rows_per_device = config.train.batch // accumulation // rows
    if rows_per_device > 1:
        advised.append(
            f"--config.train.accumulation={accumulation * rows_per_device}: one row a device at a "
            f"time instead of {rows_per_device}, with the same result"
        )
    if config.model.get("remat", "full") != "full":
        advised.append(
            "--config.model.remat=full: keeps each layer's input alone and computes the rest "
            "again, for a third more work"
        )
    if config.model.get("dtype") == "float32":
        advised.append("--config.model.dtype=bfloat16: halves the activations")
    return advised


def _with(config, task, program, changes):
    """Returns the program with changes to its config, or None if the mesh does not divide it."""
    changed = copy.deepcopy(config)
    for key, value in changes.items():
        set_key(changed, key, value)
    try:
        return Program.of(changed, task, program.mesh.devices.flatten())
    except UserError:
        return None
