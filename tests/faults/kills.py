"""kill -9 at any moment: the same command, started again and again, ends as an undisturbed run."""

import functools
import itertools
import pathlib
import random
import time
from collections.abc import Iterable, Iterator

from tests.faults.runs import Process, Run

TEMPORARY = ".orbax-checkpoint-tmp"
# The entries of a complete checkpoint: params, rest, meta, digests.json, and two files of Orbax.
NUM_ENTRIES = 6


def look(checkpoints: pathlib.Path) -> dict[str, tuple[int, set[str]]]:
    """{name: (inode, names of the entries)} of all folders of checkpoints, temporary or not."""
    folders = {}
    for folder in checkpoints.iterdir() if checkpoints.is_dir() else ():
        try:
            folders[folder.name] = folder.stat().st_ino, {entry.name for entry in folder.iterdir()}
        except FileNotFoundError:  # deleted meanwhile
            continue
    return folders


def activity(earlier: dict, now: dict) -> str:
    """The activity of a run, by the folders at its start and now.

    It shows in the folders that are new or incomplete.
    """
    for name, (inode, entries) in now.items():
        is_new = earlier.get(name, (None, None))[0] != inode
        if is_new and TEMPORARY in name:
            is_written = {"params", "rest", "meta", "digests.json"} & entries
            return "finalising a save" if is_written else "a save"
    for name, (_, entries) in now.items():
        was_complete = name not in earlier or len(earlier[name][1]) >= NUM_ENTRIES
        if name.isdigit() and len(entries) < NUM_ENTRIES and was_complete:
            return "deleting an old one"
    return "a step"


def kills(
    run: Run, workdir: pathlib.Path, aims: Iterable[str], draw: random.Random
) -> Iterator[tuple[str, str]]:
    """Starts the command and kills it, for each aim; then lets it end.

    An aim is the activity to kill in, or "any moment". Yields the aim and the actual activity. Ends
    early if the command does. After each kill it asserts that no checkpoint was lost, and that the
    newest is that of the uninterrupted run; in the end, that the run ends as that one.
    """
    checkpoints = workdir / "checkpoints"
    newest = 0
    for aim, number in zip(aims, itertools.count()):
        earlier = look(checkpoints)
        with Process(run.command(workdir), run.folder / f"{workdir.name}-{number}.log") as process:
            alive = process.wait_for_update()
            if alive and aim == "any moment":
                time.sleep(draw.random() * 1.5)
            elif alive:
                is_reached = functools.partial(_is_at, aim, earlier, checkpoints)
                alive = process.wait_for(is_reached)
                time.sleep(draw.random() * 0.02 * (aim == "a save"))
            if not alive or process.running.poll() is not None:
                assert process.running.wait() == 0, process.log.read_text()
                break
            process.end()
        yield aim, activity(earlier, look(checkpoints))
        steps = run.steps(workdir)
        if steps:
            assert steps[-1] >= newest, (steps, newest)
            newest = steps[-1]
            run.assert_same(workdir, newest)
    run.finish(workdir)


def _is_at(aim: str, earlier: dict, checkpoints: pathlib.Path) -> bool:
    return activity(earlier, look(checkpoints)) == aim
