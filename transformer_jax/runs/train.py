"""Training: from a config to the updates of its run, which has its workdir for itself."""

import contextlib
import fcntl
import json
import math
import os
import pathlib
import socket
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

import transformer_jax
from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.data.sources import text_files
from transformer_jax.distributed import hosts
from transformer_jax.pictures import progress
from transformer_jax.pictures.progress import say
from transformer_jax.runs import spec
from transformer_jax.runs.spec import Overrides, resolve
from transformer_jax.storage import buckets
from transformer_jax.storage.buckets import Path
from transformer_jax.storage.key_values import PATIENCE
from transformer_jax.training import memory, trackers, trainer, warm_start
from transformer_jax.training.step import Program
from transformer_jax.training.stop import Stop


def train(
    config: ConfigDict | str | os.PathLike,
    workdir,
    profile: tuple[int, int] | None = None,
    *,
    overrides: Overrides = (),
    data: Mapping[str, Any] | None = None,
    hooks: Iterable[trainer.Hook | tuple[int, Callable]] = (),
    on_log: Callable[[int, dict[str, float]], None] | None = None,
    on_evaluate: Callable[[int, dict[str, float]], None] | None = None,
    on_checkpoint: Callable[[int, Path | pathlib.Path], None] | None = None,
) -> dict[str, float]:
    """Trains the run that a config describes, or resumes it from its newest checkpoint.

    Args:
      config: the path of a config file, FILE.py or FILE.py:ARGUMENT, or a config, which is not
        modified.
      workdir: the folder of the run, on a disk or in a bucket.
      profile: the first and the last update to trace.
      overrides: changes to the config as in `config.load`, for example {"train.num_steps": 300}.
      data: rows instead of files, {"train": rows, "valid": rows}: a list, a DataFrame, a
        `datasets.Dataset` or any other sequence of texts, of mappings of columns, or of pairs
        (source, target). They are written to `config.data.cache`. A run resumes only with the same
        rows.
      hooks: functions to call between updates. With hooks=[(100, function)], function(trainer) is
        called after every 100th update and after the last one; `Trainer` in training/trainer.py
        lists what a hook can read.
      on_log: called with (step, metrics) after each progress line, where the metrics are those of
        metrics.jsonl, such as {"train/loss": ...}.
      on_evaluate: called with (step, scores) after each evaluation.
      on_checkpoint: called with (step, folder) when a checkpoint is being written.

    Returns the scores of the last evaluation, such as {"valid/loss": ...}, as plain floats. Raises
    UserError for an error in the config, the data or the workdir, RunError if the run can't
    continue, Preempted after SIGTERM, and Interrupted after Ctrl-C.

    Examples:
      >>> texts = [f"The cat saw {n} dogs." for n in range(1000)]
      >>> scores = transformer_jax.train(
      ...     "gpt/quickstart",
      ...     "runs/gpt",
      ...     overrides={
      ...         "data.corpus": "",
      ...         "data.tokenizer": "characters",
      ...         "model.num_layers": 1,
      ...         "train.num_steps": 20,
      ...     },
      ...     data={"train": texts[:900], "valid": texts[900:]},
      ... )
      >>> scores["valid/loss"] < 3
      True
    """
    with _starting() as stop:
        run = resolve(config, workdir, _with_rows(config, overrides, data))
        _leave_others(run.workdir)
        stop.grace = run.config.train.grace
        task = run.task()
        # A mesh that does not fit the devices, a batch or a parameter is refused here, before
        # `begin` builds the data and writes the first file.
        program = Program.of(run.config, task)
        with memory.explained(task, program), _begun(run, task, program) as recorded:
            return trainer.run(
                run.config,
                task,
                run.workdir,
                program,
                profile,
                origin=run.origin,
                recorded=recorded,
                hooks=hooks,
                callbacks=trainer.Callbacks(on_log, on_evaluate, on_checkpoint),
            )


@contextlib.contextmanager
def _starting() -> Iterator[Stop]:
    if not transformer_jax.counts_from_import:
        transformer_jax.STARTED = time.monotonic()
    transformer_jax.counts_from_import = False
    with Stop() as stop, progress.doing("preparing the run"), progress.never_silent():
        yield stop


