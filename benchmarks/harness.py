"""Shared code of the benchmarks: flags, the printed table, the JSON file, timing in turns."""

import argparse
import dataclasses
import functools
import importlib.util
import json
import multiprocessing
import os
import pathlib
import platform
import runpy
import shutil
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from importlib import metadata
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from transformer_jax import pictures
from transformer_jax.cli import use_huge_pages

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LONG_CALL = 10  # seconds; the time to touch reclaimed memory is small compared with it
# Their versions are recorded where they are installed.
PEERS = ("torch", "transformers", "ctranslate2", "gensim")
# {"jax VERSION": a process with that release}; see --jax
_others: dict[str, "Interpreter"] = {}


def main(
    doc: str,
    cases: dict[str, Callable[[bool], Iterable[dict]]],
    libraries: Iterable[str],
    default: Iterable[str] = (),
    *,
    given: tuple[str, str] | None = None,
    releases: bool = False,
    plot: Callable[[list[dict]], "Figure"] | None = None,
) -> None:
    """Runs the cases that --case selects, or those of `default`, or all.

    A case is a function of `tiny` that yields rows. With `given`, the name and help of a further
    flag, it is a function of `tiny` and of the flag's value. With `releases`, there is a flag
    --jax, for cases that call `sides`, and with `plot` a flag --plot.

    A row has the keys case, ours and unit. With a peer, it also has peer, peer_name and ratio; a
    ratio above 1 means that ours is better. An optional `share` is the model's FLOP/s over those of
    matrix products.
    """
    use_huge_pages()  # for the peers, too
    parser = _parser(doc, cases, given, releases, plot is not None)
    arguments = parser.parse_args()
    values = [arguments.tiny, *([getattr(arguments, given[0])] if given else [])]
    header = {"machine": machine(), "versions": _versions(libraries), "command": _command()}
    if releases and arguments.jax:
        header["others"] = _started(parser, arguments.jax.split(","))
    rows = []
    for name in arguments.case or default or cases:
        for row in cases[name](*values):
            rows.append(row)
            print(_line(row), flush=True)
            # Written after each row, so that nothing measured is lost.
            if arguments.json:
                with open(arguments.json, "w") as out:
                    json.dump(header | {"rows": rows}, out, indent=2)
    if plot and arguments.plot:
        pictures.save(plot(rows), arguments.plot)


def _parser(
    doc: str,
    cases: Iterable[str],
    given: tuple[str, str] | None,
    releases: bool,
    plots: bool,
) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", help="write machine, versions, command and rows to this file")
    parser.add_argument(
        "--case", choices=list(cases), action="append", help="only this case; may be repeated"
    )
    parser.add_argument("--tiny", action="store_true", help="small and short, to try the script")
    if given:
        parser.add_argument(f"--{given[0]}", help=given[1])
    if releases:
        parser.add_argument(
            "--jax",
            help="interpreter of an environment with the package's libraries and another release "
            "of JAX, such as the one that `launch/setup_venv.sh --jax=0.12.0.1` prints; several "
            "with commas. On a CPU, our side also runs there, as one more peer, with the XLA flag "
            "that the package sets for that release",
        )
    if plots:
        parser.add_argument("--plot", help="draw the rows to this PNG file")
    return parser


def _started(parser: argparse.ArgumentParser, pythons: list[str]) -> dict[str, dict[str, str]]:
    """Starts the interpreters of --jax. Returns the versions of each, by the name of its side."""
    if gpu():
        parser.error("--jax: the sides take turns on a CPU only")
    found = {}
    for python in pythons:
        if not shutil.which(python):
            parser.error(f"--jax={python}: no such program")
        process = Interpreter(python)
        versions = process.submit(_own_versions).result()
        if (name := f"jax {versions['jax']}") in found:
            parser.error(f"--jax={python}: another interpreter has {name}, too")
        _others[name], found[name] = process, versions
    return found


def _own_versions() -> dict[str, str]:
    libraries = {name: metadata.version(name) for name in ("jax", "jaxlib", "flax", "numpy")}
    return {"python": platform.python_version(), **libraries}


def machine() -> str:
    cores = f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} cores"
    return ", ".join(filter(None, [_cpu(), cores, gpu()]))


