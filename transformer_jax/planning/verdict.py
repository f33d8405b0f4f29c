"""Whether a run fits: the memory of its evaluations, and the estimate in words, with advice."""

import dataclasses
import math
import time
from collections.abc import Iterator, Sequence

import jax
from ml_collections import ConfigDict

from transformer_jax import hardware
from transformer_jax.config import UserError, set_key
from transformer_jax.contracts.task import EvaluationProgram
from transformer_jax.distributed import sharding
from transformer_jax.planning import estimate
from transformer_jax.planning.estimate import Estimate, arguments, bytes_per_device
from transformer_jax.training.step import Program

# ---------------------------------------------------- the memory of the evaluations during training

# The training state stays on the devices during an evaluation, so a run may fit in its updates but
# not in its beam search.

MEAN_LOSS = "mean loss"


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """The estimate of one program of an evaluation. Bytes are per device."""

    name: str
    chip: hardware.Chip | None
    arguments: int  # the training state and the arrays of the evaluation
    temporaries: int | None  # including the results; None: the compiler refused the program
    compile_seconds: float
    remedy: str  # a change of the config with which it needs less memory
    refused: bool = False  # by the compiler, because the program does not fit

    @property
    def peak(self) -> int | None:
        return None if self.temporaries is None else self.arguments + self.temporaries

    @property
    def fits(self) -> bool | None:
        """Whether the program fits; None if the memory of the device is unknown."""
        if self.refused:
            return False
        return None if self.chip is None else self.peak <= self.chip.memory


def evaluations(config, task, program) -> list[Evaluated]:
    """Compiles the programs of the evaluations that a training with `program` may run."""
    with sharding.use(program.mesh, program.table), estimate.lowering(program.mesh):
        programs = task.evaluation_programs(program.state.params)
        if task.evaluates_rows:
            programs = {MEAN_LOSS: _mean_loss(config, program), **programs}
        return list(_measured(programs, program))


def _mean_loss(config, program) -> EvaluationProgram:
    """Returns the program of the mean loss, which reads as many rows as are computed at once."""
    count = config.train.accumulation if config.mesh.pipeline > 1 else 1
    rows = config.train.batch // config.train.accumulation

    def resized(spec, *shape):
        return jax.ShapeDtypeStruct(shape, spec.dtype, sharding=spec.sharding)

    batch = {name: resized(x, count, rows, *x.shape[2:]) for name, x in program.batch.items()}
    carry = jax.tree.map(lambda x: resized(x, rows, *x.shape[1:]), program.state.carry)
    lowered = program.eval_step.lower(program.state.params, batch, carry)
    accumulation = 2 * config.train.accumulation
    remedy = f"--config.train.accumulation={accumulation}: fewer rows at a time"
    return EvaluationProgram(lowered, (batch, carry), remedy)


def _measured(programs: dict[str, EvaluationProgram], program) -> Iterator[Evaluated]:
    device = program.mesh.devices.flat[0]
    chip = estimate.chip_of(device)
    state_bytes = bytes_per_device(program.state)
    for name, (lowered, held, remedy) in programs.items():
        arguments = state_bytes + bytes_per_device(held)
        started = time.monotonic()
        temporaries, refused = _temporaries(lowered, device.platform, arguments - state_bytes)
        seconds = time.monotonic() - started
        yield Evaluated(name, chip, arguments, temporaries, seconds, remedy, refused)


def _temporaries(lowered, platform: str, held: int) -> tuple[int | None, bool]:
    """Returns the bytes of temporaries and results, and whether the compiler refused.

    `held` is the size of the program's arrays, without the training state.
    """
    try:
        memory = estimate.compile_lowered(lowered, platform).memory_analysis()
    except jax.errors.JaxRuntimeError as error:
        estimate.check_refusal(error)
        return estimate.refused_temporaries(str(error), held), True
    live = estimate.live_bytes(memory, platform)
    # Without the arguments, because the caller counts them as part of the whole training state.
    return max(live - memory.argument_size_in_bytes, 0), False


# --------------------------------------------------------------------- the report about an estimate

# A run fits only if the programs of its evaluations do, too, because they run beside its training
# state.

_GB = 1e9


def fits(estimate: Estimate, evaluated: Sequence[Evaluated]) -> bool | None:
    """Whether the update and all evaluations fit; None if the memory of the device is unknown."""
    return None if estimate.fits is None else all(each.fits for each in (estimate, *evaluated))


def lines(
    config, task, program, estimate: Estimate, evaluated: Sequence[Evaluated] = ()
) -> list[str]:
    """Returns the lines of the report: the verdict, advice if the run does not fit, and figures."""
    helps = []
    # `is False`, because None means that it is not known.
    if fits(estimate, evaluated) is False:
        helps = advice(config, task, program, estimate, evaluated)
    return [
        _verdict(estimate, evaluated),
        *helps,
        *_memory(estimate),
        *_memory_of_evaluations(evaluated),
        *_speed(estimate),
    ]


def _memory(estimate: Estimate) -> list[str]:
    sizes = {
        **estimate.consumers,
        "temporaries": estimate.temporaries,
        "live at once": estimate.peak,
    }
    return ["memory of a device", *(f"  {name:<16} {_size(sizes[name])}" for name in sizes)]


