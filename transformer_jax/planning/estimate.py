"""The memory and the lower bound of the time of a training step, from its compiled program."""

import dataclasses
import os
import re
import time

import jax

from transformer_jax import hardware
from transformer_jax.config import UserError
from transformer_jax.planning import hlo, topology
from transformer_jax.planning.roofline import Roofline, compute_seconds, weight_bytes_read
from transformer_jax.planning.shardings import bytes_per_device

# The least optimization of the TPU compiler takes a quarter to a third of the time. It partitions
# alike: the collectives of GPT-3 175B on v5p:4x4x4 have the same bytes. The peak there was 57.1 GB
# instead of 60.8. For GPT-2 124M on v5e:4x4, with 64 rows and no dropout, it was 9.86 GB instead
# of 9.82. The value is XLA's EFFORT_O0, which jax 0.10 takes as a number alone. The older option
# exec_time_optimization_effort=-1 has the same effect there, but jax 0.11 does not know it.
_LEAST_EFFORT = {"optimization_level": 9}
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclasses.dataclass(frozen=True)
class Estimate:
    """One update of a program on its mesh. Bytes are per device."""

    chip: hardware.Chip | None
    devices: int
    flops: float  # of all devices, by formula
    # bytes of the arguments by purpose, from shapes and shardings
    consumers: dict[str, int]
    arguments: int
    outputs: int | None  # None: the compiler refused the program
    temporaries: int | None
    peak: int | None
    collectives: dict[str, dict[str, int]] | None
    compile_seconds: float
    roofline: Roofline | None  # None: the program was refused, or the chip is unknown
    refused: bool = False  # by the compiler, because the program does not fit

    @property
    def fits(self) -> bool | None:
        """Whether the program fits; None if the memory of the device is unknown."""
        if self.refused:
            return False
        return None if self.chip is None else self.peak <= self.chip.memory

    @property
    def mfu(self) -> float | None:
        """The upper bound of the MFU: the model's FLOPs as a share of the peak rate."""
        return self.roofline and self.flops / (
            self.devices * self.chip.flops * self.roofline.step_s
        )


def arguments(program) -> dict[str, int]:
    """Returns the bytes per device of a step's arguments, by purpose."""
    state = program.state
    counters = (state.step, state.metrics, state.skipped, state.last_skipped, state.memory)
    carry = {} if state.carry is None else {"carry": bytes_per_device(state.carry)}
    return {
        "parameters": bytes_per_device(state.params),
        "optimizer state": bytes_per_device((state.opt_state, counters)),
        **carry,
        "batch": bytes_per_device(program.batch),
    }


def estimate(config, task, program) -> Estimate:
    """Compiles the training step of `program` and returns its measured memory and collectives.

    A program that does not fit gives an estimate with `refused` set.
    """
    device = program.mesh.devices.flat[0]
    known = dict(
        chip=chip_of(device),
        devices=program.mesh.size,
        flops=task.flops(0) * config.train.batch,
        consumers=arguments(program),
    )
    began = time.monotonic()
    try:
        with lowering(program.mesh):
            lowered = program.train_step.lower(program.state, program.batch)
        compiled = compile_lowered(lowered, device.platform)
    except jax.errors.JaxRuntimeError as error:
        check_refusal(error)
        return _refused(known, str(error), time.monotonic() - began)
    seconds = time.monotonic() - began
    memory = compiled.memory_analysis()
    in_host = devices_of_host(program.mesh)
    collectives = hlo.collectives(_text(compiled), program.mesh.size, in_host)
    measured = Estimate(
        **known,
        arguments=memory.argument_size_in_bytes,
        outputs=memory.output_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        peak=live_bytes(memory, device.platform),
        collectives=hlo.summary(collectives),
        compile_seconds=seconds,
        roofline=None,
    )
    if measured.chip is None:
        return measured
    roofline = _roofline(config, task, program, measured, collectives)
    return dataclasses.replace(measured, roofline=roofline)