@contextlib.contextmanager
def _begun(run: spec.RunSpec, task, program: Program) -> Iterator[ConfigDict | None]:
    """In the context, holds the workdir of a run, which is recorded there, and its data is ready.

    The value is the config that was recorded before, if any.
    """
    trackers.listed(run.config.track)
    if run.origin:
        run.origin.match(run.config, program)
    warm_start.check_vectors(task, program, is_new=not spec.exists(run.workdir))
    with _held(run.workdir):
        hosts.agree(run.shared_keys() | spec.versions())
        recorded = None
        with hosts.first():
            # Process 0 builds the data and writes the record; the others then find both.
            if not hosts.index():
                recorded = spec.begin(run.config, task, run.workdir, run.files)
            elif not spec.exists(run.workdir):
                raise UserError(
                    f"--workdir={run.workdir}: not the folder that process 0 has just written to; "
                    "it must be on storage that all hosts share"
                )
        text_files.share()
        # Only now can the fingerprints be compared, because process 0 has just prepared the data.
        hosts.agree(task.fingerprint())
        yield recorded


# ----------------------------------------------------------- several runs that train as one program

_TOGETHER = "together.json"  # in the workdir of each run, the names of those that train with it
# The keys in which the runs may differ, as their programs have them as arguments.
OWN_KEYS = ("train.seed", "data.seed", "train.dropout_seed", "optimizer.learning_rate")


class Member(NamedTuple):
    """One of several runs that train together.

    Attributes:
      workdir: its folder.
      overrides: how its config differs, in its seeds and its learning rate alone.
      on_evaluate: called with (step, scores) after each of its evaluations.
    """

    workdir: Any
    overrides: Overrides = ()
    on_evaluate: Callable[[int, dict[str, float]], None] | None = None


def train_together(
    config: ConfigDict | str | os.PathLike,
    members: Iterable[Member | tuple],
    *,
    overrides: Overrides = (),
) -> list[dict[str, float]]:
    """Trains several runs of one config in lockstep, with all their updates in one program.

    Each is an ordinary run, with metrics, evaluations and checkpoints of its own, and can be opened
    as such. docs/compare.md says when this is faster than one run after another. With
    `config.mesh.seeds`, the runs are divided over the devices.

    Args:
      config: as in `train`.
      members: the runs, each (workdir, overrides).
      overrides: changes to the config of all runs.

    Returns the scores of the last evaluation of each run. Raises UserError if the runs differ in
    more than their seeds and learning rates, for a run that has trained alone, and for a task that
    can't be mapped over seeds. Raises RunError, once the others have ended, for runs that could not
    go on. Other errors are those of `train`.

    Examples:
      >>> scores = transformer_jax.train_together(
      ...     "gpt/quickstart",
      ...     [(f"runs/seed-{seed}", {"train.seed": seed, "data.seed": seed}) for seed in range(2)],
      ...     overrides={"model.num_layers": 1, "train.num_steps": 2},
      ... )
      >>> len(scores)
      2
    """
    from transformer_jax.training import together  # which no run that trains alone needs

    members = _checked_members(members)
    with _starting() as stop:
        changed, groups = _device_groups(config, overrides, len(members))
        runs = [
            resolve(config, member.workdir, [*changed, *_pairs(member.overrides)])
            for member in members
        ]
        names = together.short_names([run.workdir for run in runs])
        _check_same(runs, names)
        stop.grace = runs[0].config.train.grace
        for run in runs:
            _check_together(run.workdir)
        tasks = [run.task() for run in runs]
        per_group = len(runs) // len(groups)
        programs = []
        for devices, first in zip(groups, range(0, len(runs), per_group)):
            program = Program.of(runs[first].config, tasks[first], devices)
            rate = runs[first].config.optimizer.learning_rate
            programs += [
                program
                if run.config.optimizer.learning_rate == rate
                else program.with_rate(run.config, task)
                for run, task in zip(runs[first : first + per_group], tasks[first:])
            ]
        _check_shapes(tasks)
        together.check(tasks[0], programs[0], len(groups))
        with memory.explained(tasks[0], programs[0], len(runs)), contextlib.ExitStack() as stack:
            recorded = []
            for run, task, program in zip(runs, tasks, programs):
                recorded.append(stack.enter_context(_begun(run, task, program)))
                buckets.write_whole(run.workdir / _TOGETHER, json.dumps(names) + "\n")
            trainers = [
                trainer.Trainer(
                    run.config,
                    task,
                    run.workdir,
                    program,
                    callbacks=trainer.Callbacks(on_evaluate=member.on_evaluate),
                )
                for member, run, task, program in zip(members, runs, tasks, programs)
            ]
            return together.run(
                [
                    together.Member(each, run.origin, earlier)
                    for each, run, earlier in zip(trainers, runs, recorded)
                ]
            )


