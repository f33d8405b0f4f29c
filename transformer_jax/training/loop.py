"""The training loop. It knows no model and no data set, only a task."""

import contextlib
import time

import transformer_jax
from transformer_jax.config import RunError
from transformer_jax.configuration import run_length
from transformer_jax.data import readers
from transformer_jax.distributed import hosts
from transformer_jax.pictures.progress import doing, say
from transformer_jax.storage import buckets
from transformer_jax.training import batches, vectors
from transformer_jax.training import state as states
from transformer_jax.training.checkpoint import Checkpoints
from transformer_jax.training.clock import Clock
from transformer_jax.training.evaluation import Evaluation
from transformer_jax.training.intervals import Intervals
from transformer_jax.training.log import NO_TOTALS, Log
from transformer_jax.training.origin import Origin
from transformer_jax.training.patience import Patience, check_evaluated
from transformer_jax.training.program import Program
from transformer_jax.training.report import Reporter
from transformer_jax.training.resumed import rate_line
from transformer_jax.training.save_timer import SaveTimer
from transformer_jax.training.saves import Saves
from transformer_jax.training.session import Session
from transformer_jax.training.stop import Abandoned, Stop
from transformer_jax.training.trace import Trace
from transformer_jax.training.updates import Updates
from transformer_jax.training.watchdog import Watchdog


def run(
    config,
    task,
    workdir,
    program: Program | None = None,
    profile: tuple[int, int] | None = None,
    *,
    origin: Origin | None = None,
    recorded=None,
) -> dict[str, float]:
    """Trains `task` to `config.train.num_steps`; resumes from the newest checkpoint in `workdir`.

    Args:
      config: the config of the run.
      task: the task of the config.
      workdir: the folder of the run.
      program: the program of the config; by default on all devices.
      profile: the first and the last of the updates to trace.
      origin: the run that `config.init_from` names, from `runs.begin.origin`. A run without a
        checkpoint needs it.
      recorded: the config that the workdir held before, if any.

    Returns the scores of the last evaluation. Raises Preempted after SIGTERM and Interrupted after
    Ctrl-C, with the state saved. Raises RunError where a loss or gradient is not finite, or where
    checkpoints exist and none can be read.
    """
    workdir = buckets.folder_of_run(workdir)
    program = program or Program.of(config, task)
    rows = task.rows()
    clock = Clock()
    check_evaluated(rows, task)
    with (
        Stop(config.train.grace) as stop,
        _checkpoints(config, task, workdir) as checkpoints,
        Watchdog(stop, config.train.grace) as watchdog,
    ):
        with doing("initializing or restoring the state"):
            state, totals = _start(task, program, checkpoints, origin)
        start = int(state.step)
        _announce(config, state, start, recorded)
        timer = SaveTimer(config.checkpoint.minutes, start)
        with (
            Reporter(workdir, start, config.train.num_steps) as reporter,
            Trace(reporter.folder, profile) as trace,
        ):
            session = Session(
                config=config,
                task=task,
                rows=rows,
                program=program,
                start=start,
                checkpoints=checkpoints,
                reporter=reporter,
                clock=clock,
                stop=stop,
                watchdog=watchdog,
            )
            with doing("training"):
                return _train(session, state, totals, timer, trace)


def _checkpoints(config, task, workdir) -> Checkpoints:
    """The checkpoints of a run, for reading and saving."""

    def is_frozen(path: tuple[str, ...]) -> bool:
        return task.group(path) is None

    return Checkpoints(workdir / "checkpoints", config.checkpoint, is_frozen=is_frozen)


def _train(session: Session, state, totals, timer: SaveTimer, trace: Trace) -> dict[str, float]:
    """Makes the updates that are left. Returns the scores of the last evaluation."""
    config, stop = session.config, session.stop
    intervals = Intervals.of(config)
    update = Updates(session)
    log = Log(session, update)
    evaluation = Evaluation(session)
    saves = Saves(session, timer)
    scores = hosts.share(session.reporter.evaluated)
    patience = Patience(config, session.reporter.evaluations)
    if not scores and _has_missed_evaluation(session.start, intervals):
        scores = _evaluated_late(session, evaluation, state)
        patience.add(scores)
    _say_if_done(session, patience)

    feed = _batches(session.rows, session.program, config, session.start)
    for step in range(session.start + 1, config.train.num_steps + 1):
        if patience.over:
            break
        trace.before(step)
        # While updates are in flight, the devices do not wait for data.
        with session.clock("data", state.step.is_ready):
            batch = _next_batch(feed, stop)
        stop.due()
        saves.end_if_stopped(step - 1, state, totals, scores)
        state = update(step, state, batch)
        trace.after(step, state)
        stop.begin()
        session.reporter.step()
        session.watchdog.fed()
        scores = {}
        stop.due()
        if step == session.start + 1:
            _time_first_update(session.clock)
        if intervals.logs(step):
            saves.check_finite(state)
            state, totals = log(step, state, totals)
        if intervals.evaluates(step):
            state = evaluation.calibrated(state)
        evaluates = intervals.evaluates(step) and not stop.reached
        if evaluates:
            scores = evaluation(state, step)
            if not stop.reached:
                patience.add(scores)
        # The timer comes first: it must be asked after every update.
        if timer.due(step) or intervals.saves(step, evaluates) or patience.over:
            saves.save(step, state, totals, scores)
        saves.end_if_stopped(step, state, totals, scores)
    return scores


