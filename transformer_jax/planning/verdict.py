"""An estimate in words: where the memory goes, what bounds the speed, whether it fits, and what
would make it fit.
"""

import copy

from transformer_jax.config import UserError, set_key
from transformer_jax.planning.estimate import Estimate, arguments
from transformer_jax.training.loop import Program

_GB = 1e9


def lines(config, task, program, found: Estimate) -> list[str]:
    return [
        *_memory(found),
        *_speed(found),
        _verdict(found),
        *([] if found.fits is not False else advice(config, task, program, found)),
    ]


def _memory(found: Estimate) -> list[str]:
    rows = [
        *found.consumers.items(),
        ("temporaries", found.temporaries),
        ("live at once", found.peak),
    ]
    return [
        "memory of a device",
        *(
            f"  {name:<16} {'unknown' if size is None else f'{size / _GB:.3f} GB'}"
            for name, size in rows
        ),
    ]


def _speed(found: Estimate) -> list[str]:
    if found.roofline is None:
        return []
    line = found.roofline
    return [
        f"an update takes at least (each limit by itself, on {found.devices} x {found.chip.name})",
        *(
            f"  {name:<16} {1e3 * getattr(line, f'{name}_s'):.2f} ms"
            for name in ("compute", "memory", "network")
        ),
        f"  bound by {line.bound}: at most {found.mfu:.0%} of the peak (MFU)",
    ]


def _verdict(found: Estimate) -> str:
    if found.fits is None:
        return "whether it fits, and how fast it could be, is not known: these devices are in no table of chips. --topology=v5e:4x4 and the like compile for TPUs"
    if found.fits:
        return f"it fits: {found.peak / _GB:.1f} of the {found.chip.memory / _GB:.1f} GB of a {found.chip.name}"
    largest = sorted(
        {**found.consumers, "temporaries": found.temporaries or 0}.items(), key=lambda one: -one[1]
    )[:2]
    shown = " and ".join(f"{name} ({size / _GB:.1f} GB)" for name, size in largest)
    needs = f"{found.peak / _GB:.1f} GB" if found.peak else "more than there is"
    return f"it does not fit: it needs {needs}, a {found.chip.name} has {found.chip.memory / _GB:.1f} GB. Most of it: {shown}"


def advice(config, task, program, found: Estimate) -> list[str]:
    """What would make less of the largest consumers, the surest first; only what this config does
    not do yet.
    """
    sizes, devices, said = program.mesh.shape, found.devices, []
    state = found.consumers["parameters"] + found.consumers["optimizer state"]
    rows = sizes["data"] * sizes["fsdp"]
    if sizes["data"] > 1 and state > 0.05 * found.chip.memory:
        if other := _with(config, task, program, {"mesh.data": 1, "mesh.fsdp": rows}):
            less = arguments(other)
            said.append(
                f"--config.mesh.data=1 --config.mesh.fsdp={rows}: parameters and optimizer state from {state / _GB:.1f} to "
                f"{(less['parameters'] + less['optimizer state']) / _GB:.1f} GB a device"
            )
    accumulation, here = (
        config.train.accumulation,
        config.train.batch // config.train.accumulation // rows,
    )
    if here > 1:
        said.append(
            f"--config.train.accumulation={accumulation * here}: one row a device at a time instead of {here}, with the same result"
        )
    if config.model.get("remat", "full") != "full":
        said.append(
            "--config.model.remat=full: keeps each layer's input alone and computes the rest again, for a third more work"
        )
    if config.model.get("dtype") == "float32":
        said.append("--config.model.dtype=bfloat16: halves the activations")
    # in float32, over all devices that do not repeat each other
    whole = state * devices // (sizes["data"] * sizes["sequence"])
    least = -(-whole // int(found.chip.memory))
    if least > devices:
        said.append(
            f"more chips: parameters and optimizer state alone are {whole / _GB:.0f} GB, {least} chips' memory"
        )
    elif not said:
        said.append("more chips, split by config.mesh.fsdp or config.mesh.tensor")
    return ["what would help:", *(f"  {one}" for one in said)]


def _with(config, task, program, changes):
    """The program under these changes to its config; None where the mesh does not divide it."""
    other = copy.deepcopy(config)
    for key, value in changes.items():
        set_key(other, key, value)
    try:
        return Program.of(other, task, program.mesh.devices.flatten())
    except UserError:
        return None
