"""Which mesh, rematerialisation and microbatch a config should have on these devices: tried, and
ranked by the time of an update.
"""

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
from transformer_jax.planning.estimate import Estimate, arguments, compute_seconds, estimate
from transformer_jax.training.loop import Program

MOST = 12  # programs compiled at most


@dataclasses.dataclass(frozen=True)
class Variant:
    data: int
    fsdp: int
    tensor: int
    remat: str
    accumulation: int

    def of(self, config):
        """`config` with this variant's keys."""
        changed = copy.deepcopy(config)
        for key, value in {
            "mesh.data": self.data,
            "mesh.fsdp": self.fsdp,
            "mesh.tensor": self.tensor,
            "train.accumulation": self.accumulation,
            **({"model.remat": self.remat} if "remat" in config.model else {}),
        }.items():
            set_key(changed, key, value)
        return changed

    def flags(self) -> str:
        return (
            f"--config.mesh.data={self.data} --config.mesh.fsdp={self.fsdp} --config.mesh.tensor={self.tensor} "
            f"--config.model.remat={self.remat} --config.train.accumulation={self.accumulation}"
        )


def search(config, make_task: Callable[[Any], Any], devices) -> list[tuple[Variant, Estimate]]:
    """What was compiled, the fastest that fits first. Raises UserError where the devices' chip is
    not known.

    Candidates are all factors of the devices over data, fsdp and tensor, all policies of
    rematerialisation, and accumulations that halve the rows of a device down to one until they fit.
    They are tried in the order of their matrix products' time, then of the bytes they must send.
    One whose arguments alone do not fit, or whose temporaries can't by those of a variant like it,
    is not compiled; MOST are at most. The search ends once no candidate left can be faster than one
    found.
    """
    chip = hardware.of(devices[0].device_kind)
    if chip is None:
        raise UserError("--search ranks by the rates of a chip: give a --topology, such as v5e:4x4")
    candidates = sorted(_candidates(config, make_task, chip, devices), key=lambda one: one[:2])
    say(
        f"{len(candidates)} variants whose parameters and optimizer state fit; at most {MOST} are compiled"
    )
    found, per_row = [], {}
    for seconds, _, taken, variant in candidates:
        best = min((one.roofline.step_s for _, one in found if one.fits), default=math.inf)
        if len(found) == MOST or seconds > best:
            break
        if any(
            one.fits and dataclasses.replace(variant, accumulation=v.accumulation) == v
            for v, one in found
        ):
            continue  # more microbatches than one that fits are never faster
        kind, rows = (variant.tensor, variant.remat), _rows(variant, config)
        # temporaries may grow slower than the rows: by half is safe
        known = [size * rows / there for there, size in per_row.get(kind, ()) if there <= rows]
        if known and taken + max(known) / 2 > chip.memory:
            continue
        changed = variant.of(config)
        task = make_task(changed)
        try:
            program = Program.of(changed, task, devices)
        except UserError:  # a first batch that the accumulation does not divide
            continue
        one = estimate(changed, task, program)
        found.append((variant, one))
        if one.peak:
            per_row.setdefault(kind, []).append((rows, one.peak - one.arguments))
        say(f"{len(found)}/{MOST}  {_line(variant, one)}")
    return sorted(found, key=lambda one: _rank(one[1]))


def _rank(one: Estimate) -> tuple[float, float]:
    """By the limit that binds; where that is the same, by all three together, as none hides another
    entirely.
    """
    return (
        (one.roofline.step_s, sum(dataclasses.astuple(one.roofline)))
        if one.fits
        else (math.inf, math.inf)
    )


def table(found: list[tuple[Variant, Estimate]]) -> list[str]:
    """The variants in their order, with the flags of the first."""
    if not found or not found[0][1].fits:
        return ["no variant fits: more chips, or a smaller model"]
    return [
        "",
        *(f"{place}. {_line(variant, one)}" for place, (variant, one) in enumerate(found, 1)),
        f"the first: {found[0][0].flags()}",
    ]


def record(found: list[tuple[Variant, Estimate]]) -> list[dict]:
    return [
        {
            **dataclasses.asdict(variant),
            "fits": one.fits,
            "peak": one.peak,
            "step_s": one.roofline and one.roofline.step_s,
            "bound": one.roofline and one.roofline.bound,
        }
        for variant, one in found
    ]


def _line(variant: Variant, one: Estimate) -> str:
    mesh = f"data {variant.data:>3}  fsdp {variant.fsdp:>3}  tensor {variant.tensor:>2}  remat {variant.remat:<4}  accumulation {variant.accumulation:>3}"
    if not one.fits:
        return f"{mesh}  does not fit" + (f" ({one.peak / 1e9:.1f} GB)" if one.peak else "")
    return f"{mesh}  {1e3 * one.roofline.step_s:9.2f} ms, bound by {one.roofline.bound:<7}  {one.peak / 1e9:5.1f} GB  MFU at most {one.mfu:.0%}"


def _rows(variant: Variant, config) -> int:
    """Rows of a microbatch on a device."""
    return config.train.batch // variant.accumulation // (variant.data * variant.fsdp)


def _candidates(config, make_task, chip, devices) -> Iterator[tuple[float, float, int, Variant]]:
    """(seconds of the matrix products, bytes sent, bytes of arguments, variant) of what the mesh
    divides and whose arguments fit.
    """
    policies = list(REMAT) if "remat" in config.model else ["none"]
    count = len(devices) // config.mesh.sequence
    for data, fsdp in itertools.product(_divisors(count), repeat=2):
        most = config.train.batch // (data * fsdp)  # rows of a device
        if count % (data * fsdp) or config.train.batch % (data * fsdp):
            continue
        mesh = Variant(data, fsdp, count // (data * fsdp), policies[0], 1)
        task = make_task(mesh.of(config))
        try:
            consumers = arguments(Program.of(mesh.of(config), task, devices))
        except UserError:  # it does not divide a parameter
            continue
        if sum(consumers.values()) > chip.memory:
            continue
        for remat, accumulation in itertools.product(
            policies, [2**power for power in range(most.bit_length()) if most % 2**power == 0]
        ):
            variant = dataclasses.replace(mesh, remat=remat, accumulation=accumulation)
            sent = _sent(task, consumers["parameters"] * fsdp * mesh.tensor, variant)
            yield (
                compute_seconds(variant.of(config), task, chip, len(devices)),
                sent,
                sum(consumers.values()),
                variant,
            )


def _sent(task, parameters: int, variant: Variant) -> float:
    """Bytes an update sends from a device, roughly: fsdp gathers half-width parameters twice and
    scatters their gradients in every microbatch, data sums gradients once, tensor sums each layer's
    activations four times. It only says what to try first.
    """
    here = parameters / variant.tensor
    split = lambda parts: (parts - 1) / parts
    layers = sum(
        value
        for name, value in vars(task.model).items()
        if name.startswith("num_") and name.endswith("layers")
    )
    activations = (
        task.config.train.batch
        / (variant.data * variant.fsdp)
        * task.positions(0)
        * task.model.d_model
        * 2
    )
    return here * (
        1.5 * split(variant.fsdp) * variant.accumulation + 2 * split(variant.data)
    ) + 8 * layers * activations * split(variant.tensor)


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
