"""The collectives and the kernels of a compiled program, parsed from its HLO text.

XLA's cost analysis cannot be used because it counts the body of a loop only once, and because it
does not report collectives.
"""

import collections
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

KINDS = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
    "send",  # to another slice of TPUs, as a part of a collective over several slices
)
_TO_ONE = ("collective-permute", "collective-broadcast", "send")
_BYTES = {"pred": 1, "s4": 0.5, "u4": 0.5, "bf16": 2, "c64": 8, "c128": 16} | {
    f"{kind}{bits}": bits // 8 for kind in "suf" for bits in (8, 16, 32, 64)
}

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*?[\]})]) ([a-z][\w\-]*)\(")
# The optional part is for 8-bit floats, such as f8e4m3fn, whose names say more than their size.
_SHAPE = re.compile(r"\b(pred|bf16|[sufc]\d+)(?:e\dm\d\w*)?\[([\d,]*)\]")
_CALLED = re.compile(r"\b(?:calls|to_apply|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_LOOP = re.compile(r"condition=%?([\w.\-]+), body=%?([\w.\-]+)")
_TRIP_COUNT = re.compile(r'known_trip_count"?:\s*\{"?n"?:\s*"?(\d+)')


class Collective(NamedTuple):
    """A collective instruction and the number of its executions."""

    kind: str
    count: int  # executions in one run of the program
    bytes: int  # of the gathered, reduced or sent array on a device
    devices: int  # in a group
    hosts: int = 1  # in a group; each has the same number of its devices

    @property
    def moved(self) -> float:
        """The least number of bytes that a device sends within its host in one execution."""
        if self.kind in _TO_ONE and self.hosts > 1:
            return 0
        return self._sent(self.devices // self.hosts, self.bytes)

    @property
    def moved_between_hosts(self) -> float:
        """The least number of bytes that a device sends to other hosts in one execution.

        The devices of a host divide the array among themselves, so that each part crosses the
        network once: a hierarchical collective.
        """
        if self.kind in _TO_ONE:
            return self.bytes if self.hosts > 1 else 0
        return self._sent(self.hosts, self.bytes * self.hosts / self.devices)

    def _sent(self, count: int, size: float) -> float:
        """Returns what each of `count` participants sends (Thakur et al. 2005).

        An all-reduce of n participants sends 2 (n-1)/n of the array. An all-gather, a
        reduce-scatter and an all-to-all send (n-1)/n of it.
        """
        share = (count - 1) / count
        return size * {
            "all-reduce": 2 * share,
            "collective-permute": 1,
            "collective-broadcast": 1,
            "send": 1,
        }.get(self.kind, share)


def collectives(text: str, num_devices: int, in_host: int | None = None) -> list[Collective]:
    """Returns the collectives of a compiled program for `num_devices`.

    An instruction in a loop is counted once for each iteration, and nested loops multiply. A host
    has `in_host` devices; None means all.
    """
    computations, entry = _computations(text)
    return [
        collective._replace(count=collective.count * times)
        for name, times in _executions(computations, entry).items()
        for collective in _collectives_in(name, computations[name], num_devices, in_host)
        if collective.devices > 1
    ]


def summary(collectives: list[Collective]) -> dict[str, dict[str, int]]:
    """Returns {kind: {count, bytes}} for one run of the program, summed over executions.

    If there are several hosts, `between_hosts` is the least that a device sends to other hosts.
    """
    totals = {}
    for collective in collectives:
        total = totals.setdefault(collective.kind, {"count": 0, "bytes": 0})
        total["count"] += collective.count
        total["bytes"] += collective.count * collective.bytes
        if collective.hosts > 1:
            sent = collective.count * collective.moved_between_hosts
            total["between_hosts"] = total.get("between_hosts", 0) + int(sent)
    return totals


def _computations(text: str) -> tuple[dict[str, list[str]], str]:
    """Returns {name: lines} and the name of the entry computation."""
    computations = {}
    entry = ""
    lines = None
    for line in text.splitlines():
        if header := _COMPUTATION.match(line):
            lines = computations.setdefault(header[2], [])
            entry = header[2] if header[1] else entry
        elif lines is not None:
            lines.append(line)
    return computations, entry


def _executions(computations: dict[str, list[str]], entry: str) -> collections.Counter:
    """Returns the number of executions of each computation in one run of the program."""
    calls = {name: list(_calls(lines, computations)) for name, lines in computations.items()}
    # In a topological order, because the number of executions of a computation must be complete
    # before those of the computations that it calls are computed from it.
    order = []
    seen = set()

    def visit(name):
        if name not in seen:
            seen.add(name)
            for called, _ in calls[name]:
                visit(called)
            order.append(name)

    visit(entry)
    times = collections.Counter({entry: 1})
    for name in reversed(order):
        for called, iterations in calls[name]:
            times[called] += times[name] * iterations
    return times


def _calls(lines: list[str], computations) -> Iterator[tuple[str, int]]:
    """Yields (computation, number of calls) for one execution of these lines.

    Each branch of a conditional is counted once, which gives an upper bound.
    """
    for line in lines:
        instruction = _INSTRUCTION.match(line)
        if not instruction:
            continue
        if instruction[3] == "while":
            condition, body = _LOOP.search(line).groups()
            yield body, _iterations(line, computations.get(condition, []))
        # These name the same computation as their async-start, and would count it again.
        elif instruction[3] not in ("async-done", "async-update"):
            names = _CALLED.findall(line)
            if branches := _BRANCHES.search(line):
                names += [name.strip().lstrip("%") for name in branches[1].split(",")]
            yield from ((name, 1) for name in names if name in computations)


def _iterations(loop: str, condition: list[str]) -> int:
    """Returns the number of iterations of a loop.

    XLA may have recorded it. Otherwise it is the constant in the loop's condition, because JAX's
    scans count from 0 by 1.
    """
    if noted := _TRIP_COUNT.search(loop):
        return int(noted[1])
    compared = {
        int(n) for line in condition for n in re.findall(r"s32\[\]\S* constant\((\d+)\)", line)
    }
    return max(compared, default=1)


def _collectives_in(
    name: str, lines: list[str], num_devices: int, in_host: int | None
) -> Iterator[Collective]:
    """Yields each collective of a computation once; a pair of -start and -done counts as one."""
    for line in lines:
        instruction = _INSTRUCTION.match(line)
        if not instruction:
            continue
        _, shape, op = instruction.groups()
        # A -done is of no kind, since its -start counts for both.
        kind = op.removesuffix("-start")
        if kind not in KINDS:
            continue
        if kind == "send":
            # XLA has divided a collective over slices into one within each slice, and this.
            if "megascale" in line:
                yield Collective(kind, 1, int(_array_bytes(shape)[0]), devices=2, hosts=2)
            continue
        group = _group(line, num_devices, in_host or num_devices)
        devices, hosts = len(group), len({device // (in_host or num_devices) for device in group})
        sizes = _array_bytes(shape)
        # The shape of a -start is a tuple (operands, results, state ...), whose parts must not all
        # be added up.
        if op.endswith("-start") and kind == "all-gather":
            # The results are the larger half, because they hold the operands of all devices.
            sizes = sorted(sizes)[-(len(sizes) // 2 or 1) :]
        elif op.endswith("-start") and kind == "reduce-scatter":
            sizes = sizes[: len(sizes) // 2]
        elif op.endswith("-start") and kind != "all-reduce":
            sizes = sizes[:1]
        size = sum(sizes)
        if op == "reduce-scatter":
            # Multiplied, because the shape belongs to a device's part, but the whole array is
            # reduced.
            size *= devices
        # Recognized by its name, because a reduce-scatter appears on a TPU as a fusion of an
        # all-reduce and a slice.
        elif kind == "all-reduce" and name.startswith("all-reduce-scatter"):
            kind = "reduce-scatter"
        yield Collective(kind, 1, int(size), devices, hosts)


def _array_bytes(shape: str) -> list[float]:
    """Returns the bytes of each array in a shape."""
    return [
        _BYTES[dtype] * math.prod(int(n) for n in sizes.split(",") if n)
        for dtype, sizes in _SHAPE.findall(shape)
    ]


def _group(line: str, num_devices: int, in_host: int) -> list[int]:
    """Returns the devices of the first group, in any of HLO's notations.

    Among pairs of source and target, one that crosses hosts of `in_host` devices is preferred,
    because it is the slowest.
    """
    if axes := re.search(r"replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}", line):
        return _group_along_axes(*axes.groups())
    if iota := re.search(r"replica_groups=\[\d+,(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", line):
        size, dimensions, order = iota.groups()
        devices = np.arange(num_devices).reshape([int(n) for n in dimensions.split(",")])
        devices = devices.transpose([int(n) for n in order.split(",")]) if order else devices
        return devices.ravel()[: int(size)].tolist()
    if listed := re.search(r"replica_groups=\{\{([\d,]*)\}", line):
        return [int(device) for device in listed[1].split(",")]
    if listed := re.search(r"source_target_pairs=\{([\d,{}]*)\}", line):
        pairs = [(int(a), int(b)) for a, b in re.findall(r"\{(\d+),(\d+)\}", listed[1])]
        return list(max(pairs, key=lambda pair: pair[0] // in_host != pair[1] // in_host))
    return [*range(num_devices)]


def _group_along_axes(mesh: str, axes: str) -> list[int]:
    """Returns the first group along axes of a mesh such as "'a'=4,'b'=2".

    An axis is 'b', or a factor of it: 'b':(m)k is the sub-axis of size k whose more significant
    sub-axes have the total size m.
    """
    sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", mesh)}
    strides, stride = {}, 1
    for name in reversed(sizes):
        strides[name] = stride
        stride *= sizes[name]
    group = [0]
    for name, before, part in re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", axes):
        size = int(part) if part else sizes[name]
        step = strides[name] * (sizes[name] // (int(before) * size) if part else 1)
        group = [device + step * number for device in group for number in range(size)]
    return group


# ------------------------------------------------------------------------------------- the kernels

_OPERAND = re.compile(r"%([\w.\-]+)")
_PARAMETER = re.compile(r"parameter\((\d+)\)")
_SOURCE = re.compile(r'op_name="([^"]*)"')
_TARGET = re.compile(r'custom_call_target="([^"]+)"')
# The instructions that move no data by themselves.
_FREE = {
    "after-all",
    "bitcast",
    "call",
    "conditional",
    "constant",
    "get-tuple-element",
    "iota",
    "parameter",
    "partition-id",
    "tuple",
    "while",
}
_PARTS = ("dynamic-slice", "slice", "gather")  # they read what they return


class Kernel(NamedTuple):
    """A kernel of a compiled program: an instruction that reads and writes the device's memory."""

    name: str
    kind: str  # "product", "attention", "fusion", or the name of another operation or custom call
    source: str  # the path of the operation that it stems from, as JAX names it
    count: int  # executions in one run of the program
    bytes: float  # that one execution reads and writes at least
    flops: float  # of the matrix products in one execution

    def seconds(self, flops: float, bandwidth: float) -> float:
        """Returns the least time of all executions at a rate of FLOP/s and one of bytes/s."""
        return self.count * max(self.flops / flops, self.bytes / bandwidth)


class _Instruction(NamedTuple):
    name: str
    shape: str
    op: str
    operands: list[str]
    line: str

    @property
    def size(self) -> float:
        return sum(_array_bytes(self.shape))

    @property
    def dimensions(self) -> list[int]:
        """The sizes of the first array in the shape."""
        return _sizes(_SHAPE.search(self.shape)[2])


def kernels(text: str) -> list[Kernel]:
    """Returns the kernels of a compiled program, without its collectives.

    The bytes are a lower bound: each input is read once, or only the slice of it that is used, and
    each output is written once, or only the slice of it that is updated. An input that several
    kernels read counts in each of them, since it rarely stays in a cache that long.
    """
    lines, entry = _computations(text)
    bodies = {name: dict(_instructions(body)) for name, body in lines.items()}
    # What a fusion or a reduction calls is a part of that kernel.
    parts = {
        called
        for body in bodies.values()
        for each in body.values()
        if each.op not in _FREE
        for called in _CALLED.findall(each.line)
    }
    return [
        _kernel(each, bodies[name], bodies)._replace(count=times)
        for name, times in _executions(lines, entry).items()
        if name not in parts
        for each in bodies[name].values()
        if each.op not in _FREE and not each.op.endswith(("-done", "-update"))
        if each.op.removesuffix("-start") not in KINDS
    ]


def _instructions(lines: list[str]) -> Iterator[tuple[str, _Instruction]]:
    for line in lines:
        if found := _INSTRUCTION.match(line):
            name, shape, op = found.groups()
            yield name, _Instruction(name, shape, op, _operands(line[found.end() :]), line)


def _operands(rest: str) -> list[str]:
    """Returns the names of an instruction's operands. `rest` is the line after the bracket."""
    depth = 1
    for end, character in enumerate(rest):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if not depth:
            return _OPERAND.findall(rest[:end])
    return []


def _kernel(each: _Instruction, body: dict, bodies: dict) -> Kernel:
    """Returns the kernel of an instruction in the computation `body`, executed once."""
    sizes = [body[name].size for name in each.operands if name in body]
    moved, flops, kind = each.size + sum(sizes), 0.0, each.op
    if each.op in (*_PARTS, "copy-start"):
        # A slice is read and written, and so is a copy, whose result is a tuple with its operand.
        moved = 2 * _array_bytes(each.shape)[0]
    elif each.op == "fusion":
        fused = bodies[_CALLED.search(each.line)[1]]
        moved, flops = _fused_bytes(fused, sizes), _flops(fused, bodies)
    elif each.op in ("dot", "convolution"):
        flops = _flops({each.name: each}, bodies, body)
    kind = "product" if flops else kind
    if each.op == "custom-call":
        kind = _TARGET.search(each.line)[1]
        if "fmha" in kind:
            kind, flops = "attention", _attention_flops(each)
        elif "gemm" in kind or "cublas" in kind:
            # Each of the three sizes of a product is an axis of two of these arrays.
            arrays = [body[name].dimensions for name in each.operands[:2]] + [each.dimensions]
            kind, flops = "product", 2 * math.prod(math.prod(x) ** 0.5 for x in arrays)
    source = _SOURCE.search(each.line)
    return Kernel(each.name, kind, source[1] if source else "", 1, moved, flops)


def _fused_bytes(body: dict[str, _Instruction], sizes: list[float]) -> float:
    """Returns the bytes that a fusion reads and writes, of operands of these sizes."""
    users = collections.defaultdict(list)
    for each in body.values():
        for name in each.operands:
            users[name].append(each)

    def uses(name: str) -> Iterator[tuple[str, _Instruction]]:
        for user in users[name]:
            yield from uses(user.name) if user.op == "bitcast" else [(name, user)]

    root = next(each for each in body.values() if each.line.lstrip().startswith("ROOT"))
    outputs = [body[name] for name in root.operands] if root.op == "tuple" else [root]
    outputs = [_without_bitcast(each, body) for each in outputs]
    updated = {each.name for each in outputs if each.op == "dynamic-update-slice"}
    moved = sum(
        body[each.operands[1]].size if each.name in updated else each.size for each in outputs
    )
    for each in body.values():
        if each.op != "parameter":
            continue
        used = list(uses(each.name))
        # Whole, unless all that is used is slices of it, or a slice of it is written in place.
        slices = [user for name, user in used if user.operands[0] == name and user.op in _PARTS]
        in_place = [
            user for name, user in used if user.operands[0] == name and user.name in updated
        ]
        if used and len(slices) + len(in_place) == len(used):
            moved += sum(user.size for user in slices)
        else:
            moved += sizes[int(_PARAMETER.search(each.line)[1])]
    return moved


def _without_bitcast(each: _Instruction, body: dict[str, _Instruction]) -> _Instruction:
    while each.op == "bitcast":
        each = body[each.operands[0]]
    return each


def _flops(body: dict[str, _Instruction], bodies: dict, operands: dict | None = None) -> float:
    """Returns the FLOPs of the products in a computation and in those that it calls."""
    operands, total = operands or body, 0.0
    for each in body.values():
        if each.op == "dot":
            left = operands[each.operands[0]].dimensions
            axes = _sizes(re.search(r"lhs_contracting_dims=\{([\d,]*)\}", each.line)[1])
            total += 2 * math.prod(each.dimensions) * math.prod(left[axis] for axis in axes)
        elif each.op == "convolution":  # as a product is called in a program for a TPU
            total += _convolution_flops(each, *(operands[name] for name in each.operands[:2]))
        elif each.op in ("fusion", "call"):
            total += sum(_flops(bodies[name], bodies) for name in _CALLED.findall(each.line))
    return total


def _convolution_flops(each: _Instruction, source: _Instruction, kernel: _Instruction) -> float:
    """Returns the FLOPs of a convolution, without products with padding and with gaps.

    A product of batches of matrices is one whose window has the size of a batch, with gaps, so that
    each of its outputs multiplies one matrix alone.
    """
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", each.line).groups()
    read, weights, written = (
        dict(zip(names, array.dimensions)) for names, array in zip(labels, (source, kernel, each))
    )
    axes = sorted(name for name in read if name.isdigit())
    windows = zip(
        axes,
        _window(each, "stride", [1] * len(axes)),
        _window(each, "lhs_dilate", [1] * len(axes)),
        _window(each, "rhs_dilate", [1] * len(axes)),
        _window(each, "pad", [0] * len(axes)),
    )
    flops = 2.0 * written["b"] * written["f"] * weights["i"]
    for axis, stride, gap, kernel_gap, padding in windows:
        starts, offsets = np.arange(written[axis]) * stride, np.arange(weights[axis]) * kernel_gap
        places = np.add.outer(starts, offsets) - padding
        inside = (places >= 0) & (places <= (read[axis] - 1) * gap) & (places % gap == 0)
        flops *= int(inside.sum())
    return flops


def _window(each: _Instruction, name: str, default: list[int]) -> list[int]:
    """Returns a number of a convolution's window for each axis; of the padding, that in front."""
    found = re.search(rf"window={{[^}}]*\b{name}=([\w\-]+)", each.line)
    return [int(size.split("_")[0]) for size in found[1].split("x")] if found else default


def _attention_flops(call: _Instruction) -> float:
    """Returns the FLOPs of cuDNN's attention: two products forward, five backward."""
    scores = re.search(r'"intermediate_tensor_shape":.*?"dimensions": ?\[([^\]]*)\]', call.line)[1]
    products = 5 if "Backward" in call.line else 2
    share = 0.5 if "CAUSAL" in call.line else 1.0
    return 2 * products * share * math.prod(_sizes(scores.replace('"', ""))) * call.dimensions[-1]


def _sizes(text: str) -> list[int]:
    return [int(size) for size in text.split(",") if size]
