"""The whole fault-injection suite, with a table at its end.

python -m tests.faults [--seed=0] [--kills=100] [--starts=50] [--only=kills|others|stops|starts]

`stops` measures the seconds from a signal to the save, with updates of about a second. `starts`
starts two processes of two devices beside four busy ones, again and again: about a minute each on
two cores of their own.
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
    """How often each fault was tried, and how often the run kept what is promised."""

    def __init__(self):
        self.tried, self.kept, self.skipped, self.began = (
            collections.Counter(),
            collections.Counter(),
            set(),
            time.monotonic(),
        )

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

    def add(self, fault: str, kept: bool) -> None:
        self.tried[fault] += 1
        self.kept[fault] += kept
        print(
            f"{time.monotonic() - self.began:6.0f} s  {fault}: {'kept' if kept else 'BROKEN'}",
            file=sys.stderr,
            flush=True,
        )

    def show(self) -> None:
        width = max(map(len, [*self.tried, *self.skipped]))
        print(f"{'fault':{width}}  tried  as promised")
        for fault, count in self.tried.items():
            print(f"{fault:{width}}  {count:5}  {self.kept[fault]:11}")
        for fault in self.skipped - set(self.tried):
            print(f"{fault:{width}}  skipped: not allowed here")
        print(
            f"{'all':{width}}  {self.tried.total():5}  {self.kept.total():11}  ({time.monotonic() - self.began:.0f} s)"
        )


def kill_all(table: Table, runs: list[Run], count: int, draw: random.Random) -> None:
    """Kills `count` times, run after run, the families in turn. A kill is right where its run still
    comes to the uninterrupted one's end.
    """
    left = count
    for number, run in zip(itertools.count(), itertools.cycle(runs)):
        if not left:
            return
        fell, right = [], True
        aims = draw.sample(AIMS, len(AIMS))[:left]
        try:
            for aim, where in kills(run, run.folder / f"killed-{number}", aims, draw):
                fell.append(where)
                print(
                    f"       {run.family}: aimed at {aim}, fell in {where}",
                    file=sys.stderr,
                    flush=True,
                )
        except Exception:
            traceback.print_exc()
            right = False
        left -= len(fell)
        for where in fell:
            table.add(f"kill -9 in {where}", right)


def the_others(table: Table, folder: pathlib.Path, draw: random.Random) -> None:
    counter = itertools.count()
    fresh = lambda: folder / f"case-{next(counter)}"
    short = [Run(family, folder / f"short-{family}", 20) for family in FAMILIES]
    for run in short * 3:
        for name, number in SIGNALS.items():
            table.case(f"{name} at a random moment", cases.signalled, run, fresh(), number, draw)
    for run in short:
        table.case("a second run on the workdir", cases.two_runs, run, fresh())
    run = Run("gpt", folder / "short", 12)
    for name in cases.files(run):
        for how in (cases.TRUNCATED, cases.FLIPPED, cases.FLIPPED, cases.MISSING):
            table.case(
                f"newest checkpoint: a file {how}",
                cases.damaged_file,
                run,
                fresh(),
                name,
                how,
                draw,
            )
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
    """Of each eleven starts one is sent SIGTERM at a random moment."""
    folder.mkdir()
    with stops.busy(4):
        for number in range(count):
            table.case(
                "two processes beside four busy ones", stops.two_processes, folder / str(number)
            )
            if number % 10 == 9:
                table.case(
                    "SIGTERM to them at a random moment",
                    stops.two_processes,
                    folder / f"stopped-{number}",
                    draw,
                )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--starts", type=int, default=50)
    parser.add_argument("--only", choices=["kills", "others", "stops", "starts"])
    arguments = parser.parse_args()
    table, draw = Table(), random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        runs = [Run(family, pathlib.Path(folder) / family, 60) for family in FAMILIES]
        if arguments.only in (None, "kills"):
            kill_all(table, runs, arguments.kills, draw)
        if arguments.only in (None, "others"):
            the_others(table, pathlib.Path(folder), draw)
        if arguments.only in (None, "stops"):
            for family, (name, number) in itertools.product(FAMILIES, SIGNALS.items()):
                table.case(
                    f"{name} in updates of 1 s: a save within {stops.MOST} s",
                    stops.latency,
                    family,
                    pathlib.Path(folder) / "stops",
                    number,
                    draw,
                )
        if arguments.only in (None, "starts"):
            the_starts(table, pathlib.Path(folder) / "starts", arguments.starts, draw)
    table.show()
    return int(table.kept.total() < table.tried.total())


if __name__ == "__main__":
    sys.exit(main())