def _device_groups(config, overrides: Overrides, count: int):
    """Returns the overrides of all runs, and the groups of devices over which they are divided.

    A single group is None, which stands for all devices.
    """
    if hosts.count() > 1:
        raise UserError("--together: trains on one host, but there are several processes")
    changes = _pairs(overrides)
    resolved = resolve(config, overrides=changes).config
    if others := {*trackers.listed(resolved.track)} - {"tensorboard"}:
        raise UserError(
            f"config.track={resolved.track}: {min(others)} keeps one record in a process, so that "
            "runs that train together can't use it; take tensorboard"
        )
    groups, devices = resolved.mesh.seeds, jax.devices()
    if groups == 1:
        return changes, [None]
    if len(devices) % groups:
        raise UserError(f"config.mesh.seeds={groups}: does not divide the {len(devices)} devices")
    size = len(devices) // groups
    # As many runs in each group. Fewer runs than groups, such as the last ones of a sweep, leave
    # devices idle.
    used = math.gcd(groups, count)
    if used < groups:
        say(f"config.mesh.seeds={groups}: {count} runs are divided over {used} groups of devices")
    parts = [devices[first : first + size] for first in range(0, used * size, size)]
    return [*changes, ("mesh.seeds", 1)], parts


def _checked_members(members: Iterable[Member | tuple]) -> list[Member]:
    """Raises UserError for what are not (workdir, overrides), or for two with one workdir."""
    members = [*members]
    if not members or any(not isinstance(each, tuple) or len(each) < 2 for each in members):
        raise UserError("train_together takes one or more pairs (workdir, overrides)")
    checked = [Member(*each) for each in members]
    folders = [str(member.workdir).rstrip("/") for member in checked]
    if twice := [folder for folder in folders if folders.count(folder) > 1]:
        raise UserError(f"train_together: two runs have the workdir {twice[0]}")
    return checked


def _pairs(overrides: Overrides) -> list[tuple[str, Any]]:
    return [*(overrides.items() if isinstance(overrides, Mapping) else overrides)]


def _check_same(runs: list[spec.RunSpec], names: list[str]) -> None:
    """Raises UserError if configs differ in more than their seeds and learning rates."""
    first, *others = [dict(configs.flat(run.config)) for run in runs]
    for name, other in zip(names[1:], others):
        for key in {**first, **other}:
            if first.get(key) != other.get(key) and key not in OWN_KEYS:
                raise UserError(
                    f"--together: {name} has config.{key}={other.get(key)!r}, "
                    f"{names[0]} {first.get(key)!r}; only seeds and "
                    "config.optimizer.learning_rate may differ"
                )


def _check_shapes(tasks: list) -> None:
    """Raises UserError if seeds have led to parameters or batches of different shapes."""

    def shapes(task) -> tuple:
        arrays = jax.tree.leaves((task.param_shapes, task.batch_spec(0)))
        return spec.tokenizer_fingerprint(task), [(x.shape, str(x.dtype)) for x in arrays]

    first = shapes(tasks[0])
    if any(shapes(task) != first for task in tasks[1:]):
        raise UserError(
            "--together: the seeds lead to different tokenizers or shapes, so that their updates "
            "are different programs; leave out --together"
        )


def _check_together(workdir: pathlib.Path | Path) -> None:
    """Raises UserError if a run has trained alone."""
    if _has_trained(workdir) and not (workdir / _TOGETHER).is_file():
        raise UserError(
            f"--together: {workdir} has trained alone, and would go on with other rounding; leave "
            "out --together, or take another folder"
        )


def _leave_others(workdir: pathlib.Path | Path) -> None:
    """Raises UserError if a run has trained together with others."""
    mark = workdir / _TOGETHER
    if not mark.is_file():
        return
    if _has_trained(workdir):
        raise UserError(
            f"--workdir={workdir}: trains together with others "
            f"({', '.join(json.loads(mark.read_text()))}); go on with --together"
        )
    mark.unlink()  # that start was refused or stopped before its first checkpoint


