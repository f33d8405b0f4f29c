"""What a training step needs of a device, and how fast it can be at most, before there is a device."""

import copy
import dataclasses
import re
import time

import jax

from transformer_jax import hardware
from transformer_jax.config import UserError
from transformer_jax.planning import hlo, topology
from transformer_jax.planning.shardings import bytes_per_device

# The least optimization the TPU compiler has takes a quarter to a third of the time and partitions
# alike: the collectives' bytes of GPT-3 175B on v5p:4x4x4 are the same. What is live at once there
# was 57.1 GB instead of 60.8; of GPT-2 124M on v5e:4x4, 64 rows without dropout, 9.86 GB instead of
# 9.82.
_QUICKLY = {"exec_time_optimization_effort": -1.0}
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclasses.dataclass(frozen=True)
class Roofline:
    """Seconds of an update by each of three limits; the largest binds, if the other two hide behind
    it.

    compute, a lower bound: the matrix products, and those of the layers that full rematerialisation
    does again, at the peak rate (what "dots" does again is not counted). memory, an estimate: the
    state read and written once; in every microbatch what is live beside it at the peak written once
    and read once, and the gathered weights read by the forward and the backward pass. Activations
    that come and go within a layer are not counted. network, a lower bound: what every collective
    sends at least, over all links of a chip at once.
    """

    compute_s: float
    memory_s: float
    network_s: float

    @property
    def step_s(self) -> float:
        return max(dataclasses.astuple(self))

    @property
    def bound(self) -> str:
        return max(("compute", "memory", "network"), key=lambda name: getattr(self, f"{name}_s"))


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Of one update of a program on its mesh; bytes are per device."""

    chip: hardware.Chip | None
    devices: int
    flops: float  # of all devices, by formula
    # bytes of the arguments by what they are for, from shapes and shardings
    consumers: dict[str, int]
    arguments: int
    outputs: int | None  # None: the compiler refused the program
    temporaries: int | None
    peak: int | None
    collectives: dict[str, dict[str, int]] | None
    compile_seconds: float
    roofline: Roofline | None  # None: the program was refused, or nothing is known of the chip
    refused: bool = False  # the compiler itself found that the program does not fit

    @property
    def fits(self) -> bool | None:
        """None where the device's memory is not known."""
        if self.refused:
            return False
        return None if self.chip is None else self.peak <= self.chip.memory

    @property
    def mfu(self) -> float | None:
        """Model FLOPs over the peak rate, at most."""
        return self.roofline and self.flops / (
            self.devices * self.chip.flops * self.roofline.step_s
        )


def arguments(program) -> dict[str, int]:
    """Bytes per device of what a step takes, by what it is for."""
    state = program.state
    rest = (state.step, state.metrics, state.skipped, state.last_skipped)
    return {
        "parameters": bytes_per_device(state.params),
        "optimizer state": bytes_per_device((state.opt_state, rest)),
        "batch": bytes_per_device(program.batch),
    }


def estimate(config, task, program) -> Estimate:
    """Compiles the training step of `program` and measures the result; a program that does not fit
    is an answer, too.
    """
    device, devices = program.mesh.devices.flat[0], program.mesh.size
    chip, consumers = hardware.of(device.device_kind), arguments(program)
    # JAX takes three quarters of it, or what XLA_PYTHON_CLIENT_MEM_FRACTION says
    if chip and device.platform == "gpu":
        chip = dataclasses.replace(
            chip, memory=(device.memory_stats() or {}).get("bytes_limit", chip.memory)
        )
    flops = task.flops(0) * config.train.batch
    common = dict(chip=chip, devices=devices, flops=flops, consumers=consumers)
    began = time.monotonic()
    try:
        compiled = _compiled(
            program.train_step.lower(program.state, program.batch), device.platform
        )
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        taken = sum(consumers.values())
        temporaries = refused_temporaries(str(error), taken)
        return Estimate(
            **common,
            arguments=taken,
            outputs=None,
            temporaries=temporaries,
            peak=temporaries and taken + temporaries,
            collectives=None,
            compile_seconds=time.monotonic() - began,
            roofline=None,
            refused=True,
        )
    seconds, memory = time.monotonic() - began, compiled.memory_analysis()
    sent = hlo.collectives(_text(compiled), devices)
    peak = (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes
    )
    if device.platform == "tpu":
        # what is live at once: less, as temporaries that follow each other count beside each other
        # in temp_size
        peak = memory.peak_memory_in_bytes
    roofline = None
    if chip:
        touched = (
            memory.argument_size_in_bytes
            + memory.output_size_in_bytes
            + config.train.accumulation
            * (
                2 * (peak - memory.argument_size_in_bytes)
                + _weights_read(config, program, consumers["parameters"])
            )
        )
        roofline = Roofline(
            compute_seconds(config, task, chip, devices),
            touched / chip.memory_bandwidth,
            sum(one.count * one.moved for one in sent) / chip.link_bandwidth,
        )
    return Estimate(
        **common,
        arguments=memory.argument_size_in_bytes,
        outputs=memory.output_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        peak=peak,
        collectives=hlo.summary(sent),
        compile_seconds=seconds,
        roofline=roofline,
    )


def _text(compiled) -> str:
    try:
        return compiled.as_text()
    except jax.errors.JaxRuntimeError:  # seen with libtpu 0.0.51 under jax 0.10.2
        raise UserError(
            f"this jax can't read what this libtpu compiled: {topology.install()}"
        ) from None


def compute_seconds(config, task, chip: hardware.Chip, devices: int) -> float:
    """The matrix products of an update at the peak rate, with those that full rematerialisation
    does again.
    """
    again = _layers_flops(task) / 3 if config.model.get("remat") == "full" else 0
    return (task.flops(0) + again) * config.train.batch / chip.flops / devices


def _weights_read(config, program, parameters: int) -> float:
    """Bytes of weights that a device's matrix products read in a microbatch: whole but for the
    tensor axis, in the dtype of computation.
    """
    passes = 3 if config.model.get("remat") == "full" else 2
    return (
        passes
        * parameters
        * program.mesh.shape["fsdp"]
        * (1 if config.model.get("dtype") == "float32" else 0.5)
    )


def _compiled(lowered, platform: str):
    if platform == "tpu":
        try:
            return lowered.compile(_QUICKLY)
        except jax.errors.JaxRuntimeError as error:
            if "No such compile option" not in str(error):  # jax 0.12 no longer knows it
                raise
    return lowered.compile()


def refused_temporaries(message: str, taken: int) -> int | None:
    """Bytes of temporaries that the TPU compiler says a program would need, beside arguments of
    `taken` bytes; None where it gives no figure.
    """
    size = lambda found: int(float(found[1]) * _UNITS[found[2]])
    if found := re.search(r"HLO temporaries \(([\d.]+)([KMGT])\)", message):
        return size(found)
    if found := re.search(r"Used ([\d.]+)([KMGT]) of", message):
        return max(size(found) - taken, 0)
    return None


def _layers_flops(task) -> float:
    """`task.flops` without the output projection, which no rematerialisation does again: the
    vocabulary enters nothing else.
    """
    other = copy.copy(task)
    other.model = task.model.clone(vocab_size=0)
    return other.flops(0)