def _versions(libraries: Iterable[str]) -> dict[str, str]:
    installed_peers = filter(importlib.util.find_spec, PEERS)
    return {name: metadata.version(name) for name in [*libraries, *installed_peers]}


def _command() -> list[str]:
    """Returns the command line without the paths of this machine."""
    paths = ("--data=", "--jax=", "--json=", "--plot=", "--root=")
    return [word.partition("=")[0] if word.startswith(paths) else word for word in sys.argv]


def _line(row: dict) -> str:
    line = f"{row['case']:44} {_shown(row['ours']):>14} {row['unit']:10} "
    if "peer" in row:
        line += f"{_shown(row['peer']):>14} {row['peer_name']:24} {row['ratio']:6.2f}"
    if "share" in row:
        line += f"  {row['share']:4.0%} of the products' rate"
    return line


def _cpu() -> str:
    """Returns the processor's name, and whether it has AVX-512, which decides the speed."""
    try:
        with open("/proc/cpuinfo") as lines:
            fields = dict(
                [part.strip() for part in line.split(":", 1)] for line in lines if ":" in line
            )
    except OSError:
        return platform.machine()
    avx512 = " with AVX-512" if "avx512f" in fields.get("flags", "").split() else ""
    return f"{platform.machine()}, {fields.get('model name', 'unnamed')}{avx512}"


@functools.cache
def gpu() -> str:
    """Returns the name of this machine's GPU and its driver's version; empty without a GPU."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.splitlines()[0]


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def beside(
    case: str, spent: dict[str, float], unit: str, shown: Callable[[float], float], **more
) -> Iterator[dict]:
    """Yields a row of "ours" beside each peer.

    Args:
      case: the name of the rows.
      spent: the seconds of "ours" and of each peer, as `sides` returns them.
      unit: the unit of the values.
      shown: turns seconds into the value that is shown.
      **more: further entries of the rows.
    """
    for peer in spent:
        if peer != "ours":
            yield {
                "case": case,
                "ours": shown(spent["ours"]),
                "unit": unit,
                "peer": shown(spent[peer]),
                "peer_name": peer,
                "ratio": spent[peer] / spent["ours"],
                **more,
            }


def tokens_beside(case: str, spent: dict[str, float], tokens: int, **more) -> Iterator[dict]:
    """Yields the rows of `beside` in tokens a second, for calls of so many tokens."""
    return beside(case, spent, "tokens/s", lambda seconds: tokens / seconds, **more)


def in_turn(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Returns the seconds of each call: the median of `repeats` rounds.

    In a round, all calls take turns, so that other load on the machine affects all of them alike.
    A turn is two calls, of which the second is timed: a virtual machine may reclaim memory that was
    idle during the other turns (XLA's step on a CPU: 1.6 -> 2.1 s). A long first call counts
    itself, because the effect is then relatively small.
    """
    turns = {name: functools.partial(_seconds_of_turn, call) for name, call in calls.items()}
    return medians(turns, repeats)


@dataclasses.dataclass(frozen=True)
class Side:
    """One side of a comparison, whose call is made and run in a process of its library."""

    name: object
    library: str
    maker: Callable[[], Callable[[], object]]

    def start(self, process: "ProcessPoolExecutor | Interpreter") -> str | None:
        """Makes the call and tries it. Returns the reason if that fails."""
        try:
            return process.submit(_make, self).result()
        except RuntimeError as error:
            if not isinstance(process, Interpreter):
                raise
            return str(error)

    def turn(self, process: "ProcessPoolExecutor | Interpreter") -> float:
        return process.submit(_turn, self.name).result()


def sides(
    makers: dict[str, tuple[str, Callable[[], Callable[[], object]]]], repeats: int
) -> dict[str, float]:
    """Returns the seconds of each side as `in_turn`, for {side: (library, maker of its call)}.

    Each library has a separate process, whose threads and allocator do not affect the others. On a
    GPU the sides do not take turns: each has a separate process and the GPU to itself, because a
    process keeps the GPU's memory, and a GPU's speed does not drift. A peer that fails with
    RuntimeError (memory, a missing kernel) is reported on stderr and left out. The first side must
    not fail. Each interpreter of --jax also runs it, as the side "jax VERSION".
    """
    all_sides = [Side(name, library, maker) for name, (library, maker) in makers.items()]
    if gpu():
        return _one_by_one(all_sides, repeats)
    all_sides += [Side(name, name, all_sides[0].maker) for name in _others]
    for library in {side.library for side in all_sides}:
        _process(library).submit(_forget).result()
    turns = {}
    for side in all_sides:
        process = _process(side.library)
        if _starts(side, process, required=not turns):
            turns[side.name] = functools.partial(side.turn, process)
    return medians(turns, repeats)


