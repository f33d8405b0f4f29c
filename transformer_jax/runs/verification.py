"""Proof of a training: what a run has recorded is compared with its files, and recomputed.

The chain of a run (training/chain.py) has digests of everything that it did. `inspect` finds
whether the files of the run are those that the chain describes. `recompute` repeats a stretch of
updates from a checkpoint, and finds the first update whose result differs.
"""

import functools
import itertools
import json
import pathlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.distributed import sharding
from transformer_jax.pictures.progress import speaking
from transformer_jax.runs import spec
from transformer_jax.runs.spec import Overrides
from transformer_jax.runs.train import train
from transformer_jax.storage import buckets
from transformer_jax.training import chain, trainer
from transformer_jax.training.checkpoint import Checkpoints
from transformer_jax.training.step import Program

# Updates after a checkpoint that are compared where equal bits can't be expected: rounding errors
# grow from update to update.
_FEW = 5
_CHAIN = chain.FILE


class Stretch(NamedTuple):
    """Updates from `start`, the step of a kept checkpoint or 0, up to and including `end`."""

    start: int
    end: int


class Recomputed(NamedTuple):
    """What the recomputation of a stretch has shown.

    Attributes:
      stretch: the updates.
      differences: what differs, one line each, the earliest update first.
      compared: the number of updates whose metrics were compared.
      exact: whether bits were compared; if not, losses were compared up to the tolerance.
      because: what differs from the machine, or the package, of the run; empty if `exact`.
    """

    stretch: Stretch
    differences: list[str]
    compared: int
    exact: bool
    because: str


# -------------------------------------------------------------- the files of a run and its chain


def read(workdir) -> list[dict[str, Any]]:
    """Returns the entries of the chain of a run. Raises UserError if it has none."""
    folder = buckets.folder_of_run(workdir)
    if not spec.exists(folder):
        raise UserError(f"--workdir={workdir}: no run here (no config.json)")
    entries = chain.read(folder)
    if not entries:
        raise UserError(
            f"{folder}: no {_CHAIN}; a run writes it with --config.checkpoint.keep_every"
        )
    return entries


def inspect(workdir, overrides: Overrides = ()) -> list[str]:
    """Compares the files of a run with its chain, and returns what differs, one line each.

    Compared are the entries of the chain with each other, config.json, tokenizer, data, the lines
    of metrics.jsonl, and the tensors of all checkpoints. `overrides` name files of classes, or
    where the data is.
    """
    folder, entries = buckets.folder_of_run(workdir), read(workdir)
    files, _ = configs.split_files(dict(overrides).items())
    *earlier, last = [entry for entry in entries if entry["kind"] == "start"]
    record = json.loads((folder / "config.json").read_text())
    resolved = spec.resolve(spec.read(folder, files).config, folder, overrides)
    found = [*_broken_links(entries), *_gaps(entries)]
    found += [
        f"config.json: {key} is {_shown(new)}, the chain has {_shown(old)}"
        for key, old, new in _differing(_flat(last["record"]), _flat(record))
    ]
    for start in earlier:
        found += [
            f"{_CHAIN}: at step {start['step']}, {key} was {_shown(old)}, and later {_shown(new)}"
            for key, old, new in _differing(_fixed(start["record"]), _fixed(last["record"]))
        ]
    found += [
        f"tokenizer/{name}: {'missing' if new is None else 'not that of the chain'}"
        for name, _, new in _differing(last["tokenizer"], chain.tokenizer(folder))
    ]
    found += [
        f"data: the fingerprint of {key} is not that of the chain"
        for key, _, _ in _differing(
            last["record"]["fingerprint"], spec.plain(resolved.task().fingerprint())
        )
    ]
    found += _changed_lines(folder, entries)
    return [*found, *_changed_checkpoints(folder, entries, resolved.config)]