def _memory_of_evaluations(evaluated: Sequence[Evaluated]) -> list[str]:
    rows = (
        f"  {each.name:<24} {_size(each.peak)}, temporaries {_size(each.temporaries)}"
        for each in evaluated
    )
    return ["live at once in an evaluation, with the training state", *rows] if evaluated else []


def _size(size: int | None) -> str:
    return "unknown" if size is None else f"{size / _GB:.3f} GB"


def _speed(estimate: Estimate) -> list[str]:
    roofline = estimate.roofline
    if roofline is None:
        return []
    devices = f"{estimate.devices} x {estimate.chip.name}"
    bubble = f", of which {estimate.bubble:.0%} are bubbles" if estimate.bubble else ""
    return [
        f"an update takes at least (each limit by itself, on {devices})",
        f"  {'compute':<16} {1e3 * roofline.compute_s:.2f} ms{bubble}",
        f"  {'memory':<16} {1e3 * roofline.memory_s:.2f} ms",
        f"  {'network':<16} {1e3 * roofline.network_s:.2f} ms",
        f"  bound by {roofline.bound}: at most {estimate.mfu:.0%} of the peak (MFU)",
    ]


def _verdict(estimate: Estimate, evaluated: Sequence[Evaluated]) -> str:
    if estimate.fits is None:
        return (
            "whether it fits, and how fast it could be, is not known: these devices are in no "
            "table of chips. --topology=v5e:4x4, h100:8 and the like compile for TPUs and GPUs"
        )
    chip = f"{estimate.chip.memory / _GB:.1f} GB"
    larger = max(evaluated, key=_need, default=None)
    in_evaluation = larger is not None and _need(larger) > _need(estimate)
    if fits(estimate, evaluated):
        peak, where = estimate.peak, ""
        if in_evaluation:
            peak, where = larger.peak, f", in an evaluation ({larger.name})"
        return f"it fits: {peak / _GB:.1f} of the {chip} of a {estimate.chip.name}{where}"
    if in_evaluation:
        return (
            f"it does not fit: an evaluation ({larger.name}) needs {_needed(larger)}, an update "
            f"{_needed(estimate)}; a {estimate.chip.name} has {chip}"
        )
    sizes = {**estimate.consumers, "temporaries": estimate.temporaries or 0}
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:2]
    consumers = " and ".join(f"{name} ({size / _GB:.1f} GB)" for name, size in largest)
    return (
        f"it does not fit: it needs {_needed(estimate)}, a {estimate.chip.name} has {chip}. "
        f"Most of it: {consumers}"
    )


def _need(program: Estimate | Evaluated) -> float:
    """Returns the bytes that are live at once, or infinity if the compiler did not tell them."""
    return program.peak or math.inf


def _needed(program: Estimate | Evaluated) -> str:
    return f"{program.peak / _GB:.1f} GB" if program.peak else "more than there is"


def advice(
    config, task, program, estimate: Estimate, evaluated: Sequence[Evaluated] = ()
) -> list[str]:
    """Returns changes of the config that would reduce the largest consumers, surest first."""
    sizes = program.mesh.shape
    advised = _sharded_state(config, task, program, estimate)
    if estimate.fits is False:
        advised += _smaller_activations(config, sizes["data"] * sizes["fsdp"] * sizes["expert"])
    # A dict removes duplicates, because several evaluations may have the same remedy.
    advised += dict.fromkeys(each.remedy for each in evaluated if not each.fits)
    # Each array once, of which some axes hold copies.
    state = (program.state.params, program.state.opt_state)
    total = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    min_devices = -(-total // int(estimate.chip.memory))
    if min_devices > estimate.devices:
        advised.append(
            f"more chips: parameters and optimizer state alone are {total / _GB:.0f} GB, "
            f"{min_devices} chips' memory"
        )
    elif not advised:
        experts = ", config.mesh.expert" if config.model.get("num_experts") else ""
        advised.append(f"more chips, split by config.mesh.fsdp{experts} or config.mesh.tensor")
    return ["what would help:", *(f"  {line}" for line in advised)]


def _sharded_state(config, task, program, estimate: Estimate) -> list[str]:
    """Returns the advice to shard the state over fsdp, if that would help."""
    sizes = program.mesh.shape
    rows = sizes["data"] * sizes["fsdp"]
    state = estimate.consumers["parameters"] + estimate.consumers["optimizer state"]
    # No advice if the state takes up to a twentieth of the memory, because too little would be
    # saved.
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
    """Returns the advice on activations; `rows` is the number of devices that split the batch."""
    advised = []
    accumulation = config.train.accumulation
    rows_per_device = config.train.batch // accumulation // rows
    if rows_per_device > 1 and config.mesh.pipeline == 1:
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
    changed = ConfigDict(config).copy_and_resolve_references()  # because a run's config is frozen
    for key, value in changes.items():
        set_key(changed, key, value)
    try:
        return Program.of(changed, task, program.mesh.devices.flatten())
    except UserError:
        return None
