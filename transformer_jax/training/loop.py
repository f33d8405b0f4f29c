"""The one training loop. It knows no model and no data set, only a task."""

import contextlib
import dataclasses
import functools
import math
import time
from typing import Any

import jax
import optax

import transformer_jax
from transformer_jax import hardware, metrics
from transformer_jax.config import RunError, UserError
from transformer_jax.configuration import run_length
from transformer_jax.distributed import hosts, sharding
from transformer_jax.pictures.progress import say
from transformer_jax.storage import buckets
from transformer_jax.training import batches, optimizer
from transformer_jax.training import state as states
from transformer_jax.training.checkpoint import Checkpoints
from transformer_jax.training.evaluation import Evaluation
from transformer_jax.training.origin import Origin
from transformer_jax.training.pace import Pace
from transformer_jax.training.patience import Patience, check_evaluated
from transformer_jax.training.report import Clock, Reporter
from transformer_jax.training.resumed import rate_line
from transformer_jax.training.save_timer import SaveTimer
from transformer_jax.training.saves import Saves
from transformer_jax.training.step import make_eval_step, make_train_step
from transformer_jax.training.stop import Abandoned, Stop
from transformer_jax.training.trace import Trace
from transformer_jax.training.watchdog import Watchdog


@dataclasses.dataclass(frozen=True)
class Program:
    """What a config compiles to on a mesh. Nothing here has been allocated."""

    mesh: jax.sharding.Mesh
    table: dict[str, tuple[str, ...]]  # logical axes to mesh axes
    tx: optax.GradientTransformation
    learning_rate: optax.Schedule
    batch_sharding: jax.sharding.NamedSharding
    # of the first phase, (microbatches, rows, ...), with shardings
    batch: dict[str, jax.ShapeDtypeStruct]
    state: Any  # TrainState of ShapeDtypeStructs with shardings
    train_step: Any  # jitted (state, batch) -> state
    eval_step: Any  # jitted (params, batch) -> metrics

    @functools.cached_property
    def peak(self) -> float:
        """FLOP/s of the mesh, of which MFU is the share that the model's own take (Chowdhery et al.
        2022, appendix B).
        """
        rate, source = hardware.peak(self.mesh)
        say(f"MFU is the share of {rate / 1e12:.4g} TFLOP/s, {source}")
        return rate

    @classmethod
    def of(cls, config, task, devices=None) -> "Program":
        """Raises UserError where the mesh does not fit the devices, the batch or a parameter."""
        mesh, table = sharding.make_mesh(config.mesh, devices), sharding.rules(config.mesh)
        rows = sharding.batch_sharding(mesh, table)
        accumulation = config.train.accumulation
        most = (
            max(task.positions(phase) for phase in range(task.num_phases))
            * config.train.batch
            * config.train.log_every
        )
        if most >= 2**31:
            raise UserError(
                f"config.train.log_every={config.train.log_every}: {most:,} positions between two lines are more than are counted exactly (2^31)"
            )

        def place(spec):
            for size in (config.train.first_batch, spec.shape[0]):
                shape = (accumulation, size // accumulation, *spec.shape[1:])
                sharding.check(
                    shape,
                    rows,
                    "batch (config.train.accumulation, rows of a microbatch, positions)",
                )
            return jax.ShapeDtypeStruct(shape, spec.dtype, sharding=rows)

        batch, *_ = [
            {name: place(spec) for name, spec in task.batch_spec(phase).items()}
            for phase in range(task.num_phases)
        ]
        tx = optimizer.make(config.optimizer, config.train.num_steps, task.trainable)
        state = states.abstract(task, tx, mesh, table)
        return cls(
            mesh,
            table,
            tx,
            optimizer.schedule(config.optimizer, config.train.num_steps),
            rows,
            batch,
            state,
            make_train_step(task, tx, mesh, table, state),
            make_eval_step(task, mesh, table),
        )


def run(
    config,
    task,
    workdir,
    program: Program | None = None,
    profile: tuple[int, int] | None = None,
    *,
    origin: Origin | None = None,
    before=None,
) -> dict[str, float]:
    """Trains `task` to `config.train.num_steps`, or goes on from the newest checkpoint in
    `workdir`; returns the last evaluation.

    `program`: what the config compiles to; by default on all devices. `profile`: first and last of
    the updates that are traced. `origin`: the run that `config.init_from` names, which a run
    without a checkpoint needs (`runs.begin.origin`). `before`: the config with which a run that
    goes on was recorded last. Raises Preempted after SIGTERM and Interrupted after Ctrl-C, once the
    state is saved; RunError where a loss or gradient is not finite, or no checkpoint can be read.
    """
    workdir, train = buckets.folder_of_run(workdir), config.train
    program = program or Program.of(config, task)
    rows, clock = task.rows(), Clock()
    check_evaluated(rows, task)
    with (
        Stop(train.grace) as stop,
        Checkpoints(workdir / "checkpoints", config.checkpoint) as checkpoints,
        Watchdog(stop, train.grace) as watchdog,
    ):
        state, totals = _start(task, program, checkpoints, origin)
        start = int(state.step)
        _announce(config, state, start, before)
        eval_every, save_every = run_length.intervals(config)
        saves_evaluated = run_length.saves_at_evaluations(config)
        timer = SaveTimer(config.checkpoint.minutes, start)
        feed = _batches(rows, program, train, start)
        with (
            Reporter(workdir, start, train.num_steps) as reporter,
            Trace(reporter.folder, profile) as trace,
        ):
            update = _Updates(program.train_step, clock, watchdog)
            evaluation = Evaluation(task, rows, program, clock, reporter, stop, watchdog)
            saves = Saves(
                config,
                start,
                checkpoints,
                reporter,
                clock,
                timer=timer,
                stop=stop,
                watchdog=watchdog,
            )
            scores = hosts.share(reporter.evaluated)
            patience = Patience(config, reporter.evaluations)
            due = start == train.num_steps or (start < train.num_steps and start % eval_every == 0)
            if start and due and not scores:  # the run was stopped before it could
                scores = evaluation(state, start)
                with hosts.first(), clock("checkpoint"):
                    checkpoints.score(start, scores)
                patience.add(scores)
            if start >= train.num_steps:
                say(f"nothing to do: {workdir} has done {start:,} of {train.num_steps:,} steps")
            elif patience.over:
                say(
                    f"nothing to do: {workdir} ended at step {start:,} of {train.num_steps:,}: "
                    f"{patience.reason}"
                )

            for step in range(start + 1, train.num_steps + 1):
                if patience.over:
                    break
                trace.before(step)
                # where updates are still under way, nothing has waited
                with clock("data", state.step.is_ready):
                    batch = _wait_for_batch(feed, stop)
                stop.due()
                saves.end_if_stopped(step - 1, state, totals, scores)
                state = update(step, state, batch)
                trace.after(step, state)
                stop.begin(), reporter.step(), watchdog.fed()
                last, scores = step == train.num_steps, {}
                stop.due()
                if step == start + 1:
                    say(f"first step after {time.monotonic() - transformer_jax.STARTED:.1f} s")
                    clock.lap()  # what came before the second is no update's time
                if last or step % train.log_every == 0:
                    saves.check_finite(state)
                    state = _log(state, step, totals, program, task, rows, clock, reporter, update)
                evaluated = (last or step % eval_every == 0) and not stop.reached
                if evaluated:
                    scores = evaluation(state, step)
                    if not stop.reached:
                        patience.add(scores)
                save = last or step % save_every == 0 or (evaluated and saves_evaluated)
                if timer.due(step) or save or patience.over:
                    saves.save(step, state, totals, scores)
                saves.end_if_stopped(step, state, totals, scores)
    return scores


def _announce(config, state, start: int, before) -> None:
    """Lines about the length of the run, where updates are left."""
    if start >= config.train.num_steps:
        return
    for line in run_length.warnings(config):
        say(line)
    line = before and start and rate_line(before, config, start, int(state.skipped))
    if line:
        say(line)


def _start(task, program, checkpoints, origin):
    """(state, totals) of the newest checkpoint that can be read, or of step 0."""
    unreadable = []
    for step in reversed(checkpoints.steps()):
        try:
            state, totals = checkpoints.restore(program.state, step)
        except RunError as error:
            say(f"{error}; trying the one before")
            unreadable.append(step)
            continue
        with hosts.first():
            # only now: had none been readable, the fault might not be theirs
            for damaged in unreadable:
                checkpoints.set_aside(damaged)
        say(f"resuming from step {step:,}")
        return state, totals
    if unreadable:
        raise RunError(
            f"{checkpoints.folder}: no checkpoint can be read. To start anew, use another workdir"
        )
    say(f"no checkpoint in {checkpoints.folder}: beginning with step 0")
    state = states.init(task, program.tx, program.state)
    if task.config.init_from and task.config.train.pretrained:
        if origin is None:
            raise ValueError(
                f"config.init_from={task.config.init_from}: run needs its argument "
                "origin, which runs.begin.origin(config, workdir) gives"
            )
        state = state.replace(params=origin.params(task.config, program, state.params))
    return state, {"logged_step": 0, "tokens": 0, "flops": 0.0}


def _batches(rows, program, train, start):
    """The device batches from `start` to the end of the run, phase by phase."""
    step = start
    while step < train.num_steps:
        stop = min(rows.train.until(step), train.num_steps)
        yield from batches.stream(
            rows.train.batch,
            rows.train.size(step),
            train.accumulation,
            program.batch_sharding,
            step,
            stop,
        )
        step = stop


def _wait_for_batch(feed, stop):
    """The batch of the next update; None where the run stops before it is read."""
    with contextlib.suppress(Abandoned), stop.abandoning():
        return next(feed)


class _Updates:
    """The updates, one by one. The first of each shape is compiled, which is no measure of speed:
    its time is counted apart.
    """

    def __init__(self, train_step, clock, watchdog):
        self._train_step, self._clock, self._watchdog = train_step, clock, watchdog
        self._pace, self._compiled, self._measured = Pace(), set(), []

    def __call__(self, step, state, batch):
        shape = tuple(sorted((name, array.shape) for name, array in batch.items()))
        if shape in self._compiled:
            self._measured.append(step)
            state = self._train_step(state, batch)
            # the state itself is gone once the next update has it
            self._pace.dispatched(functools.partial(_copy, state.step))
            return state
        self._compiled.add(shape)
        jax.block_until_ready(state.step)  # updates still under way are not compiling time
        with self._clock("compile"), self._watchdog.patient():
            train_step = hosts.compiled(self._train_step, state, batch)
            return jax.block_until_ready(train_step(state, batch))

    def measured(self) -> list[int]:
        """The updates since this was asked last whose time is step time, from 1."""
        found, self._measured = self._measured, []
        return found


def _log(state, step, totals, program, task, rows, clock, reporter, update):
    """Fetches the sums since the last line, reports them, and starts them anew: the state's only
    visit to the host.
    """
    sums, skipped = jax.device_get((state.metrics, state.skipped))
    filled, positions = (int(x) for x in sums.pop("filled"))
    totals["tokens"] += filled
    flops = {
        s: task.flops(rows.train.phase(s - 1)[0]) * rows.train.size(s - 1)
        for s in range(totals["logged_step"] + 1, step + 1)
    }
    seconds, measured = clock.lap(), sum(flops[s] for s in update.measured())
    rate = measured / (seconds["step"] + seconds["data"]) if measured else math.nan
    totals["flops"] += (done := sum(flops.values()))
    totals["logged_step"] = step
    values = {f"train/{name}": mean for name, mean in metrics.means(sums).items()}
    values |= {
        "train/learning_rate": float(program.learning_rate(step - 1 - int(skipped))),
        "train/skipped": int(skipped),
        "train/padding": 1 - filled / positions if positions else 0.0,
        "train/tokens_total": totals["tokens"],
        "train/flops_total": totals["flops"],
        "train/tokens_per_second": filled * rate / done,
        "train/mfu": rate / program.peak,
    }
    values |= {f"seconds/{purpose}": spent for purpose, spent in seconds.items()}
    reporter.write(step, values)
    reporter.progress(step, values)
    return state.replace(metrics=states.zeros(program.state.metrics))


@jax.jit
def _copy(step):
    return step + 0