def _start(task, program, checkpoints, origin):
    """(state, totals) of the newest checkpoint that can be read; without a checkpoint, of step 0.

    Raises RunError where checkpoints exist and none can be read.
    """
    unreadable = []
    for step in reversed(checkpoints.steps()):
        try:
            state, totals = checkpoints.restore(program.state, step)
        except RunError as error:
            say(f"{error}; trying the checkpoint before")
            unreadable.append(step)
            continue
        with hosts.first():
            # Only now: if none could be read, the fault may be elsewhere.
            for damaged in unreadable:
                checkpoints.set_aside(damaged)
        say(f"resuming from step {step:,}")
        return state, totals
    if unreadable:
        raise RunError(
            f"{checkpoints.folder}: no checkpoint can be read; use another workdir to start again"
        )
    say(f"no checkpoint in {checkpoints.folder}: beginning with step 0")
    state = states.init(task, program.tx, program.state)
    begins_with = task.config.init_from if task.config.train.pretrained else None
    if begins_with or task.other_runs:
        if origin is None:
            raise ValueError(
                f"config.init_from={begins_with}, task.other_runs={task.other_runs}: run needs its "
                "argument origin, which runs.begin.origin(config, workdir) gives"
            )
        state = state.replace(params=origin.params(task.config, program, state.params))
    state = state.replace(params=vectors.put(task, state.params))
    return state, dict(NO_TOTALS)


def _announce(config, state, start: int, recorded) -> None:
    """Prints warnings about the length of the run, and its learning rate if that has changed."""
    if start >= config.train.num_steps:
        return
    for line in run_length.warnings(config):
        say(line)
    if recorded and start:
        line = rate_line(
            recorded, config, int(state.updates), int(state.skipped), state.updates_per_step
        )
        if line:
            say(line)


def _has_missed_evaluation(start: int, intervals: Intervals) -> bool:
    """Whether an evaluation was due at `start`, where the run was stopped."""
    return 0 < start <= intervals.last and intervals.evaluates(start)


def _evaluated_late(session: Session, evaluation: Evaluation, state) -> dict[str, float]:
    """The scores of an evaluation that was due when the run was stopped."""
    scores = evaluation(state, session.start)
    with hosts.first(), session.clock("checkpoint"):
        session.checkpoints.score(session.start, scores)
    return scores


def _say_if_done(session: Session, patience: Patience) -> None:
    """Prints that no updates are left, if so."""
    workdir = session.reporter.workdir
    start, num_steps = session.start, session.config.train.num_steps
    if start >= num_steps:
        say(f"nothing to do: {workdir} has done {start:,} of {num_steps:,} steps")
    elif patience.over:
        say(f"nothing to do: {workdir} ended at step {start:,} of {num_steps:,}: {patience.reason}")


def _batches(rows, program, config, start: int):
    """Yields the device batches from `start` to the end of the run, in parts of one size."""
    num_steps = config.train.num_steps
    step = start
    with readers.started(rows.train.batch, config.data.readers) as processes:
        while step < num_steps:
            stop = min(rows.train.until(step), num_steps)
            yield from batches.stream(
                rows.train.batch,
                rows.train.size(step),
                config.train.accumulation,
                program.batch_sharding,
                range(step, stop),
                readers=processes,
            )
            step = stop


def _next_batch(feed, stop: Stop):
    """The batch of the next update, or None where the run stops before it is read."""
    with contextlib.suppress(Abandoned), stop.abandoning():
        return next(feed)


def _time_first_update(clock: Clock) -> None:
    """Prints the time of the start, which does not count as the time of updates."""
    say(f"first step after {time.monotonic() - transformer_jax.STARTED:.1f} s")
    clock.lap()
