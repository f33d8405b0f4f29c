"""Topologies of TPUs and GPUs for compiling on a machine that has neither."""

import importlib.util
import math
import os
from importlib import metadata

from transformer_jax import hardware
from transformer_jax.config import UserError

# ------------------------------------------------------------------------------------ hosts of GPUs

# XLA's compiler for CUDA needs neither a GPU nor a driver, but a description of the target, XLA's
# `GpuTargetConfigProto`. The limits for each compute capability are taken from the section
# "Technical Specifications per Compute Capability" of the CUDA C++ Programming Guide.

NAMES = tuple(name for name, chip in hardware.NAMES.items() if chip.multiprocessors)
EXAMPLES = "h100:8 (a host of 8), h100:8x64 (64 hosts)"
# {compute capability: threads, bytes of shared memory and float32 units of a multiprocessor}
_LIMITS = {
    "8.0": (2048, 164 * 2**10, 64),
    "8.6": (1536, 100 * 2**10, 128),
    "8.9": (1536, 100 * 2**10, 128),
    "9.0": (2048, 228 * 2**10, 128),
    "10.0": (2048, 228 * 2**10, 128),
}
_RESERVED = 1024  # bytes of a multiprocessor's shared memory that CUDA reserves
# Printed because the compilation on a real GPU does more.
NOTE = (
    "compiled without autotuning, which needs the GPU: on it, XLA also measures kernels and takes "
    "the fastest, for some minutes; times and temporaries may become smaller"
)
# {JAX's plugin for CUDA: releases of CUDA and cuDNN}, the preferred plugin first. XLA needs these
# releases in the description of the target; otherwise it leaves out the rewrites that use them.
_RELEASES = {"xla_cuda13": ("13.0.0", (9, 12, 0)), "xla_cuda12": ("12.8.0", (9, 10, 0))}


def prepare_gpu(name: str) -> None:
    """Sets the environment variables of jax; must be called before jax is imported.

    Raises UserError for an invalid name, or if the compiler is not installed.
    """
    sizes(name)
    if installed_plugin() is None:
        raise UserError(f"--topology needs the GPU compiler: {_install()}")
    # The CPU, because compiling needs no GPU: if this machine has one, it is left free.
    os.environ.update(JAX_PLATFORMS="cpu", CUDA_VISIBLE_DEVICES="")


def installed_plugin() -> str | None:
    """Returns the name of JAX's plugin for CUDA, which has the compiler; None if there is none."""
    # Looked for without an import, because the environment must be set before jax is imported.
    package = importlib.util.find_spec("jax_plugins")
    folders = package.submodule_search_locations if package else []
    found = (
        name for name in _RELEASES if any(os.path.isdir(os.path.join(x, name)) for x in folders)
    )
    return next(found, None)


def gpu_devices(name: str) -> list:
    """Returns the GPUs of a topology such as "h100:8x64" to compile for.

    Raises UserError if jax does not accept the installed compiler.
    """
    from jax.experimental import topologies

    chip, in_host, hosts = sizes(name)
    try:
        topology = topologies.get_topology_desc(
            platform="cuda",
            topology=f"1x{hosts}x{in_host}",
            target_config=target(chip, installed_plugin()),
        )
    except NotImplementedError:
        # The message names the likely reason, another release, because jax only logs why it ignores
        # a plugin.
        raise UserError(
            f"--topology={name}: jax ignores the GPU compiler that is installed: {_install()}"
        ) from None
    return topology.devices


def _install() -> str:
    """Returns the command that installs the GPU compiler for this release of jax."""
    release = metadata.version("jax")
    if plugin := installed_plugin():
        return f"pip install 'jax[{plugin.removeprefix('xla_')}]=={release}'"
    return f"pip install 'jax[cuda13]=={release}', or 'jax[cuda12]=={release}' beside CUDA 12"


def sizes(name: str) -> tuple[hardware.Chip, int, int]:
    """Returns the chip, the number of GPUs of a host, and the number of hosts.

    Raises UserError for an invalid name.
    """
    gpu, _, shape = name.partition(":")
    numbers = shape.split("x")
    if len(numbers) > 2 or not all(number.isdecimal() and int(number) for number in numbers):
        raise UserError(
            f"--topology={name}: must be {gpu}:G for a host of G GPUs, or {gpu}:GxH for H hosts, "
            f"as in {EXAMPLES}"
        )
    in_host, hosts = (*map(int, numbers), 1)[:2]
    chip = hardware.NAMES[gpu]
    if hosts > 1 and chip.network_bandwidth is None:
        raise UserError(
            f"--topology={name}: the network of hosts with {gpu} is not known; use {gpu}:G"
        )
    return chip, in_host, hosts


