"""kill -9 at any moment: the same command, started again and again, comes to what it would have
come to undisturbed.
"""

import itertools
import pathlib
import random
import time
from collections.abc import Iterable, Iterator

from tests.faults.runs import Process, Run

TEMPORARY = ".orbax-checkpoint-tmp"
# entries of a checkpoint's folder at least: params, rest, meta, digests.json, two of Orbax's
WHOLE = 6


def look(checkpoints: pathlib.Path) -> dict[str, tuple[int, set[str]]]:
    """{name: (inode, names of its entries)} of every checkpoint's folder, temporary or not."""
    found = {}
    for folder in checkpoints.iterdir() if checkpoints.is_dir() else ():
        try:
            found[folder.name] = folder.stat().st_ino, {entry.name for entry in folder.iterdir()}
        except FileNotFoundError:  # gone between two looks
            continue
    return found


def phase(before: dict, now: dict) -> str:
    """In what the run was: told by the folders that are neither whole nor were there when it
    started.
    """
    new = {
        name: entries
        for name, (inode, entries) in now.items()
        if before.get(name, (None, None))[0] != inode
    }
    for name, entries in new.items():
        if TEMPORARY in name:
            return (
                "finalising a save"
                if {"params", "rest", "meta", "digests.json"} & entries
                else "a save"
            )
    was_whole = lambda name: name not in before or len(before[name][1]) >= WHOLE
    if any(
        name.isdigit() and len(entries) < WHOLE and was_whole(name)
        for name, (_, entries) in now.items()
    ):
        return "deleting an old one"
    return "a step"


def kills(
    run: Run, workdir: pathlib.Path, aims: Iterable[str], draw: random.Random
) -> Iterator[tuple[str, str]]:
    """Starts the command, kills it once it trains, and so on until it ends by itself or the aims
    are used up; then lets it end.

    An aim is the phase to kill in, or "any moment". Yields what was aimed at and where it fell.
    Asserts after each kill that the newest checkpoint is the uninterrupted run's and that none was
    lost, and at the end that all is as if nothing had happened.
    """
    checkpoints, newest = workdir / "checkpoints", 0
    for aim, number in zip(aims, itertools.count()):
        before = look(checkpoints)
        with Process(run.command(workdir), run.folder / f"{workdir.name}-{number}.log") as process:
            alive = process.begun()
            if alive and aim == "any moment":
                time.sleep(draw.random() * 1.5)
            elif alive:
                alive = process.wait_for(lambda: phase(before, look(checkpoints)) == aim)
                time.sleep(draw.random() * 0.02 * (aim == "a save"))
            if not alive or process.running.poll() is not None:
                assert process.running.wait() == 0, process.log.read_text()
                break
            process.end()
        yield aim, phase(before, look(checkpoints))
        kept = run.steps(workdir)
        if kept:
            assert kept[-1] >= newest, (kept, newest)
            newest = kept[-1]
            run.same(workdir, newest)
    run.finish(workdir)
