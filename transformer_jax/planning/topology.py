"""TPU slices and hosts of GPUs to compile for, on a machine that has neither.

libtpu compiles for TPUs, and gpu_target.py has the compiler for GPUs.
"""

import importlib.util
import math
import os
from importlib import metadata

from transformer_jax.config import UserError
from transformer_jax.planning import gpu_target

_NUM_SIDES = {"v4": 3, "v5e": 2, "v5p": 3, "v6e": 2}  # sides of a slice
_EXAMPLES = f"v4:4x4x4, v5e:4x4, v5p:4x4x4, v6e:16x16, {gpu_target.EXAMPLES}"


def prepare(name: str) -> None:
    """Sets the environment variables of jax and the compiler. Call it before jax is imported.

    Raises UserError for a bad name or if the compiler is not installed.
    """
    if is_gpu(name):
        gpu_target.prepare(name)
        return
    _sides(name)
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(f"--topology needs the TPU compiler, libtpu: {install()}")
    os.environ.update(
        JAX_PLATFORMS="cpu",  # no TPU is needed to compile
        # otherwise libtpu asks the cloud's metadata server; any type is valid
        TPU_SKIP_MDS_QUERY="1",
        TPU_WORKER_HOSTNAMES="localhost",
        TPU_ACCELERATOR_TYPE="v5litepod-16",
        ALLOW_MULTIPLE_LIBTPU_LOAD="1",  # several processes may compile: none opens a chip
        TPU_STDERR_LOG_LEVEL="4",
        TPU_MIN_LOG_LEVEL="4",
    )


def install() -> str:
    """Returns the command that installs the libtpu of this jax release.

    This jax may be unable to read the programs of a newer libtpu.
    """
    return f"pip install 'jax[tpu]=={metadata.version('jax')}'"


def devices(name: str) -> list:
    """Returns the devices of a slice such as "v5p:4x4x4", or of hosts of GPUs, to compile for.

    Raises UserError if libtpu does not support the slice.
    """
    if is_gpu(name):
        return gpu_target.devices(name)
    from jax.experimental import topologies

    sides = _sides(name)
    # jax on a v4 has both cores of a chip as one device
    options = {"chip_config_name": "megacore"} if name.startswith("v4:") else {}
    if math.prod(sides) < 4:  # fewer than the chips of a host
        options["chips_per_host_bounds"] = tuple(sides) + (1,) * (3 - len(sides))
    try:
        return topologies.get_topology_desc(name, platform="tpu", **options).devices
    except Exception as error:  # jax raises XLA's status, or its own wrapper of it
        raise UserError(
            f"--topology={name}: unknown slice; examples are {_EXAMPLES} "
            f"(libtpu: {str(error).splitlines()[0]})"
        ) from None


def is_gpu(name: str) -> bool:
    """Whether a topology is one of GPUs."""
    return name.partition(":")[0] in gpu_target.NAMES


def _sides(name: str) -> list[int]:
    generation, _, shape = name.partition(":")
    if generation not in _NUM_SIDES:
        raise UserError(
            f"--topology={name}: no chip {generation!r}; there are: "
            f"{', '.join((*_NUM_SIDES, *gpu_target.NAMES))}, as in {_EXAMPLES}"
        )
    sides = shape.split("x")
    num_sides = _NUM_SIDES[generation]
    if len(sides) != num_sides or not all(side.isdecimal() and int(side) for side in sides):
        raise UserError(
            f"--topology={name}: the shape of a slice of {generation} is "
            f"{'x'.join('ABC'[:num_sides])}, as in {_EXAMPLES}"
        )
    return [int(side) for side in sides]
