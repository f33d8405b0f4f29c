"""TPU slices that are not here: libtpu compiles for them on any machine."""

import importlib.util
import math
import os
from importlib import metadata

from transformer_jax.config import UserError

_SIDES = {"v4": 3, "v5e": 2, "v5p": 3, "v6e": 2}  # sides of a slice
_EXAMPLES = "v4:4x4x4, v5e:4x4, v5p:4x4x4, v6e:16x16"


def prepare(name: str) -> None:
    """Sets what jax and libtpu read from the environment; before jax is imported. Raises UserError
    for a bad name or a missing libtpu.
    """
    _sides(name)
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(f"--topology needs the TPU compiler, libtpu: {install()}")
    os.environ.update(
        JAX_PLATFORMS="cpu",  # there is no TPU to compute on: it is only compiled for
        # libtpu would ask the cloud's metadata server; any type will do
        TPU_SKIP_MDS_QUERY="1",
        TPU_WORKER_HOSTNAMES="localhost",
        TPU_ACCELERATOR_TYPE="v5litepod-16",
        ALLOW_MULTIPLE_LIBTPU_LOAD="1",  # no chip is opened, so several may compile at once
        TPU_STDERR_LOG_LEVEL="4",
        TPU_MIN_LOG_LEVEL="4",
    )


def install() -> str:
    """The command that brings the libtpu made for this jax; a newer one may compile what this jax
    can't read.
    """
    return f"pip install 'jax[tpu]=={metadata.version('jax')}'"


def devices(name: str) -> list:
    """The devices of the slice `name`, such as "v5p:4x4x4", to compile for. Raises UserError where
    libtpu knows no such slice.
    """
    from jax.experimental import topologies

    sides = _sides(name)
    # both cores of a chip as one device, as jax has it on a v4
    options = {"chip_config_name": "megacore"} if name.startswith("v4:") else {}
    if math.prod(sides) < 4:  # less than a host's chips
        options["chips_per_host_bounds"] = tuple(sides) + (1,) * (3 - len(sides))
    try:
        return topologies.get_topology_desc(name, platform="tpu", **options).devices
    except Exception as error:  # jax gives XLA's status, or its own wrapping of it
        raise UserError(
            f"--topology={name}: no such slice, there are such as {_EXAMPLES} (libtpu: {str(error).splitlines()[0]})"
        ) from None


def _sides(name: str) -> list[int]:
    generation, _, shape = name.partition(":")
    if generation not in _SIDES:
        raise UserError(
            f"--topology={name}: no TPU {generation!r}; there are: {', '.join(_SIDES)}, as in {_EXAMPLES}"
        )
    sides = shape.split("x")
    if len(sides) != _SIDES[generation] or not all(
        side.isdecimal() and int(side) for side in sides
    ):
        raise UserError(
            f"--topology={name}: the shape of a slice of {generation} is {'x'.join('ABC'[: _SIDES[generation]])}, as in {_EXAMPLES}"
        )
    return [int(side) for side in sides]