def chip_of(device) -> hardware.Chip | None:
    """Returns the chip of a device, with the memory that JAX takes; None if it is unknown."""
    chip = hardware.of(device.device_kind)
    if chip is None or device.platform != "gpu":
        return chip
    # JAX takes three quarters of the memory, or the share XLA_PYTHON_CLIENT_MEM_FRACTION.
    taken = float(os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", 0.75)) * chip.memory
    try:
        taken = (device.memory_stats() or {}).get("bytes_limit", taken)
    except jax.errors.JaxRuntimeError:  # a device of a topology
        pass
    return dataclasses.replace(chip, memory=taken)


def live_bytes(memory, platform: str) -> int:
    """Returns the bytes that are live at once."""
    if platform == "tpu":
        # smaller than the sum below: temp_size adds up temporaries that follow each other
        return memory.peak_memory_in_bytes
    return (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes
    )


def _refused(known: dict, message: str, seconds: float) -> Estimate:
    """Returns the estimate of a program that the compiler refused with `message`."""
    taken = sum(known["consumers"].values())
    temporaries = refused_temporaries(message, taken)
    return Estimate(
        **known,
        arguments=taken,
        outputs=None,
        temporaries=temporaries,
        peak=temporaries and taken + temporaries,
        collectives=None,
        compile_seconds=seconds,
        roofline=None,
        refused=True,
    )


def _roofline(
    config, task, program, measured: Estimate, collectives: list[hlo.Collective]
) -> Roofline:
    chip = measured.chip
    weights = weight_bytes_read(config, program, measured.consumers["parameters"])
    in_microbatch = 2 * (measured.peak - measured.arguments) + weights
    touched = measured.arguments + measured.outputs + config.train.accumulation * in_microbatch
    return Roofline(
        compute_seconds(config, task, chip, measured.devices),
        touched / chip.memory_bandwidth,
        sum(each.count * _seconds(each, chip) for each in collectives),
    )


def _seconds(collective: hlo.Collective, chip: hardware.Chip) -> float:
    """Returns the least time of a collective. Its parts in a host and between hosts may overlap."""
    within = collective.moved / chip.link_bandwidth
    between = collective.moved_between_hosts
    return max(within, between / chip.network_bandwidth) if between else within


def devices_of_host(mesh: jax.sharding.Mesh) -> int | None:
    """Returns the GPUs of a host; None for other devices, whose links do not end at a host."""
    devices = mesh.devices.flatten().tolist()
    if devices[0].platform != "gpu":
        return None
    return sum(device.process_index == devices[0].process_index for device in devices)


def _text(compiled) -> str:
    try:
        return compiled.as_text()
    except jax.errors.JaxRuntimeError:  # seen with libtpu 0.0.51 under jax 0.10.2
        raise UserError(
            f"libtpu: this jax cannot read its compiled programs; run {topology.install()}"
        ) from None


def lowering(mesh: jax.sharding.Mesh):
    """Returns the context in which programs for the devices of `mesh` are lowered.

    From jax 0.11 on, Pallas writes a kernel for the GPU that is JAX's default device. Without the
    context that is a device of this machine, perhaps a CPU. An abstract mesh in use would do for
    the kinds of GPU that Pallas knows by name, and an A10G is none of them.
    """
    return jax.default_device(mesh.devices.flat[0])


def compile_lowered(lowered: jax.stages.Lowered, platform: str) -> jax.stages.Compiled:
    """Compiles a program, for a TPU with the least effort."""
    return lowered.compile(_LEAST_EFFORT if platform == "tpu" else None)


def check_refusal(error: jax.errors.JaxRuntimeError) -> None:
    """Raises the error of a compilation, unless it says that the program does not fit."""
    if "RESOURCE_EXHAUSTED" not in str(error):
        raise error


def refused_temporaries(message: str, taken: int) -> int | None:
    """Returns the bytes of temporaries in the TPU compiler's message about a refused program.

    `taken` are the bytes of the arguments. Returns None where the message has no figure.
    """

    def size(match):
        return int(float(match[1]) * _UNITS[match[2]])

    if temporaries := re.search(r"HLO temporaries \(([\d.]+)([KMGT])\)", message):
        return size(temporaries)
    if used := re.search(r"Used ([\d.]+)([KMGT]) of", message):
        return max(size(used) - taken, 0)
    if allocation := re.search(r"Allocation \(size=(\d+)\) would exceed memory", message):
        return int(allocation[1])
    return None