def _has_trained(workdir: pathlib.Path | Path) -> bool:
    """Returns whether a run has a checkpoint."""
    folder = workdir / "checkpoints"
    return folder.is_dir() and any(path.name.isdecimal() for path in folder.iterdir())


def _with_rows(config, overrides: Overrides, data: Mapping[str, Any] | None) -> Overrides:
    """Returns the overrides with the keys of the files to which the rows `data` are written."""
    if not data:
        return overrides
    from transformer_jax.data import given  # which few runs need

    pairs = [*(overrides.items() if isinstance(overrides, Mapping) else overrides)]
    values = config if isinstance(config, ConfigDict) else configs.read(config)
    values = ConfigDict(values)
    for key, value in pairs:
        if key in ("data.cache", "data.text_field"):
            configs.set_key(values, key, value)
    return [*pairs, *given.keys(data, values).items()]


class OwnLoop(NamedTuple):
    """What a training loop of one's own needs.

    Attributes:
      state: the initial TrainState, with `params`, `opt_state`, `step` and `metrics`, the sums of
        the metrics since the start. `losses.mean_metrics(jax.device_get(state.metrics))` gives
        their means.
      step: (state, batch) -> state, one update, compiled at its first call. The state that is
        passed is donated: use only the one that is returned.
      batch_of: number -> the batch of update `number`, from 0, on the devices. It depends on the
        config and the number alone, so that a loop may go on anywhere.
    """

    state: Any
    step: Callable[[Any, dict], Any]
    batch_of: Callable[[int], dict]


def make_step(
    config: ConfigDict | str | os.PathLike,
    *,
    overrides: Overrides = (),
    data: Mapping[str, Any] | None = None,
) -> OwnLoop:
    """Returns (state, step, batch_of) of a config, for a training loop of one's own.

    `config`, `overrides` and `data` are those of `train`. It prepares the data and the tokenizer as
    a run does, in `config.data.cache`, and writes no workdir. Raises UserError for an error in the
    config or the data.

    Examples:
      >>> task, _ = transformer_jax.open_run("runs/gpt")
      >>> state, step, batch_of = transformer_jax.make_step(task.config)
      >>> for number in range(3):
      ...     state = step(state, batch_of(number))
      >>> int(state.step)
      3
    """
    # A folder that does not exist stands for a run that has no checkpoint yet.
    with tempfile.TemporaryDirectory() as folder:
        run = resolve(config, pathlib.Path(folder) / "run", _with_rows(config, overrides, data))
    return loop_of(run, run.task())


def loop_of(run: spec.RunSpec, task) -> OwnLoop:
    """Returns what `make_step` does, for a run that is resolved and for its task."""
    program = Program.of(run.config, task)
    warm_start.check_vectors(task, program, is_new=True)
    state = trainer.initial_state(run.config, task, program, run.origin)
    train_rows = task.rows().train

    def batch_of(number: int) -> dict:
        (batch,) = trainer.stream(
            train_rows.batch,
            train_rows.size(number),
            run.config.train.accumulation,
            program.batch_sharding,
            range(number, number + 1),
        )
        return batch

    return OwnLoop(state, program.train_step, batch_of)


def _held(workdir):
    """Holds the workdir in process 0, on behalf of all processes."""
    return contextlib.nullcontext() if hosts.index() else held(workdir)


# ----------- exclusive use of a workdir by one run at a time: a lock on a disk, a lease in a bucket


@contextlib.contextmanager
def held(workdir: pathlib.Path | buckets.Path):
    """In the context, no second run can use the workdir, which is created if it does not exist.

    On a disk this is a file lock, which the system frees when the process ends, however it ends. In
    a bucket it is a lease, because buckets have no locks. Raises UserError if another run is at
    work in the workdir.
    """
    if isinstance(workdir, buckets.Path):
        with _leased(workdir):
            yield
        return
    with buckets.writing(f"--workdir={workdir}"):
        workdir.mkdir(parents=True, exist_ok=True)
        lock = open(workdir / ".lock", "w")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"--workdir={workdir}: another run is at work there") from None
        try:
            yield
        finally:
            if not (workdir / "config.json").exists():  # the run was refused: leave nothing behind
                (workdir / ".lock").unlink()
                with contextlib.suppress(OSError):
                    workdir.rmdir()


