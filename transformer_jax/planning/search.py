"""Search for the fastest mesh, rematerialization policy and microbatch size of a config."""

import copy
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

from transformer_jax import hardware
from transformer_jax.config import UserError, set_key
from transformer_jax.layers.blocks import REMAT
from transformer_jax.pictures.progress import say
from transformer_jax.planning.estimate import (
    Estimate,
    arguments,
    chip_of,
    compute_seconds,
    estimate,
)
from transformer_jax.training.step import Program

MAX_COMPILED = 12  # programs, because compiling a large one may take minutes


@dataclasses.dataclass(frozen=True)
class Variant:
    """The keys of a config that the search changes."""

    data: int
    fsdp: int
    tensor: int
    remat: str
    accumulation: int

    def of(self, config):
        """Returns a copy of `config` with the keys of this variant."""
        changed = copy.deepcopy(config)
        values = {
            "mesh.data": self.data,
            "mesh.fsdp": self.fsdp,
            "mesh.tensor": self.tensor,
            "train.accumulation": self.accumulation,
        }
        if "remat" in config.model:
            values["model.remat"] = self.remat
        for key, value in values.items():
            set_key(changed, key, value)
        return changed

    def flags(self) -> str:
        return (
            f"--config.mesh.data={self.data} --config.mesh.fsdp={self.fsdp} "
            f"--config.mesh.tensor={self.tensor} --config.model.remat={self.remat} "
            f"--config.train.accumulation={self.accumulation}"
        )

    def rows(self, config) -> int:
        """Returns the number of rows of a microbatch on a device."""
        groups = self.data * self.fsdp * config.mesh.expert
        return config.train.batch // self.accumulation // groups


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A variant that may fit, with the figures that decide when it is tried."""

    variant: Variant
    seconds: float  # of the matrix products
    sent: float  # bytes that a device sends, roughly
    arguments: int  # bytes


class _Search:
    """The estimates of the variants compiled so far, and the sizes of their temporaries."""

    def __init__(self, chip: hardware.Chip):
        self.chip = chip
        self.estimates: list[tuple[Variant, Estimate]] = []
        # {(tensor, remat): [(rows, bytes of temporaries), ...]}
        self.temporaries: dict[tuple[int, str], list[tuple[int, int]]] = {}

    def add(self, variant: Variant, rows: int, result: Estimate) -> None:
        self.estimates.append((variant, result))
        if result.peak:
            sizes = self.temporaries.setdefault((variant.tensor, variant.remat), [])
            sizes.append((rows, result.peak - result.arguments))

    def is_done(self, seconds: float) -> bool:
        """Whether a variant whose matrix products take `seconds` can no longer be the fastest."""
        times = (result.roofline.step_s for _, result in self.estimates if result.fits)
        # The search may end early, because no update is faster than its matrix products, and
        # candidates come in the order of these.
        return len(self.estimates) == MAX_COMPILED or seconds > min(times, default=math.inf)

    def fits_with_fewer_microbatches(self, variant: Variant) -> bool:
        """Whether the variant fits with fewer microbatches, which is never slower."""
        return any(
            result.fits and dataclasses.replace(variant, accumulation=other.accumulation) == other
            for other, result in self.estimates
        )

    def cannot_fit(self, candidate: Candidate, rows: int) -> bool:
        """Whether the temporaries of a similar variant show that this one does not fit."""
        variant = candidate.variant
        # Only variants with at most as many rows count, because more rows say nothing about fewer.
        sizes = [
            size * rows / other_rows
            for other_rows, size in self.temporaries.get((variant.tensor, variant.remat), ())
            if other_rows <= rows
        ]
        # Only half of the estimate is used, since temporaries may grow more slowly than the rows.
        return bool(sizes) and candidate.arguments + max(sizes) / 2 > self.chip.memory


def search(config, make_task: Callable[[Any], Any], devices) -> list[tuple[Variant, Estimate]]:
    """Returns the compiled variants with their estimates, the fastest that fits first.

    The candidates are all factorizations of the devices over data, fsdp and tensor, with all
    rematerialization policies, and with numbers of microbatches that double until a device has one
    row.

    Candidates are tried in ascending order of the time of their matrix products, and then of the
    bytes that they send. A candidate is not compiled if its arguments do not fit, or if the
    temporaries of a similar variant show that it does not fit. At most MAX_COMPILED variants are
    compiled. The search ends when no other candidate can be faster.

    Raises UserError if the chip of the devices is unknown.
    """
    chip = chip_of(devices[0])
    if chip is None:
        raise UserError(
            "--search ranks by the rates of a chip: give a --topology, such as v5e:4x4 or h100:8"
        )
    candidates = sorted(
        _candidates(config, make_task, chip, devices),
        key=lambda candidate: (candidate.seconds, candidate.sent),
    )
    say(
        f"{len(candidates)} variants whose parameters and optimizer state fit; "
        f"at most {MAX_COMPILED} are compiled"
    )
    state = _Search(chip)
    for candidate in candidates:
        variant = candidate.variant
        if state.is_done(candidate.seconds):
            break
        rows = variant.rows(config)
        if state.fits_with_fewer_microbatches(variant) or state.cannot_fit(candidate, rows):
            continue
        changed = variant.of(config)
        task = make_task(changed)
        try:
            program = Program.of(changed, task, devices)
        except UserError:  # with a growing batch, the accumulation may not divide the first one
            continue
        result = estimate(changed, task, program)
        state.add(variant, rows, result)
        say(f"{len(state.estimates)}/{MAX_COMPILED}  {_line(variant, result)}")
    return sorted(state.estimates, key=lambda pair: _rank(pair[1]))


def _rank(result: Estimate) -> tuple[float, float]:
    """Returns the time of the binding limit, and the sum of all three limits as a tie-breaker.

    In practice, no limit hides the others entirely.
    """
    if not result.fits:
        return math.inf, math.inf
    return result.roofline.step_s, sum(dataclasses.astuple(result.roofline))


def table(estimates: list[tuple[Variant, Estimate]]) -> list[str]:
    """Returns a line for each variant, and one with the flags of the first."""
    if not estimates or not estimates[0][1].fits:
        return ["no variant fits: more chips, or a smaller model"]
    return [
        "",
        *(
            f"{rank}. {_line(variant, result)}"
            for rank, (variant, result) in enumerate(estimates, 1)
        ),
        f"the first: {estimates[0][0].flags()}",
    ]


def record(estimates: list[tuple[Variant, Estimate]]) -> list[dict]:
    """Returns the variants and their estimates, ready for JSON."""
    return [
        {
            **dataclasses.asdict(variant),
            "fits": result.fits,
            "peak": result.peak,
            "step_s": result.roofline and result.roofline.step_s,
            "bound": result.roofline and result.roofline.bound,
        }
        for variant, result in estimates
    ]


def _line(variant: Variant, result: Estimate) -> str:
    keys = (
        f"data {variant.data:>3}  fsdp {variant.fsdp:>3}  tensor {variant.tensor:>2}  "
        f"remat {variant.remat:<4}  accumulation {variant.accumulation:>3}"
    )
    peak = f"{result.peak / 1e9:.1f} GB" if result.peak else ""
    if not result.fits:
        return f"{keys}  does not fit" + (f" ({peak})" if peak else "")
    return (
        f"{keys}  {1e3 * result.roofline.step_s:9.2f} ms, bound by {result.roofline.bound:<7}  "
        f"{peak:>8}  MFU at most {result.mfu:.0%}"
    )


def _candidates(config, make_task, chip, devices) -> Iterator[Candidate]:
    """Yields the variants whose mesh divides all arrays and whose arguments fit."""
    policies = list(REMAT) if "remat" in config.model else ["none"]
    mesh = config.mesh
    count = len(devices) // mesh.sequence // mesh.pipeline // mesh.expert
    for data, fsdp in itertools.product(_divisors(count), repeat=2):
        # Both axes split the rows of a batch, as expert does.
        if count % (data * fsdp) or config.train.batch % (data * fsdp * mesh.expert):
            continue
        variant = Variant(data, fsdp, count // (data * fsdp), policies[0], 1)
        task = make_task(variant.of(config))
        try:
            # Once for each mesh, because the arguments do not depend on the rest of a variant.
            consumers = arguments(Program.of(variant.of(config), task, devices))
        except UserError:  # the mesh does not divide a parameter, so it is no candidate
            continue
        taken = sum(consumers.values())
        if taken > chip.memory:
            continue
        parameters = consumers["parameters"] * fsdp * variant.tensor
        for remat, power in itertools.product(policies, _powers_of_two(variant.rows(config))):
            changed = dataclasses.replace(variant, remat=remat, accumulation=power)
            yield Candidate(
                changed,
                compute_seconds(changed.of(config), task, chip, len(devices)),
                _sent(task, parameters, changed),
                taken,
            )


def _sent(task, parameters: int, variant: Variant) -> float:
    """Returns roughly the bytes that a device sends in an update, to order the candidates.

    In every microbatch, fsdp gathers the parameters in half precision twice and scatters their
    gradients. The data axis sums the gradients once. The tensor axis sums the activations of each
    layer four times.
    """
    on_device = parameters / variant.tensor
    layers = sum(
        value
        for name, value in vars(task.model).items()
        if name.startswith("num_") and name.endswith("layers")
    )
    rows = task.config.train.batch / (variant.data * variant.fsdp * task.config.mesh.expert)
    activations = rows * task.positions(0) * task.model.d_model * 2
    # In units of the float32 parameters: three transfers in half precision are 1.5, and a sum over
    # devices sends each gradient twice.
    return on_device * (
        1.5 * _moved(variant.fsdp) * variant.accumulation + 2 * _moved(variant.data)
    ) + 8 * layers * activations * _moved(variant.tensor)


def _moved(parts: int) -> float:
    """Returns the share of an array that a device exchanges if it is split into `parts`."""
    return (parts - 1) / parts


def _powers_of_two(number: int) -> list[int]:
    """Returns the powers of two that divide `number`."""
    return [2**power for power in range(number.bit_length()) if number % 2**power == 0]


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
