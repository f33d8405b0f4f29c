"""Estimates of a training run from its shapes: parameters, FLOPs, memory and time."""

import copy
import dataclasses
import itertools
import math
import os
import re
import time

import jax
import jax.extend.core

from transformer_jax import hardware
from transformer_jax.config import UserError
from transformer_jax.data.rows import Phase
from transformer_jax.layers.parameters import names
from transformer_jax.layers.pipeline import bubble
from transformer_jax.pictures.progress import say
from transformer_jax.planning import hlo, topology

# -------------------------------------------------------------- FLOPs of a config, from formulas


def training(task) -> tuple[float, int]:
    """Returns the FLOPs and the number of target positions, padding included, of the whole run.

    The FLOPs count the forward and backward passes over the rows of all phases, counted as
    in metrics.jsonl. For fine-tuning they are an upper bound, because each row is counted at full
    length.
    """
    train = task.config.train
    growing = Phase((), train.batch, first_batch=train.first_batch, ramp_steps=train.ramp_steps)
    phase_steps = task.phase_steps
    if phase_steps is None:
        rows = [growing.rows_before(train.num_steps)]
    else:
        rows = [train.batch * steps for steps in phase_steps]
    flops = sum(task.flops(shape) * count for shape, count in enumerate(rows))
    positions = sum(task.positions(shape) * count for shape, count in enumerate(rows))
    return flops, positions


# -------------------------------------------------------- FLOPs of a function, counted in its jaxpr

# The formulas of FLOPs are tested against this count. XLA's cost analysis does not serve here,
# because it counts the body of a scan once.


def flops(function, *arguments) -> float:
    """Returns the FLOPs of the matrix products and convolutions in `function(*arguments)`.

    A multiply-add counts as two. The arguments may be shapes. A scan counts each iteration.
    """
    return _jaxpr_flops(jax.make_jaxpr(function)(*arguments).jaxpr)


def _jaxpr_flops(jaxpr) -> float:
    total = 0.0
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            summed = math.prod(left[axis] for axis in contracted)
            total += 2 * math.prod(equation.outvars[0].aval.shape) * summed
        elif name == "conv_general_dilated":
            kernel = equation.invars[1].aval.shape
            features = kernel[equation.params["dimension_numbers"].rhs_spec[0]]
            output = equation.outvars[0].aval.shape
            # Divided by the features, because each output uses only the part of the kernel for its
            # own.
            total += 2 * math.prod(output) * math.prod(kernel) / features
        iterations = equation.params.get("length", 1) if name == "scan" else 1
        inner = jax.extend.core.jaxprs_in_params(equation.params)
        total += iterations * sum(map(_jaxpr_flops, inner))
    return total


# ---------------------------------------------- the arrays of a training step, with their shardings

_HEADER = ("", "shape", "sharding", "MB a device")