@contextlib.contextmanager
def _leased(workdir: buckets.Path):
    with contextlib.ExitStack() as stack:
        with buckets.writing("--workdir"):
            stack.enter_context(lease(workdir / ".lock", f"--workdir={workdir}", _end_process))
        yield


def _end_process(line: str) -> None:
    """Ends the process at once, from any thread, because another run now holds the workdir."""
    print(f"error: {line}", file=sys.stderr, flush=True)
    hosts.failed(line, 1)
    # The thread that renews the lease calls this, where `sys.exit` would not end the process.
    os._exit(1)


# --------------------------------------------------------------------------------------------------
# The lease of a workdir in a bucket: an object that names its holder, who renews it regularly.
# Objects are written only if their generation has not changed, so that of two processes that try to
# take the lease at the same time only one succeeds.

RENEWAL = 10  # seconds between two renewals, several of which may fail before SILENCE is over
SILENCE = 60  # seconds without a renewal after which the holder counts as dead


@contextlib.contextmanager
def lease(lock: Path, name: str, overtaken: Callable[[str], None]) -> Iterator[None]:
    """In the context, holds and renews the object `lock`, which messages call `name`.

    A lock that has not been renewed for SILENCE seconds is taken over. The waiting process counts
    these seconds itself, so that the clocks of two machines are never compared. Raises UserError if
    the holder is alive. If another process takes over this lock, a thread calls `overtaken` with a
    message.
    """
    identity = {
        "host": socket.gethostname(),
        "process": os.getpid(),
        "place": _machine_id(),
        "run": uuid.uuid4().hex,
    }
    content = json.dumps(identity).encode()
    ended = threading.Event()
    generation = lock.write_if(content, _generation_to_replace(lock, name))
    if generation is None:
        raise UserError(f"{name}: another run has started there at the same moment")

    def renew() -> None:
        nonlocal generation
        while not ended.wait(RENEWAL):
            # Errors are ignored, because a bucket that fails for a while may recover. Meanwhile,
            # another process can take over only if it reaches the bucket.
            with contextlib.suppress(OSError):
                if (renewed := lock.write_if(content, generation)) is None:
                    overtaken(
                        f"{name}: another run has taken over, since no renewal from this process "
                        f"reached the bucket within {SILENCE} s (or {lock} was deleted)"
                    )
                    return
                generation = renewed

    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(PATIENCE)  # if the bucket can't be reached, the lease expires by itself
        # While the thread is alive, it may still write, and change the generation.
        if generation is not None and not thread.is_alive():
            with contextlib.suppress(OSError):
                lock.write_if(None, generation, PATIENCE)


def _generation_to_replace(lock: Path, name: str) -> bytes:
    """Returns the generation of a lock that nobody holds. Raises UserError if it is held."""
    seen = lock.stamped()
    if seen.state == "missing":
        return seen.stamp.generation
    holder = {}
    with contextlib.suppress(FileNotFoundError, ValueError):
        holder = json.loads(lock.read_bytes())
    if _is_dead_here(holder):
        return seen.stamp.generation
    description = f"process {holder.get('process')} on {holder.get('host')}"
    say(
        f"{name} is held by {description}: waiting up to {SILENCE} s for a renewal "
        f"(if that process has ended, delete {lock})"
    )
    start = time.monotonic()
    while time.monotonic() - start < SILENCE:
        time.sleep(min(1, SILENCE / 10))
        now = lock.stamped()
        if now.stamp.generation == seen.stamp.generation:
            continue
        if now.state == "missing":
            return now.stamp.generation
        raise UserError(
            f"{name}: another run is at work there, {description}, and has just renewed its "
            f"lock. If it is killed, the lock is free {SILENCE} s later"
        )
    say(f"no renewal from {description} for {SILENCE} s: taking over")
    return seen.stamp.generation


def _is_dead_here(holder: dict) -> bool:
    """Returns whether the holder was a process on this machine that has ended."""
    here = _machine_id()
    if not here or holder.get("place") != here:
        return False
    return not os.path.exists(f"/proc/{holder['process']}")


def _machine_id() -> str | None:
    """Returns an id of this boot of the machine and of this container, or None if there is none.

    Within one such id, a process number identifies a process.
    """
    with contextlib.suppress(OSError):
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return None
