"""What the benchmarks share: their flags, the table they print and the JSON they write."""

import argparse
import functools
import importlib.util
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from importlib import metadata
from typing import TYPE_CHECKING

from transformer_jax import pictures
from transformer_jax.cli.process import use_huge_pages

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LONG = 10  # seconds of a call beside which what it does not find in memory any more is little
# their versions are recorded where they are installed
PEERS = ("torch", "transformers", "ctranslate2")


def main(
    doc: str,
    cases: dict[str, Callable[[bool], Iterable[dict]]],
    libraries: Iterable[str],
    default: Iterable[str] = (),
    data: str = "",
    plot: Callable[[list[dict]], "Figure"] | None = None,
) -> None:
    """Runs the cases (tiny -> rows) that --case picks, else those of `default`, else all. With
    `data`, the help of a flag --data, they are (tiny, its value) -> rows. With `plot` there is a
    flag --plot.

    A row has case, ours, unit, and where there is a peer: peer, peer_name, ratio (above 1: ours is
    better); and share where the model's operations were held against what products reach there.
    """
    use_huge_pages()  # for the peers, too
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", help="write machine, versions, command and rows to this file")
    parser.add_argument(
        "--case",
        choices=list(cases),
        action="append",
        help="only this case; may be given several times",
    )
    parser.add_argument("--tiny", action="store_true", help="small and short, to try the script")
    if data:
        parser.add_argument("--data", help=data)
    if plot:
        parser.add_argument("--plot", help="draw the rows to this PNG file")
    arguments = parser.parse_args()
    given = (arguments.tiny, arguments.data) if data else (arguments.tiny,)
    record = {
        "machine": f"{_cpu()}, {len(os.sched_getaffinity(0))} of {os.cpu_count()} cores"
        + (gpu() and f", {gpu()}"),
        "versions": {
            name: metadata.version(name)
            for name in [*libraries, *filter(importlib.util.find_spec, PEERS)]
        },
        # no machine's folders
        "command": [
            argument.partition("=")[0]
            if argument.startswith(("--data=", "--json=", "--plot="))
            else argument
            for argument in sys.argv
        ],
    }
    rows = []
    for name in arguments.case or default or cases:
        for row in cases[name](*given):
            rows.append(row)
            against = (
                f"{_shown(row['peer']):>14} {row['peer_name']:24} {row['ratio']:6.2f}"
                if "peer" in row
                else ""
            )
            against += f"  {row['share']:4.0%} of the products' rate" if "share" in row else ""
            print(
                f"{row['case']:44} {_shown(row['ours']):>14} {row['unit']:10} {against}", flush=True
            )
            if arguments.json:  # what is measured is kept, whatever comes
                with open(arguments.json, "w") as out:
                    json.dump(record | {"rows": rows}, out, indent=2)
    if plot and arguments.plot:
        pictures.save(plot(rows), arguments.plot)


def _cpu() -> str:
    """The processor's name and whether it has AVX-512, which decides how fast libraries multiply."""
    try:
        with open("/proc/cpuinfo") as lines:
            found = dict(
                [part.strip() for part in line.split(":", 1)] for line in lines if ":" in line
            )
    except OSError:
        return platform.machine()
    return f"{platform.machine()}, {found.get('model name', 'unnamed')}" + (
        " with AVX-512" if "avx512f" in found.get("flags", "").split() else ""
    )


@functools.cache
def gpu() -> str:
    """The name of this machine's GPU and its driver's version; empty without one."""
    try:
        found = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""
    return found.splitlines()[0]


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def in_turn(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Seconds of each call, the median of `repeats` rounds in which all have their turn: what else
    the machine does meets all alike.

    A turn is two calls, of which the second counts: a virtual machine may take back memory that has
    been idle for the seconds the others took (XLA's step on a CPU: 1.6 -> 2.1 s). Where the first
    took so long that this is little beside it, it counts.
    """
    return medians(
        {name: functools.partial(_settled, call) for name, call in calls.items()}, repeats
    )


def sides(
    makers: dict[str, tuple[str, Callable[[], Callable[[], object]]]], repeats: int
) -> dict[str, float]:
    """As `in_turn`, of {side: (library, what makes its call)}; each library's calls are made and
    run in a process of its own.

    What a library does to a process (its threads that wait busily, its allocator) the others do not
    meet. On a GPU, whose memory a process keeps and whose speed does not drift, the sides do not
    take turns: each has a process of its own, and the GPU to itself. A peer that cannot
    (RuntimeError: no memory, no such kernel) is named on stderr and left out; the first side has
    to.
    """
    if gpu():
        return _one_by_one(makers, repeats)
    for library in {library for library, _ in makers.values()}:
        _process(library).submit(_forget).result()
    able = {}
    for name, (library, maker) in makers.items():
        if _able(name, library, maker, _process(library), first=not able):
            able[name] = lambda process=_process(library), name=name: process.submit(
                _turn, name
            ).result()
    return medians(able, repeats)


def _one_by_one(makers, repeats: int) -> dict[str, float]:
    spent = {}
    for name, (library, maker) in makers.items():
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            if _able(name, library, maker, process, first=not spent):
                spent[name] = statistics.median(
                    process.submit(_turn, name).result() for _ in range(repeats)
                )
    return spent


def _able(name, library: str, maker, process: ProcessPoolExecutor, first: bool) -> bool:
    """Whether the side could be made and tried in this process."""
    refused = process.submit(_make, name, library, maker).result()
    if refused and first:
        raise RuntimeError(refused)
    if refused:
        print(f"{name}: {refused}", file=sys.stderr)
    return not refused


def medians(timed: dict[str, Callable[[], float]], repeats: int) -> dict[str, float]:
    spent = [{name: call() for name, call in timed.items()} for _ in range(repeats)]
    return {name: statistics.median(one[name] for one in spent) for name in timed}


def _settled(call: Callable[[], object]) -> float:
    first = seconds(call)
    return first if first > _LONG else seconds(call)


@functools.cache
def _process(library: str) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


_calls: dict[str, Callable[[], object]] = {}  # of the sides whose process this is


def _forget() -> None:
    _calls.clear()


def _make(name: str, library: str, maker: Callable[[], Callable[[], object]]) -> str | None:
    """Makes the side's call and tries it; says why it can't."""
    if gpu() and not _on_gpu(library):
        return f"{library}, as it is installed here, does not see this machine's GPU, with which the others compute"
    try:
        call = maker()
        call()
    except RuntimeError as error:  # both JAX's and torch's
        return f"{error}".strip().splitlines()[0]
    _calls[name] = call


def _on_gpu(library: str) -> bool:
    if library == "jax":
        import jax

        return jax.default_backend() == "gpu"
    import torch

    return torch.cuda.is_available()


def _turn(name: str) -> float:
    return _settled(_calls[name])


def apart(function: Callable, *arguments):
    """function(*arguments) in a process of its own, which takes with it what it held. Raises
    BrokenProcessPool where it was killed.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