def _one_by_one(all_sides: list[Side], repeats: int) -> dict[str, float]:
    spent = {}
    for side in all_sides:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            if _starts(side, process, required=not spent):
                spent[side.name] = statistics.median(side.turn(process) for _ in range(repeats))
    return spent


def _starts(side: Side, process: "ProcessPoolExecutor | Interpreter", required: bool) -> bool:
    """Returns whether the side's call could be made and tried."""
    reason = side.start(process)
    if reason and required:
        raise RuntimeError(reason)
    if reason:
        print(f"{side.name}: {reason}", file=sys.stderr)
    return not reason


def medians(timed: dict[str, Callable[[], float]], repeats: int) -> dict[str, float]:
    rounds = [{name: call() for name, call in timed.items()} for _ in range(repeats)]
    return {name: statistics.median(spent[name] for spent in rounds) for name in timed}


def _seconds_of_turn(call: Callable[[], object]) -> float:
    first = seconds(call)
    return first if first > _LONG_CALL else seconds(call)


def _process(library: str) -> "ProcessPoolExecutor | Interpreter":
    return _others.get(library) or _pool(library)


@functools.cache
def _pool(library: str) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


class Interpreter:
    """A process of another environment. It computes one call at a time, as a pool of one does.

    multiprocessing can't start it, because it would pass on the sys.path of this environment.
    """

    def __init__(self, python: str):
        here = pathlib.Path(__file__).resolve().parent
        self._connection, other = multiprocessing.Pipe()
        code = f"import harness; harness.serve({other.fileno()}, {sys.argv[0]!r})"
        path = os.pathsep.join(map(str, (here, here.parent)))
        self._process = subprocess.Popen(
            [python, "-P", "-c", code],
            env=os.environ | {"PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            pass_fds=[other.fileno()],
        )
        other.close()

    def submit(self, function: Callable, *arguments) -> Future:
        try:
            self._connection.send((function, arguments))
            result, error = self._connection.recv()
        except (EOFError, ConnectionError):
            raise SystemExit(f"{self._process.args[0]} ended") from None
        future = Future()
        if error:
            # Another release may lack anything that a call needs.
            future.set_exception(RuntimeError(error))
        else:
            future.set_result(result)
        return future


def serve(descriptor: int, script: str) -> None:
    """Computes the calls of an `Interpreter` until it ends.

    `script` is the benchmark, whose functions are pickled as those of __main__.
    """
    sys.modules["__main__"].__dict__.update(runpy.run_path(script, run_name="__mp_main__"))
    connection = Connection(descriptor)
    while True:
        try:
            function, arguments = connection.recv()
        except EOFError:
            return
        try:
            connection.send((function(*arguments), ""))
        except Exception as error:
            traceback.print_exc()
            connection.send((None, f"{type(error).__name__}: {error}"))


# The calls of the sides that this process runs.
_calls: dict[object, Callable[[], object]] = {}


def _forget() -> None:
    _calls.clear()


def _make(side: Side) -> str | None:
    """Makes the side's call in this process and tries it. Returns the reason if that fails."""
    if gpu() and not on_gpu(side.library):
        return f"the installed {side.library} does not see this machine's GPU"
    try:
        call = side.maker()
        call()
    # JAX and torch both raise it.
    except RuntimeError as error:
        return f"{error}".strip().splitlines()[0]
    _calls[side.name] = call
    return None


def on_gpu(library: str) -> bool:
    """Returns whether "jax" or "torch" sees this machine's GPU."""
    if library == "jax":
        import jax

        return jax.default_backend() == "gpu"
    import torch

    return torch.cuda.is_available()


def _turn(name: object) -> float:
    return _seconds_of_turn(_calls[name])


def apart(function: Callable, *arguments):
    """Returns function(*arguments), run in a separate process that ends afterwards.

    Raises BrokenProcessPool if the process was killed.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