def _broken_links(entries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    previous = ""
    for number, entry in enumerate(entries, 1):
        content = {key: value for key, value in entry.items() if key not in ("previous", "digest")}
        if chain.sealed(content, previous) != entry:
            yield f"{_CHAIN}:{number}: does not match its digest, or the entry before"
        previous = entry["digest"]


def _gaps(entries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields the updates between two entries that no entry has."""
    for before, entry in itertools.pairwise(entries):
        begin = entry["after"] if entry["kind"] == "checkpoint" else entry["step"]
        if begin != before["step"]:
            yield f"{_CHAIN}: nothing about the updates {before['step'] + 1} to {begin}"
        if len(entry.get("updates", ())) != entry["step"] - begin:
            yield f"{_CHAIN}: not all updates up to {entry['step']}"


def _saved(entries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [entry for entry in entries if entry["kind"] == "checkpoint"]


def _flat(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns {"config.train.batch": 8, ...} of a record, as config.json has it."""
    flat = {}
    for key, value in record.items():
        if isinstance(value, dict) and value:
            flat |= {f"{key}.{name}": each for name, each in _flat(value).items()}
        else:
            flat[key] = value
    return flat


def _fixed(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what may not change when a run resumes: most keys of its config, and the data."""
    may_change = tuple(f"config.{key}" for key in configs.MAY_CHANGE)
    flat = _flat({key: record.get(key) for key in ("config", "fingerprint", "files")})
    return {key: value for key, value in flat.items() if not key.startswith(may_change)}


def _differing(old: Mapping, new: Mapping) -> list[tuple[str, Any, Any]]:
    """Returns (key, old value, new value) where two mappings differ."""
    keys = sorted({*old, *new})
    return [(key, old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)]


def _shown(value) -> str:
    text = json.dumps(value)
    return text if len(text) < 60 else f"{text[:57]}..."


def _changed_lines(folder, entries) -> list[str]:
    lines = chain.lines_of(folder / "metrics.jsonl")
    recorded = [each for entry in entries for each in entry.get("lines", ())]
    found = []
    for line, each in zip(lines, recorded):
        if chain.digest(line) != each:
            found.append(f"metrics.jsonl: a line of step {line.get('step')} was changed")
    if len(lines) != len(recorded):
        found.append(f"metrics.jsonl: {len(lines)} lines, the chain has {len(recorded)}")
    return found


def _changed_checkpoints(folder, entries, config) -> list[str]:
    """Returns which checkpoints are missing, not in the chain, or have other tensors."""
    saved = {entry["step"]: entry for entry in _saved(entries)}
    below = folder / "checkpoints"
    names = [path.name for path in below.iterdir()] if below.is_dir() else []
    there = {int(name) for name in names if name.isdecimal()}
    # Other checkpoints than the kept ones, except for the newest and the best, have been deleted.
    missing = {*chain.kept(entries), max(saved, default=0)} - there - {0}
    found = [f"checkpoints/{step}: missing" for step in sorted(missing)]
    found += [f"checkpoints/{step}: not in the chain" for step in sorted(there - saved.keys())]
    if not there & saved.keys():
        return found
    # On one device, because this machine may not have those of the run.
    config = ConfigDict(config).copy_and_resolve_references()
    config.mesh = vars(configs.Mesh())
    state = Program.of(config, spec.make_task(config, folder), jax.devices()[:1]).state
    with Checkpoints(below, config.checkpoint, read_only=True) as checkpoints:
        for step in sorted(there & saved.keys()):
            found += _changed_tensors(checkpoints, state, saved[step])
    return found


def _changed_tensors(checkpoints: Checkpoints, state, entry: Mapping[str, Any]) -> list[str]:
    """Returns which tensors of a checkpoint are not those of its entry."""
    name = f"checkpoints/{entry['step']}"
    try:
        state, _ = checkpoints.restore(state, entry["step"])
    except configs.RunError as error:
        return [f"{name}: {error}"]
    return [
        f"{name}: {path} is {'missing' if new is None else 'not that of the chain'}"
        for path, _, new in _differing(entry["state"], chain.tensors(state))
    ]


# ------------------------------------------------------------------------------------ recomputation


def stretches(
    entries: Sequence[Mapping[str, Any]], start: int | None, end: int | None, count: int, seed: int
) -> list[Stretch]:
    """Returns the stretch that flags name, or `count` random ones between kept checkpoints.

    Raises UserError for updates that the chain does not have.
    """
    last = max((entry["step"] for entry in _saved(entries)), default=0)
    # The initial values need no checkpoint.
    starts = [*([0] if entries[0]["step"] == 0 else []), *chain.kept(entries)]
    if start is not None or end is not None:
        if start is None or start not in starts:
            known = ", ".join(map(str, starts))
            raise UserError(
                f"--from={start}: no checkpoint of this step was kept; there are {known}"
            )
        if end is None or not start < end <= last:
            raise UserError(f"--to={end}: must be above --from={start}, and at most {last}")
        return [Stretch(start, end)]
    between = [Stretch(*pair) for pair in itertools.pairwise(sorted({*starts, last}))]
    order = np.random.default_rng(seed).permutation(len(between))
    return sorted(between[number] for number in order[:count])


def recompute(
    workdir, stretch: Stretch, tolerance: float = 0.01, overrides: Overrides = ()
) -> Recomputed:
    """Repeats a stretch of updates in a temporary folder, and compares it with the chain.

    On a machine of the same kind, with the same package, all bits are compared: the metrics of each
    update, the lines of metrics.jsonl, and the tensors of the checkpoints on the way. Elsewhere,
    the mean losses of the first updates are compared, up to the relative `tolerance`. `overrides`
    name files of classes, or the mesh of this machine.
    """
    folder, entries = buckets.folder_of_run(workdir), read(workdir)
    if isinstance(folder, buckets.Path):
        raise UserError(f"--workdir={folder}: to recompute updates, copy the run to a disk")
    starts = _covering(entries, stretch)
    files, _ = configs.split_files(dict(overrides).items())
    with tempfile.TemporaryDirectory() as name, speaking("recomputing"):
        again = pathlib.Path(name) / "run"
        # The text is tokenized again, because the cache may hold other rows than the text.
        changes = {"data.cache": f"{name}/cache", **dict(overrides)}
        changes |= {"track": "", "checkpoint.minutes": 0.0}
        _prepare(folder, again, starts[0], stretch.start)
        config = spec.resolve(spec.read(again, files).config, again, changes).config
        because = _because(starts, config)
        end = min(stretch.end, stretch.start + _FEW) if because else stretch.end
        # A process that has gone on with another config, such as a longer run, does so here, too.
        for start, following in itertools.zip_longest(starts, starts[1:]):
            until = min(following["step"], end) if following else end
            (again / "config.json").write_text(json.dumps(start["record"]))
            train(
                spec.read(again, files).config,
                again,
                overrides=changes,
                hooks=[(1, functools.partial(_stop, until=until))],
            )
            if until == end:
                break
        repeated = chain.read(again)
        updates = range(stretch.start + 1, end + 1)
        differences = [*_other_updates(entries, repeated, updates, tolerance if because else 0.0)]
        if not because:
            differences += _other_lines(folder, again, stretch)
            differences += _other_states(entries, repeated)
    return Recomputed(stretch, differences, end - stretch.start, not because, because)


def _stop(running: trainer.Trainer, until: int) -> None:
    if running.step >= until:
        running.end(f"update {until:,} is the last one to be verified", summary=False)


def _prepare(folder: pathlib.Path, again: pathlib.Path, start: Mapping, step: int) -> None:
    """Copies to another folder what a run needs to resume from a step there."""
    again.mkdir()
    (again / "config.json").write_text(json.dumps(start["record"]))
    for name in ("tokenizer", "frozen"):
        if (folder / name).is_dir():
            shutil.copytree(folder / name, again / name)
    if not step:
        return
    shutil.copytree(folder / "checkpoints" / str(step), again / "checkpoints" / str(step))
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    before = [line for line in lines if json.loads(line)["step"] <= step]
    (again / "metrics.jsonl").write_text("".join(before))


def _covering(entries: Sequence[Mapping], stretch: Stretch) -> list[Mapping]:
    """Returns the starts of the processes that have done the updates of a stretch."""
    starts = [entry for entry in entries if entry["kind"] == "start"]
    before = [each for each in starts if each["step"] <= stretch.start]
    return [before[-1], *(each for each in starts if stretch.start < each["step"] < stretch.end)]


def _because(starts: Sequence[Mapping], config) -> str:
    """Returns why this machine may have other bits than the run, or "" if it may not."""
    here, package = chain.machine(sharding.make_mesh(config.mesh)), chain.package()
    for start in starts:
        if start["package"] != package:
            return "the run had another version of the package"
        for key, old, new in _differing(start["machine"], here):
            return f"the run had {key}={_shown(old)}, and this machine has {_shown(new)}"
    return ""


def _updates(entries: Sequence[Mapping]) -> dict[int, list]:
    """Returns {update: [digest of its metrics, sum of its loss, count]}."""
    return {
        number: values
        for entry in _saved(entries)
        for number, values in enumerate(entry["updates"], entry["after"] + 1)
    }


def _other_updates(recorded, repeated, updates: range, tolerance: float) -> Iterator[str]:
    """Yields the first update that differs. With a tolerance, its mean loss decides."""
    recorded, repeated = _updates(recorded), _updates(repeated)
    for update in updates:
        if update not in recorded:
            yield f"update {update}: not in the chain"
            return
        if update not in repeated:
            yield f"update {update}: not reached by the recomputation"
            return
        old, new = recorded[update], repeated[update]
        values = [
            total / max(count, 1) if total is not None else None for _, total, count in (old, new)
        ]
        if tolerance and None not in values:
            if abs(values[0] - values[1]) <= tolerance * abs(values[0]):
                continue
        elif old == new:
            continue
        yield (
            f"update {update} is the first that differs: since the last progress line, the mean "
            f"loss was {values[0]!r}, and {values[1]!r} is recomputed"
        )
        return


def _other_lines(folder, again, stretch: Stretch) -> Iterator[str]:
    """Yields the first line of metrics.jsonl in a stretch that differs."""

    def within(path) -> list[dict]:
        lines = chain.lines_of(path / "metrics.jsonl")
        return [line for line in lines if stretch.start < line.get("step", -1) <= stretch.end]

    for old, new in itertools.zip_longest(within(folder), within(again)):
        if old != new:
            step = (old or new)["step"]
            yield f"metrics.jsonl: a line of step {step} is not what is recomputed"
            return


def _other_states(recorded, repeated) -> Iterator[str]:
    """Yields the tensors of the checkpoints on the way that differ."""
    states = {entry["step"]: entry["state"] for entry in _saved(recorded)}
    for entry in _saved(repeated):
        for path, _, _ in _differing(states.get(entry["step"], entry["state"]), entry["state"]):
            yield f"checkpoints/{entry['step']}: {path} is not what is recomputed"