def bytes_per_device(tree) -> int:
    """Returns the bytes per device of a tree of ShapeDtypeStructs with shardings.

    On a TPU they include the padding of tiles.
    """
    return sum(
        _elements(leaf.sharding)(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def _elements(sharding):
    return _tiled if next(iter(sharding.device_set)).platform == "tpu" else math.prod


def _tiled(shape: tuple[int, ...]) -> int:
    """Returns the number of elements, padding included, of an array of 4-byte numbers on a TPU.

    The two innermost axes are padded to tiles of 8 x 128, or of fewer rows if the array has fewer.
    The compiler chooses the order of axes that wastes the least.
    """
    if len(shape) < 2:
        return _rounded_up(math.prod(shape), 128)
    return min(
        math.prod(shape)
        // (shape[i] * shape[j])
        * _rounded_up(shape[i], min(8, 1 << (shape[i] - 1).bit_length()))
        * _rounded_up(shape[j], 128)
        for i, j in itertools.permutations(range(len(shape)), 2)
    )


def _rounded_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def table(program) -> list[str]:
    """Returns the lines of a table of all parameters, optimizer arrays and batch arrays.

    Each line has the shape, the mesh axes of each dimension and the size on a device. An array of
    the optimizer is named by its kind, such as mu or nu, and its parameter.
    """
    parts = {
        "parameter": program.state.params,
        "optimizer": program.state.opt_state,
        "batch": program.batch,
    }
    rows = [row for part, tree in parts.items() for row in _rows(part, tree)]
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [
        f"{name:{widths[0]}}  {shape:{widths[1]}}  {split:{widths[2]}}  {size:>{widths[3]}}"
        for name, shape, split, size in rows
    ]


def axes(sharding) -> str:
    """Returns the mesh axes of each dimension, such as "(fsdp, -, tensor)".

    Axes with a single device are left out.
    """
    sizes = sharding.mesh.shape
    dimensions = []
    for entry in sharding.spec:
        axes = (entry,) if isinstance(entry, str) else entry or ()
        dimensions.append("*".join(axis for axis in axes if sizes[axis] > 1) or "-")
    return f"({', '.join(dimensions)})"


def _rows(part: str, tree):
    yield (part, *_HEADER[1:])
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        yield (
            "  " + _name(path),
            str(leaf.shape),
            axes(leaf.sharding),
            f"{bytes_per_device(leaf) / 1e6:.2f}",
        )


def _name(path) -> str:
    """Returns the name of a leaf, without optax's wrappers and the labels that they add."""
    wrappers = ("inner_state", "inner_states")
    fields = [getattr(key, "name", None) for key in path]
    words = [
        name
        for field, key in zip([None, *fields], path)
        if field != "inner_states"
        for name in names([key])
    ]
    kinds = [field for field in fields if field and field not in wrappers]
    return "/".join([*kinds, *words]) or str(path)


# ------------------------------------------------- roofline model: lower bounds of an update's time


@dataclasses.dataclass(frozen=True)
class Roofline:
    """The time of an update according to each of three limits, in seconds.

    The largest of them is a bound for the update if the others can overlap with it.

    compute_s is a lower bound: the matrix products at the peak rate, including those that full
    rematerialization repeats. Products that the policy "dots" repeats are not counted.

    memory_s is an estimate. It assumes that the state is read and written once, that in every
    microbatch the other arrays that are live at the peak are written and read once, and that the
    forward and backward passes read the gathered weights. Activations that live within a layer are
    not counted.

    network_s is a lower bound: the least that every collective must send, over all links of a chip.
    GPUs use NVLink within a host and the network between hosts, both at the same time.
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


def compute_seconds(config, task, chip: hardware.Chip, devices: int) -> float:
    """Returns the seconds that an update's matrix products take at the peak rate.

    They include the products that full rematerialization repeats, and the time in which the stages
    of a pipeline wait.
    """
    # A third, because full rematerialization repeats the forward pass, which is a third of forward
    # and backward together.
    repeated = _layers_flops(task) / 3 if config.model.get("remat") == "full" else 0
    busy = 1 - bubble(config.mesh.pipeline, config.train.accumulation)
    return (task.flops(0) + repeated) * config.train.batch / chip.flops / devices / busy


def weight_bytes_read(config, program, parameters: int) -> float:
    """Returns the bytes of weights that a device's matrix products read in a microbatch.

    `parameters` is the size of the parameters on a device. When they are used, the weights have
    been gathered over fsdp, so that only the tensor axis splits them, and cast to the compute
    dtype.
    """
    # Full rematerialization reads them in a second forward pass, too.
    passes = 3 if config.model.get("remat") == "full" else 2
    width = 1 if config.model.get("dtype") == "float32" else 0.5
    return passes * parameters * program.mesh.shape["fsdp"] * width


def _layers_flops(task) -> float:
    """Returns `task.flops` without the output projection, which no rematerialization repeats.

    Only this projection depends on the size of the vocabulary, so it vanishes at size 0.
    """
    if not task.model.vocab_size:
        return task.flops(0)
    without_output = copy.copy(task)
    without_output.model = task.model.clone(vocab_size=0)
    return without_output.flops(0)


# ------------------------------------ memory and time of a training step, from its compiled program

# At the lowest optimization level, the TPU compiler needs a quarter to a third of the time, and
# partitions the program in the same way: the collectives of GPT-3 175B on v5p:4x4x4 have the same
# bytes. The peak there was 57.1 GB instead of 60.8. For GPT-2 124M on v5e:4x4, with 64 rows and no
# dropout, it was 9.86 GB instead of 9.82. The value is XLA's EFFORT_O0, which jax 0.10 accepts only
# as a number. The older option exec_time_optimization_effort=-1 has the same effect there, but jax
# 0.11 does not know it.
_LEAST_EFFORT = {"optimization_level": 9}
# Without a GPU, XLA's compiler can't measure which kernel of a product is fastest, and takes one of
# Triton's with a tiling that not every shape has. ViT-B/16 with 128 rows of 197 patches has none.
# The compiler then takes those of cuBLAS.
_UNTILED = "Couldn't find output tile sizes"
_WITHOUT_TRITON = {"xla_gpu_enable_triton_gemm": False}
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclasses.dataclass(frozen=True)
class Estimate:
    """The estimate of one update of a program on its mesh. Bytes are per device."""

    chip: hardware.Chip | None
    devices: int
    flops: float  # of all devices, by formula
    # {purpose: bytes of the arguments}, from shapes and shardings
    consumers: dict[str, int]
    arguments: int
    outputs: int | None  # None: the compiler refused the program
    temporaries: int | None
    peak: int | None
    collectives: dict[str, dict[str, int]] | None
    compile_seconds: float
    roofline: Roofline | None  # None: the program was refused, or the chip is unknown
    refused: bool = False  # by the compiler, because the program does not fit
    bubble: float = 0.0  # the share of the time in which the stages of a pipeline wait

    @property
    def fits(self) -> bool | None:
        """Whether the program fits; None if the memory of the device is unknown."""
        if self.refused:
            return False
        return None if self.chip is None else self.peak <= self.chip.memory

    @property
    def mfu(self) -> float | None:
        """An upper bound of the MFU: the model's FLOPs as a share of the peak rate."""
        return self.roofline and self.flops / (
            self.devices * self.chip.flops * self.roofline.step_s
        )


def arguments(program) -> dict[str, int]:
    """Returns the bytes per device of a step's arguments, by purpose."""
    state = program.state
    # With the optimizer state, because they are small and need no line of their own.
    counters = (state.step, state.metrics, state.skipped, state.last_skipped, state.memory)
    carry = {} if state.carry is None else {"carry": bytes_per_device(state.carry)}
    return {
        "parameters": bytes_per_device(state.params),
        "optimizer state": bytes_per_device((state.opt_state, counters)),
        **carry,
        "batch": bytes_per_device(program.batch),
    }


def estimate(config, task, program) -> Estimate:
    """Compiles the training step of `program` and reads its memory and collectives.

    If the compiler refuses a program because it does not fit, the estimate has `refused` set.
    """
    device = program.mesh.devices.flat[0]
    known = dict(
        chip=chip_of(device),
        devices=program.mesh.size,
        flops=task.flops(0) * config.train.batch,
        bubble=bubble(config.mesh.pipeline, config.train.accumulation),
        consumers=arguments(program),
    )
    # The time includes lowering, because tracing a large model takes long as well.
    started = time.monotonic()
    try:
        with lowering(program.mesh):
            lowered = program.train_step.lower(program.state, program.batch)
        compiled = compile_lowered(lowered, device.platform)
    except jax.errors.JaxRuntimeError as error:
        check_refusal(error)
        return _refused(known, str(error), time.monotonic() - started)
    seconds = time.monotonic() - started
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
    """Returns the chip of a device, with the memory that JAX may use; None if it is unknown."""
    chip = hardware.of(device.device_kind)
    if chip is None or device.platform != "gpu":
        return chip
    # Not the whole memory, because JAX allocates three quarters of a GPU's, or
    # XLA_PYTHON_CLIENT_MEM_FRACTION of it.
    taken = float(os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", 0.75)) * chip.memory
    try:
        taken = (device.memory_stats() or {}).get("bytes_limit", taken)
    except jax.errors.JaxRuntimeError:  # a device of a topology has no memory to ask for
        pass
    return dataclasses.replace(chip, memory=taken)


def live_bytes(memory, platform: str) -> int:
    """Returns the bytes that are live at once."""
    if platform == "tpu":
        # Smaller than the sum below, because temp_size also adds up temporaries that are not live
        # at the same time.
        return memory.peak_memory_in_bytes
    return (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        # Subtracted, because donated arguments are among the outputs, too.
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
    # 2, because what is written is read again.
    in_microbatch = 2 * (measured.peak - measured.arguments) + weights
    # In a pipeline, the peak has the activations of all microbatches.
    repeats = 1 if config.mesh.pipeline > 1 else config.train.accumulation
    touched = measured.arguments + measured.outputs + repeats * in_microbatch
    return Roofline(
        compute_seconds(config, task, chip, measured.devices),
        touched / chip.memory_bandwidth,
        sum(each.count * _seconds(each, chip) for each in collectives),
    )


def _seconds(collective: hlo.Collective, chip: hardware.Chip) -> float:
    """Returns the least time of a collective, whose parts within and between hosts may overlap."""
    within = collective.moved / chip.link_bandwidth
    between = collective.moved_between_hosts
    # The network between slices of some TPUs is not known, and is then not counted.
    known = between and chip.network_bandwidth
    return max(within, between / chip.network_bandwidth) if known else within


def devices_of_host(mesh: jax.sharding.Mesh) -> int | None:
    """Returns the number of GPUs of a host; None for TPUs, whose links connect hosts, too."""
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

    From jax 0.11 on, Pallas generates kernels for JAX's default device. Without the context, this
    would be a device of this machine, perhaps a CPU. The alternative, an abstract mesh, only works
    for the kinds of GPU that Pallas knows by name, and an A10G is not one of them.
    """
    return jax.default_device(mesh.devices.flat[0])


def compile_lowered(lowered: jax.stages.Lowered, platform: str) -> jax.stages.Compiled:
    """Compiles a program for a platform whose devices need not be there.

    It is compiled at the lowest optimization level if it is for a TPU, and without Triton's matrix
    products if it is for a GPU and Triton has no tiling for one of them.
    """
    if platform == "tpu":
        return lowered.compile(_LEAST_EFFORT)
    try:
        return lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if _UNTILED not in str(error):
            raise
        say("compiled without Triton's matrix products, which have no tiling for one of the shapes")
        return lowered.compile(_WITHOUT_TRITON)


def check_refusal(error: jax.errors.JaxRuntimeError) -> None:
    """Re-raises the error of a compilation unless it says that the program does not fit."""
    # Any other error is a defect, which must not pass for a program that is too large.
    if "RESOURCE_EXHAUSTED" not in str(error):
        raise error


def refused_temporaries(message: str, taken: int) -> int | None:
    """Parses the size of the temporaries from the TPU compiler's message about a refused program.

    `taken` is the size of the arguments. Returns None if the message has no figure.
    """

    def size(match):
        return int(float(match[1]) * _UNITS[match[2]])

    # The compiler words it in three ways, of which only the first gives the temporaries alone.
    if temporaries := re.search(r"HLO temporaries \(([\d.]+)([KMGT])\)", message):
        return size(temporaries)
    if used := re.search(r"Used ([\d.]+)([KMGT]) of", message):
        return max(size(used) - taken, 0)
    if allocation := re.search(r"Allocation \(size=(\d+)\) would exceed memory", message):
        return int(allocation[1])
    return None
