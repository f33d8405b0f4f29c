"""The whole fault-injection suite, with a table at its end.

python -m tests.faults [--seed=0] [--kills=100] [--starts=50] [--halves=20]
    [--only=kills|others|stops|starts|halves]

`stops` measures the seconds from a signal to the save, with updates of about a second. `starts`
repeatedly starts two processes of two devices beside four busy ones. A start takes about a minute
on two idle cores. `halves` takes half of the eight devices of a run from it, at a random moment.
"""

import argparse
import collections
import itertools
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback

import pytest

from tests.faults import cases, stops
from tests.faults.kills import kills
from tests.faults.runs import FAMILIES, Run

SIGNALS = {"SIGTERM": signal.SIGTERM, "Ctrl-C": signal.SIGINT}

AIMS = ["any moment"] * 5 + [
    "a step",
    "a save",
    "a save",
    "finalising a save",
    "finalising a save",
    "deleting an old one",
    "deleting an old one",
]


class Table:
    """Counts the attempts of each fault, and those after which the run behaved as documented."""

    def __init__(self):
        self.attempts = collections.Counter()
        self.passed = collections.Counter()
        self.skipped = set()
        self.began = time.monotonic()

    def case(self, fault: str, call, *arguments) -> None:
        try:
            call(*arguments)
        except pytest.skip.Exception:
            self.skipped.add(fault)
        except (Exception, pytest.fail.Exception):
            traceback.print_exc()
            self.add(fault, False)
        else:
            self.add(fault, True)

    def add(self, fault: str, passed: bool) -> None:
        self.attempts[fault] += 1
        self.passed[fault] += passed
        result = "passed" if passed else "FAILED"
        seconds = time.monotonic() - self.began
        print(f"{seconds:6.0f} s  {fault}: {result}", file=sys.stderr, flush=True)

    def show(self) -> None:
        width = max(map(len, [*self.attempts, *self.skipped]))
        print(f"{'fault':{width}}  tried  as promised")
        for fault, count in self.attempts.items():
            print(f"{fault:{width}}  {count:5}  {self.passed[fault]:11}")
        for fault in self.skipped - set(self.attempts):
            print(f"{fault:{width}}  skipped: not allowed here")
        seconds = time.monotonic() - self.began
        attempts, passed = self.attempts.total(), self.passed.total()
        print(f"{'all':{width}}  {attempts:5}  {passed:11}  ({seconds:.0f} s)")


def kill_all(table: Table, runs: list[Run], count: int, draw: random.Random) -> None:
    """Kills `count` times, in runs of all families in turn.

    A kill passes if its run ends with the results of the uninterrupted one.
    """
    remaining = count
    for number, run in zip(itertools.count(), itertools.cycle(runs)):
        if not remaining:
            return
        killed_in = []
        passed = True
        aims = draw.sample(AIMS, len(AIMS))[:remaining]
        try:
            for aim, activity in kills(run, run.folder / f"killed-{number}", aims, draw):
                killed_in.append(activity)
                line = f"       {run.family}: aimed at {aim}, killed in {activity}"
                print(line, file=sys.stderr, flush=True)
        except Exception:
            traceback.print_exc()
            passed = False
        remaining -= len(killed_in)
        for activity in killed_in:
            table.add(f"kill -9 in {activity}", passed)


def the_others(table: Table, folder: pathlib.Path, draw: random.Random) -> None:
    counter = itertools.count()

    def fresh():
        return folder / f"case-{next(counter)}"

    short = [Run(family, folder / f"short-{family}", 20) for family in FAMILIES]
    for run in short * 3:
        for name, number in SIGNALS.items():
            table.case(f"{name} at a random moment", cases.signalled, run, fresh(), number, draw)
    for run in short:
        table.case("a second run on the workdir", cases.two_runs, run, fresh())
    run = Run("gpt", folder / "short", 12)
    for name in cases.files(run):
        for how in (cases.TRUNCATED, cases.FLIPPED, cases.FLIPPED, cases.MISSING):
            fault = f"newest checkpoint: a file {how}"
            table.case(fault, cases.damaged_file, run, fresh(), name, how, draw)
    for _ in range(3):
        table.case("every checkpoint damaged", cases.all_damaged, run, fresh(), draw)
    table.case("disk full", cases.disk_full, run, fresh())
    table.case("read-only workdir", cases.read_only, run, fresh())
    table.case("not a number at one update", cases.not_a_number, run, fresh())
    table.case("moved, clock changed", cases.moved, run, fresh())
    if subprocess.run([*cases.ELSEWHERE, "true"], capture_output=True).returncode == 0:
        table.case("moved, clock and hostname changed", cases.moved, run, fresh(), cases.ELSEWHERE)
    for how in (cases.TRUNCATED, cases.FLIPPED, cases.FLIPPED, cases.MISSING):
        table.case(f"token store {how}", cases.damaged_store, run, fresh(), how, draw)


def the_starts(table: Table, folder: pathlib.Path, count: int, draw: random.Random) -> None:
    """One of eleven starts receives SIGTERM at a random moment."""
    folder.mkdir()
    with stops.busy(4):
        for number in range(count):
            fault = "two processes beside four busy ones"
            table.case(fault, stops.two_processes, folder / str(number))
            if number % 10 == 9:
                fault = "SIGTERM to them at a random moment"
                table.case(fault, stops.two_processes, folder / f"stopped-{number}", draw)


def the_halves(table: Table, folder: pathlib.Path, count: int, draw: random.Random) -> None:
    mesh = {"mesh__fsdp": 2, "mesh__tensor": 2, "train__batch": 8}
    runs = [Run(family, folder / f"halved-{family}", 60, mesh) for family in FAMILIES]
    for number, run in zip(range(count), itertools.cycle(runs)):
        fault = "half of the devices lost at a random moment"
        table.case(fault, cases.half_of_the_devices, run, folder / f"half-{number}", draw)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--starts", type=int, default=50)
    parser.add_argument("--halves", type=int, default=20)
    parser.add_argument("--only", choices=["kills", "others", "stops", "starts", "halves"])
    arguments = parser.parse_args()
    table = Table()
    draw = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        runs = [Run(family, folder / family, 60) for family in FAMILIES]
        if arguments.only in (None, "kills"):
            kill_all(table, runs, arguments.kills, draw)
        if arguments.only in (None, "others"):
            the_others(table, folder, draw)
        if arguments.only in (None, "stops"):
            for family, (name, number) in itertools.product(FAMILIES, SIGNALS.items()):
                fault = f"{name} in updates of 1 s: a save within {stops.MAX_SECONDS} s"
                table.case(fault, stops.latency, family, folder / "stops", number, draw)
        if arguments.only in (None, "starts"):
            the_starts(table, folder / "starts", arguments.starts, draw)
        if arguments.only in (None, "halves"):
            the_halves(table, folder, arguments.halves, draw)
    table.show()
    return int(table.passed.total() < table.attempts.total())


if __name__ == "__main__":
    sys.exit(main())
