"""What a compiled program sends between devices, read from its HLO text.

XLA's own cost analysis counts the body of a loop once, and knows nothing of collectives.
"""

import collections
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

KINDS = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
)
_BYTES = {"pred": 1, "s4": 0.5, "u4": 0.5, "bf16": 2, "c64": 8, "c128": 16} | {
    f"{kind}{bits}": bits // 8 for kind in "suf" for bits in (8, 16, 32, 64)
}

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*?[\]})]) ([a-z][\w\-]*)\(")
_SHAPE = re.compile(r"\b(pred|bf16|[sufc]\d+)(?:e\dm\d\w*)?\[([\d,]*)\]")
_CALLED = re.compile(r"\b(?:calls|to_apply|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_LOOP = re.compile(r"condition=%?([\w.\-]+), body=%?([\w.\-]+)")
_TRIPS = re.compile(r'known_trip_count"?:\s*\{"?n"?:\s*"?(\d+)')


class Collective(NamedTuple):
    """One instruction, as often as a program runs it."""

    kind: str
    count: int  # executions in a run of the program
    bytes: int  # of the whole array on a device: what is gathered, reduced or sent
    devices: int  # that take part together

    @property
    def moved(self) -> float:
        """Bytes a device sends at least in one execution (Thakur et al. 2005): all-reduce 2 (n-1)/n
        of the array, gathering, scattering and exchanging (n-1)/n.
        """
        share = (self.devices - 1) / self.devices
        return self.bytes * {
            "all-reduce": 2 * share,
            "collective-permute": 1,
            "collective-broadcast": 1,
        }.get(self.kind, share)


def collectives(text: str, num_devices: int) -> list[Collective]:
    """Those of a compiled program of `num_devices`; an instruction in a loop counts as often as the
    loop goes round, nested loops multiply.
    """
    computations, entry = _computations(text)
    return [
        Collective(found.kind, found.count * times, found.bytes, found.devices)
        for name, times in _executions(computations, entry).items()
        for found in _found_in(name, computations[name], num_devices)
        if found.devices > 1
    ]


def summary(found: list[Collective]) -> dict[str, dict[str, int]]:
    """{kind: {count, bytes}} over a run of the program; an array counts whole each time."""
    totals = {}
    for one in found:
        total = totals.setdefault(one.kind, {"count": 0, "bytes": 0})
        total["count"] += one.count
        total["bytes"] += one.count * one.bytes
    return totals


def _computations(text: str) -> tuple[dict[str, list[str]], str]:
    """{name: lines} and the name of the entry."""
    found, entry, lines = {}, "", None
    for line in text.splitlines():
        if header := _COMPUTATION.match(line):
            lines = found.setdefault(header[2], [])
            entry = header[2] if header[1] else entry
        elif lines is not None:
            lines.append(line)
    return found, entry


def _executions(computations: dict[str, list[str]], entry: str) -> collections.Counter:
    """How often a run of the program executes each computation."""
    calls = {name: list(_calls(lines, computations)) for name, lines in computations.items()}
    order, seen = [], set()

    def visit(name):
        if name not in seen:
            seen.add(name)
            for called, _ in calls[name]:
                visit(called)
            order.append(name)

    visit(entry)
    times = collections.Counter({entry: 1})
    for name in reversed(order):  # callers before what they call
        for called, trips in calls[name]:
            times[called] += times[name] * trips
    return times


def _calls(lines: list[str], computations) -> Iterator[tuple[str, int]]:
    """(computation, how often) that one execution of these lines calls; of a conditional's
    branches, each once: it can't be more.
    """
    for line in lines:
        instruction = _INSTRUCTION.match(line)
        if not instruction:
            continue
        if instruction[3] == "while":
            condition, body = _LOOP.search(line).groups()
            yield body, _trips(line, computations.get(condition, []))
        elif instruction[3] not in ("async-done", "async-update"):
            names = _CALLED.findall(line)
            if branches := _BRANCHES.search(line):
                names += [name.strip().lstrip("%") for name in branches[1].split(",")]
            yield from ((name, 1) for name in names if name in computations)


def _trips(loop: str, condition: list[str]) -> int:
    """How often a loop goes round: as XLA noted, else the constant its counter is compared with
    (JAX's scans count from 0 by 1).
    """
    if known := _TRIPS.search(loop):
        return int(known[1])
    compared = {
        int(n) for line in condition for n in re.findall(r"s32\[\]\S* constant\((\d+)\)", line)
    }
    return max(compared, default=1)


def _found_in(name: str, lines: list[str], num_devices: int) -> Iterator[Collective]:
    """The collectives of a computation, once each; a pair of -start and -done is one."""
    for line in lines:
        instruction = _INSTRUCTION.match(line)
        if not instruction:
            continue
        _, shape, op = instruction.groups()
        kind = op.removesuffix("-start")
        if kind not in KINDS:
            continue
        parts, devices = _parts(shape), _group_size(line, num_devices)
        if op.endswith("-start") and kind != "all-reduce":  # (operands, results, state ...)
            parts = sorted(parts)[-(len(parts) // 2 or 1) :] if kind == "all-gather" else parts[:1]
        size = sum(parts)
        if kind == "reduce-scatter":
            size *= devices
        # a TPU's reduce-scatter: an all-reduce and a slice, fused
        elif kind == "all-reduce" and name.startswith("all-reduce-scatter"):
            kind = "reduce-scatter"
        yield Collective(kind, 1, int(size), devices)


def _parts(shape: str) -> list[float]:
    """The bytes of each array of a shape."""
    return [
        _BYTES[dtype] * math.prod(int(n) for n in sizes.split(",") if n)
        for dtype, sizes in _SHAPE.findall(shape)
    ]


def _group_size(line: str, num_devices: int) -> int:
    """Devices that take part together, in any of the ways HLO writes it."""
    # mesh['a'=4,'b'=2] {'b'}; 'b':(1)2 is a part of an axis
    if axes := re.search(r"replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}", line):
        sizes = dict((name, int(size)) for name, size in re.findall(r"'([^']+)'=(\d+)", axes[1]))
        return math.prod(
            int(part) if part else sizes[name]
            for name, part in re.findall(r"'([^']+)'(?::\(\d+\)(\d+))?", axes[2])
        )
    if iota := re.search(r"replica_groups=\[(\d+),(\d+)\]", line):
        return int(iota[2])
    if listed := re.search(r"replica_groups=\{\{([\d,]*)\}", line):
        return len(listed[1].split(","))
    if "source_target_pairs=" in line:
        return 2
    return num_devices