def target(chip: hardware.Chip, plugin: str) -> str:
    """Returns the description of a GPU for the compiler in `plugin`, as text-format protobuf."""
    parts = chip.multiprocessors
    threads, shared, units = _LIMITS[parts.capability]
    major, minor = parts.capability.split(".")
    kind = hardware.kind(chip)
    cuda, cudnn = _RELEASES[plugin]
    info = {
        # The name that jax gives to the real GPU, by which `hardware.of` finds the chip.
        "name": kind,
        "core_count": parts.count,
        "fpus_per_core": units,
        "clock_rate_ghz": parts.clock,
        "device_memory_size": int(chip.memory),
        "memory_bandwidth": int(chip.memory_bandwidth),
        "l2_cache_size": parts.l2_cache,
        "cuda_compute_capability": {"major": int(major), "minor": int(minor)},
        "threads_per_warp": 32,
        "threads_per_block_limit": 1024,
        "threads_per_core_limit": threads,
        "registers_per_core_limit": 2**16,
        "registers_per_block_limit": 2**16,
        # The limit that CUDA sets by default: a kernel must ask for more, up to the line below.
        "shared_memory_per_block": 48 * 2**10,
        "shared_memory_per_block_optin": shared - _RESERVED,
        "shared_memory_per_core": shared,
        "block_dim_limit_x": 2**31 - 1,
        "block_dim_limit_y": 2**16 - 1,
        "block_dim_limit_z": 2**16 - 1,
        "driver_version": cuda,
        "runtime_version": cuda,
        "compile_time_toolkit_version": cuda,
        "dnn_version": ".".join(map(str, cudnn)),
    }
    return _text(
        {
            "gpu_device_info": info,
            "platform_name": "CUDA",
            "dnn_version_info": dict(zip(("major", "minor", "patch"), cudnn)),
            "device_description_str": kind,
        }
    )


def _text(fields: dict) -> str:
    """Returns the fields of a message in the text format of protobuf."""
    lines = []
    for name, value in fields.items():
        if isinstance(value, dict):
            lines.append(f"{name} {{ {_text(value)} }}")
        else:
            lines.append(f'{name}: "{value}"' if isinstance(value, str) else f"{name}: {value}")
    return "\n".join(lines)


# -------------------------------------------- topologies by name: slices of TPUs, and hosts of GPUs

_NUM_SIDES = {"v4": 3, "v5e": 2, "v5p": 3, "v6e": 2}  # dimensions of the torus or mesh of a slice
_EXAMPLES = f"v4:4x4x4, v5e:4x4, v5p:4x4x4, v6e:16x16, {EXAMPLES}"


def prepare(name: str) -> None:
    """Sets the environment variables of jax and the compiler; must be called before importing jax.

    Raises UserError for an invalid name, or if the compiler is not installed.
    """
    if is_gpu(name):
        prepare_gpu(name)
        return
    _sides(_slices(name)[1])
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(f"--topology needs the TPU compiler, libtpu: {install()}")
    os.environ.update(
        JAX_PLATFORMS="cpu",  # compiling needs no TPU
        # Otherwise libtpu would query the cloud's metadata server. Any valid type will do.
        TPU_SKIP_MDS_QUERY="1",
        TPU_WORKER_HOSTNAMES="localhost",
        TPU_ACCELERATOR_TYPE="v5litepod-16",
        ALLOW_MULTIPLE_LIBTPU_LOAD="1",  # several processes may compile, since none opens a chip
        TPU_STDERR_LOG_LEVEL="4",
        TPU_MIN_LOG_LEVEL="4",
    )


def install() -> str:
    """Returns the command that installs libtpu for this release of jax.

    A newer libtpu may write programs that this jax cannot read.
    """
    return f"pip install 'jax[tpu]=={metadata.version('jax')}'"


def devices(name: str) -> list:
    """Returns the devices of a TPU slice such as "v5p:4x4x4", of two slices such as
    "2*v5p:4x4x4", or of hosts of GPUs.

    Raises UserError if libtpu does not support the slice.
    """
    if is_gpu(name):
        return gpu_devices(name)
    from jax.experimental import topologies

    slices, name = _slices(name)
    sides = _sides(name)
    # Without this option there would be two devices, but jax sees both cores of a v4 chip as one.
    options = {"chip_config_name": "megacore"} if name.startswith("v4:") else {}
    if math.prod(sides) < 4:  # fewer than a host has, of which libtpu must be told
        options["chips_per_host_bounds"] = tuple(sides) + (1,) * (3 - len(sides))
    if slices > 1:
        options["num_slices"] = slices
    try:
        return topologies.get_topology_desc(name, platform="tpu", **options).devices
    except Exception as error:  # jax raises XLA's status, or its own wrapper of it
        raise UserError(
            f"--topology={name}: unknown slice; examples are {_EXAMPLES} "
            f"(libtpu: {str(error).splitlines()[0]})"
        ) from None


def is_gpu(name: str) -> bool:
    """Whether the name is a topology of GPUs."""
    return name.partition(":")[0] in NAMES


def _slices(name: str) -> tuple[int, str]:
    """Returns the number of slices, and the topology of each, from a name such as "2*v5e:16x16"."""
    count, star, slice_name = name.rpartition("*")
    if star and not (count.isdecimal() and int(count)):
        raise UserError(f"--topology={name}: several slices are written as in 2*{slice_name}")
    return (int(count) if star else 1), slice_name


def _sides(name: str) -> list[int]:
    generation, _, shape = name.partition(":")
    if generation not in _NUM_SIDES:
        raise UserError(
            f"--topology={name}: no chip {generation!r}; there are: "
            f"{', '.join((*_NUM_SIDES, *NAMES))}, as in {_EXAMPLES}"
        )
    sides = shape.split("x")
    num_sides = _NUM_SIDES[generation]
    if len(sides) != num_sides or not all(side.isdecimal() and int(side) for side in sides):
        raise UserError(
            f"--topology={name}: the shape of a slice of {generation} is "
            f"{'x'.join('ABC'[:num_sides])}, as in {_EXAMPLES}"
        )
    return [int(side) for side in sides]
