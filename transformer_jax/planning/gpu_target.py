"""Hosts of GPUs to compile for. XLA's compiler for CUDA needs neither a GPU nor a driver.

A target is a description of the GPU as XLA's `GpuTargetConfigProto`. What depends on the compute
capability is in section "Technical Specifications per Compute Capability" of the CUDA C++
Programming Guide.
"""

import importlib.util
import os
from importlib import metadata

from transformer_jax import hardware
from transformer_jax.config import UserError

NAMES = tuple(name for name, chip in hardware.NAMES.items() if chip.multiprocessors)
EXAMPLES = "h100:8 (a host of 8), h100:8x64 (64 hosts)"
# By compute capability: the threads, bytes of shared memory and float32 units of a multiprocessor.
_LIMITS = {
    "8.0": (2048, 164 * 2**10, 64),
    "8.6": (1536, 100 * 2**10, 128),
    "8.9": (1536, 100 * 2**10, 128),
    "9.0": (2048, 228 * 2**10, 128),
    "10.0": (2048, 228 * 2**10, 128),
}
_RESERVED = 1024  # bytes of the shared memory of a multiprocessor, for the system
# A real compilation does more.
NOTE = (
    "compiled without autotuning, which needs the GPU: on it, XLA also measures kernels and takes "
    "the fastest, for some minutes; times and temporaries may become smaller"
)
# By JAX's plugin for CUDA, the preferred one first: the releases of CUDA and cuDNN for which it
# compiles, without which XLA leaves kernels out.
_RELEASES = {"xla_cuda13": ("13.0.0", (9, 12, 0)), "xla_cuda12": ("12.8.0", (9, 10, 0))}


def prepare(name: str) -> None:
    """Sets the environment variables of jax. Call it before jax is imported.

    Raises UserError for a bad name or if the compiler is not installed.
    """
    sizes(name)
    if installed_plugin() is None:
        raise UserError(f"--topology needs the GPU compiler: {_install()}")
    # No GPU is needed to compile, and one that is there stays free.
    os.environ.update(JAX_PLATFORMS="cpu", CUDA_VISIBLE_DEVICES="")


def installed_plugin() -> str | None:
    """Returns the name of JAX's plugin for CUDA, which has the compiler; None without one."""
    package = importlib.util.find_spec("jax_plugins")
    folders = package.submodule_search_locations if package else []
    found = (
        name for name in _RELEASES if any(os.path.isdir(os.path.join(x, name)) for x in folders)
    )
    return next(found, None)


def devices(name: str) -> list:
    """Returns the GPUs of `name`, such as "h100:8x64", to compile for.

    Raises UserError if jax does not take the installed compiler.
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
        # jax logs why it ignores a plugin; the likely reason is that it is of another release
        raise UserError(
            f"--topology={name}: jax ignores the GPU compiler that is installed: {_install()}"
        ) from None
    return topology.devices


def _install() -> str:
    """Returns the command that installs the compiler of this jax release."""
    release = metadata.version("jax")
    if plugin := installed_plugin():
        return f"pip install 'jax[{plugin.removeprefix('xla_')}]=={release}'"
    return f"pip install 'jax[cuda13]=={release}', or 'jax[cuda12]=={release}' beside CUDA 12"


def sizes(name: str) -> tuple[hardware.Chip, int, int]:
    """Returns the chip, the GPUs of a host and the hosts. Raises UserError for a bad name."""
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
    """Returns the description of a GPU for the compiler in `plugin`, as protocol buffer text."""
    parts = chip.multiprocessors
    threads, shared, units = _LIMITS[parts.capability]
    major, minor = parts.capability.split(".")
    kind = hardware.kind(chip)
    cuda, cudnn = _RELEASES[plugin]
    info = {
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
    """Returns the fields of a message in the text format of protocol buffers."""
    lines = []
    for name, value in fields.items():
        if isinstance(value, dict):
            lines.append(f"{name} {{ {_text(value)} }}")
        else:
            lines.append(f'{name}: "{value}"' if isinstance(value, str) else f"{name}: {value}")
    return "\n".join(lines)
