"""The training loop: runs the updates of a task and, after each one, the hooks that are due.

The trainer knows neither models nor data sets, only a task. `Trainer.run` reads from top to bottom
as a run does: it restores the newest checkpoint or initializes the state, and then, for each step,
it reads a batch, which is a pure function of the config and the step, and applies the jitted
training step. After the update it calls the hooks in a fixed order: the progress line, the
evaluation, the caller's hooks, and the checkpoint, which comes last so that it contains whatever
the others changed.
"""

import bisect
import contextlib
import functools
import json
import math
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TextIO

import grain
import jax
import numpy as np
from jax.sharding import NamedSharding
from ml_collections import ConfigDict

import transformer_jax
from transformer_jax import config as configs
from transformer_jax import losses, pictures
from transformer_jax.config import SCHEDULES, Interrupted, Preempted, RunError, UserError
from transformer_jax.data import rows
from transformer_jax.distributed import hosts
from transformer_jax.pictures import progress
from transformer_jax.pictures.progress import Bar, console, doing, say
from transformer_jax.storage import buckets
from transformer_jax.storage.buckets import Mirror, appearing, write_whole
from transformer_jax.training import optimizer, trackers, warm_start
from transformer_jax.training import step as training_step
from transformer_jax.training.checkpoint import Checkpoints, rank
from transformer_jax.training.step import Program
from transformer_jax.training.stop import Abandoned, Stop, Watchdog
from transformer_jax.training.trackers import Subject, Trackers, revision
from transformer_jax.training.warm_start import Origin

Totals = dict[str, float]  # in the checkpoint, so that a resumed run continues to count
NO_TOTALS: Totals = {"logged_step": 0, "tokens": 0, "flops": 0.0}


class Hook(NamedTuple):
    """A function that the trainer calls after updates.

    Attributes:
      every: the number of updates between two calls. It is also called after the last update.
      function: called with the `Trainer`, in every process of the run.
    """

    every: int
    function: Callable[["Trainer"], None]


class Callbacks(NamedTuple):
    """Functions that are told what a run reports. They are called in every process, or are None.

    Attributes:
      on_log: (step, {"train/loss": ..., ...}), after each progress line.
      on_evaluate: (step, {"valid/loss": ..., ...}), after each evaluation.
      on_checkpoint: (step, folder), after a checkpoint is handed over to be written. The folder
        appears once it is complete, while the updates go on.
    """

    on_log: Callable[[int, dict[str, float]], None] | None = None
    on_evaluate: Callable[[int, dict[str, float]], None] | None = None
    on_checkpoint: Callable[[int, Any], None] | None = None


def _checked_hook(every: int, function: Callable[["Trainer"], None]) -> Hook:
    # `isinstance` would also accept True and False.
    if type(every) is not int or every < 1:
        raise UserError(f"hooks: ({every!r}, {function}): the interval must be at least 1 update")
    return Hook(every, function)


def run(
    config,
    task,
    workdir,
    program: Program | None = None,
    profile: tuple[int, int] | None = None,
    *,
    origin: Origin | None = None,
    recorded=None,
    hooks: Iterable[Hook] = (),
    callbacks: Callbacks = Callbacks(),  # noqa: B008, as it is immutable
) -> dict[str, float]:
    """Trains `task` up to `config.train.num_steps`, resuming from the newest checkpoint if any.

    Args:
      config: the config of the run.
      task: the task that the config describes.
      workdir: the folder of the run.
      program: the compiled program of the config; by default one for all devices.
      profile: the first and the last update to trace.
      origin: the runs that `config.init_from` names, from `runs.spec.origin`. A run that has no
        checkpoint yet needs them.
      recorded: the config that was recorded in the workdir before this call, if any.
      hooks: functions to call between updates, see `Hook`.
      callbacks: functions to tell what the run reports, see `Callbacks`.

    Returns the scores of the last evaluation. Raises Preempted after SIGTERM and Interrupted after
    Ctrl-C, in both cases after the state has been saved. Raises RunError if a loss or a gradient is
    not finite, or if there are checkpoints but none of them can be read.
    """
    program = program or Program.of(config, task)
    run = Trainer(config, task, workdir, program, hooks, callbacks=callbacks)
    return run.run(profile, origin, recorded)


def initial_state(config, task, program: Program, origin: Origin | None) -> Any:
    """Returns the TrainState before the first update, from earlier runs if the config names any."""
    state = training_step.init(config, program)
    init_from = config.init_from if config.train.pretrained else None
    if init_from or task.other_runs:
        if origin is None:
            raise ValueError(
                f"config.init_from={init_from}, task.other_runs={task.other_runs}: run needs its "
                "argument origin, which runs.spec.origin(config, workdir) gives"
            )
        state = state.replace(params=origin.params(task.config, program, state.params))
        if line := warm_start.untrained_tokens(task, program, origin):
            say(line)
    return state.replace(params=warm_start.put_vectors(task, state.params))


class Trainer:
    """A run, as one of its processes executes it.

    Hooks read these attributes. A hook may replace `state` and so change the run. A resumed run
    then reproduces the original one only if the hook depends on nothing but the step.

    Attributes:
      config: the config of the run.
      task: the task, a contracts.task.Task.
      workdir: the folder of the run.
      program: the compiled programs.
      rows: the data, a contracts.task.Rows.
      start: the step at which this process started or resumed the run.
      step: the number of the latest step, counted from 1.
      state: the TrainState after that step.
      scores: the scores of the evaluation after that step; empty if there was none.
      ended: the reason why the run ends early, or None.
      totals: the counts of its updates up to the latest progress line.
      clock: counts the seconds since the last progress line, by purpose.
      timed: the updates since then whose time says something about the speed.
    """

    def __init__(
        self,
        config,
        task,
        workdir,
        program: Program,
        hooks: Iterable[Hook] = (),
        *,
        callbacks: Callbacks = Callbacks(),  # noqa: B008, as it is immutable
    ):
        self.config = config
        self.task = task
        self.workdir = buckets.folder_of_run(workdir)
        self.program = program
        self.rows = task.rows()
        self.scores: dict[str, float] = {}
        self.ended: str | None = None
        self.timed: list[int] = []
        self._callbacks = callbacks
        self._num_steps = config.train.num_steps
        self._eval_every, self._save_every = configs.intervals(config.train, config.checkpoint)
        self._saves_at_evaluations = configs.saves_at_evaluations(config.train, config.checkpoint)
        self._steps_at_words = steps_at_words(task)
        every = config.checkpoint.keep_every
        self._keep_every = configs.interval(every, self._num_steps) if every else None
        self._chain = None
        self._sums_up = True
        # The order matters. The evaluation comes before the caller's hooks, which may read its
        # scores, and the checkpoint comes last, because it contains the scores and any change that
        # a hook has made to the state.
        self._hooks = [
            # Before the progress line, after which the sums of the metrics start from zero.
            *([Hook(1, Trainer._record_update)] if self._keep_every else []),
            Hook(config.train.log_every, Trainer._log),
            Hook(self._eval_every, Trainer._evaluate),
            *(_checked_hook(*hook) for hook in hooks),
            Hook(1, Trainer._save_if_due),
        ]

    # --------------------------------------------------------------------------- the training loop

    def run(
        self,
        profile: tuple[int, int] | None = None,
        origin: Origin | None = None,
        recorded=None,
    ) -> dict[str, float]:
        """Trains to the end. Arguments and errors are as in the function `run`."""
        grace = self.config.train.grace
        # On the way out, the watchdog ends first, and then the last save is awaited, while signals
        # are still handled.
        with Stop(grace) as stop, self.saving(), Watchdog(stop, grace) as watchdog:
            updates = Updates(Trainer._first_update, Trainer._update, watchdog)
            batches = self.batches(stop, watchdog, profile, origin, recorded)
            with contextlib.closing(batches), doing("training"):
                for batch in batches:
                    updates([self], [batch])
        return self.scores

    @staticmethod
    def _update(trainers: Sequence["Trainer"], batches: Sequence[dict]) -> list:
        """Returns [the state of a single trainer after its next update]."""
        ((trainer, batch),) = zip(trainers, batches)
        return [trainer.program.train_step(trainer.state, batch)]

    @staticmethod
    def _first_update(trainers: Sequence["Trainer"], batches: Sequence[dict]) -> list:
        """Does the same after all processes have compiled the update."""
        hosts.compiled(trainers[0].program.train_step, trainers[0].state, batches[0])
        return Trainer._update(trainers, batches)

    # ------------------------------------------------- for several runs that train in one program

    def saved_steps(self) -> list[int]:
        """Returns the steps of the checkpoints."""
        return self._checkpoints.steps()

    def discard_after(self, step: int) -> None:
        """Deletes the checkpoints after `step`, so that the run resumes from there."""
        for later in self.saved_steps():
            if later > step:
                self._checkpoints.delete(later)

    def is_over(self) -> bool:
        """Returns whether the newest checkpoint is that of the last update, or of an early end."""
        newest = max(self.saved_steps(), default=0)
        if newest >= self._num_steps:
            return True
        evaluations = recorded_evaluations(self.workdir / "metrics.jsonl", newest)
        return Patience(self.config, [scores for _, scores in evaluations]).over

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """In the context, which surrounds `batches`, checkpoints can be read and written.

        At its end, it waits for the last save. Raises UserError for metrics that the config needs
        and the task does not measure.
        """
        self._check_evaluated()
        self._check_progress_metrics()
        with self._opened_checkpoints() as self._checkpoints:
            yield

    def batches(
        self,
        stop: Stop,
        watchdog: Watchdog,
        profile: tuple[int, int] | None = None,
        origin: Origin | None = None,
        recorded=None,
        *,
        timer: "SaveTimer | None" = None,
        shows_progress: bool = True,
    ) -> Iterator[dict[str, jax.Array]]:
        """Yields the batch of each remaining update, and does all that a run does between them.

        Before it takes the next batch, the caller computes the update and sets `state`. If the
        caller throws Preempted or Interrupted instead, the state is saved. Several runs that train
        together share a `timer`. Other arguments and errors are as in the function `run`.
        """
        self._stop, self._watchdog = stop, watchdog
        self.clock = Clock()
        with doing("initializing or restoring the state"):
            self.state, self.totals = self._restored() or self._initial(origin)
        self.start = self.step = self._saved = int(self.state.step)
        self._speaks = shows_progress  # of several runs, one says what holds for all
        if self._speaks:
            self._announce(recorded)
        self._timer = timer or SaveTimer(self.config.checkpoint.minutes, self.start)
        with (
            Reporter(
                self.workdir,
                self.start,
                self._num_steps,
                self.task.progress_metrics if shows_progress else None,
                config=self.config,
            ) as self._reporter,
            Trace(self._reporter.folder, profile) as self._trace,
        ):
            yield from self._batches_of_updates()
        if self._speaks and self._sums_up and self.step > self.start:
            for line in closing(self, self._reporter):
                say(line)
        if self._chain and self._sums_up and self.step > self.start:
            say(f"chain      {self._chain.head}, to be published with the model")

    def _batches_of_updates(self) -> Iterator[dict[str, jax.Array]]:
        self._open_chain()
        # Only process 0 has read metrics.jsonl.
        self.scores = hosts.share(self._reporter.evaluated)
        self._patience = Patience(self.config, self._reporter.evaluations)
        if not self.scores and self._has_missed_evaluation():
            self._evaluate_late()
        if self._patience.over:
            self.end(self._patience.reason)
        self._say_if_done()

        batches = self._read_batches()
        for step in range(self.start + 1, self._num_steps + 1):
            if self.ended:
                break
            self._trace.before(step)
            # Reading counts as waiting for data only if the devices have become idle meanwhile,
            # because dispatch is asynchronous and hides the time as long as updates are in flight.
            with self.clock("data", self.state.step.is_ready):
                batch = self._next(batches)
            # `due` is called at every point, because all processes must count the same points. If
            # the run stops here, the batch may be None, and `_end_if_stopped` raises.
            self._stop.due()
            self._end_if_stopped()
            try:
                yield batch
            except (Preempted, Interrupted):
                # A run that trains together with this one has stopped.
                self._save()
                raise
            self.step = step
            self._trace.after(step, self.state)
            # Before this, nothing would be lost, and a signal ends the run at once.
            self._stop.begin()
            self._reporter.step()
            self._watchdog.ping()
            self.scores = {}
            self._stop.due()
            if step == self.start + 1:
                self._say_first_step()
                # The first progress line must not count the time of the start.
                self.clock.lap()
            for hook in self._hooks:
                if self._is_due(hook.every):
                    hook.function(self)
            self._end_if_stopped()

    def end(self, reason: str, *, summary: bool = True) -> None:
        """Ends the run after this update and saves a checkpoint. All processes must call it.

        The reason is not recorded, so that the same command continues with the next update. Without
        `summary`, the run prints nothing at its end.
        """
        self.ended = reason
        self._sums_up = summary

    def record(self, values: dict[str, float]) -> None:
        """Writes values for this step to metrics.jsonl and the trackers, as "hook/<name>"."""
        numbers = {f"hook/{name}": float(value) for name, value in values.items()}
        self._reporter.write(self.step, numbers)

    def _is_due(self, every: int) -> bool:
        return self.step == self._num_steps or self.step % every == 0

    def _say_first_step(self) -> None:
        if self._speaks:
            seconds = time.monotonic() - transformer_jax.STARTED
            compiling = self.clock.spent("compile")
            say(f"first step after {seconds:.1f} s, of which {compiling:.1f} s for compiling it")

    # ------------------------------------------------------------------- restoring or initializing

    def _check_evaluated(self) -> None:
        """Prints a note if the run has no validation set.

        Raises UserError if early stopping needs one.
        """
        if "valid" in {*self.rows.eval, *self.task.evaluations()}:
            return
        data, patience = self.config.data, self.config.train.patience
        keys = "config.data.valid_files"
        if data.train_source:
            keys = "config.data.valid_source and valid_target"
        elif data.tfds_name:
            keys = "config.data.valid_split"
        if patience:
            raise UserError(
                f"config.train.patience={patience}: needs a validation set; name one with {keys}"
            )
        say(f"no validation set: this run will not be evaluated; {keys} would name one")

    def _check_progress_metrics(self) -> None:
        """Raises UserError if the progress line is to show what the loss does not measure."""
        measured = self.program.state.metrics
        if missing := [name for name in self.task.progress_metrics if name not in measured]:
            names = ", ".join(name for name in measured if name != "filled")
            raise UserError(
                f"config.task.name={self.config.task.name}: its progress_metrics name "
                f"{missing[0]!r}, which its loss does not measure; there are: {names}"
            )

    def _opened_checkpoints(self) -> Checkpoints:
        def is_frozen(path: tuple[str, ...]) -> bool:
            return self.task.group(path) is None

        folder = self.workdir / "checkpoints"
        kept = [*self._steps_at_words]
        if every := self._keep_every:
            from transformer_jax.training import chain  # which few runs write

            kept += range(every, self._num_steps + 1, every)
            kept += chain.kept(chain.read(self.workdir))  # by an earlier interval, too
        elif (self.workdir / "chain.jsonl").exists():
            raise UserError(
                f"{self.workdir}: has a chain of digests, which needs config.checkpoint.keep_every "
                "to go on; set it, or delete chain.jsonl"
            )
        return Checkpoints(folder, self.config.checkpoint, is_frozen=is_frozen, kept=kept)

    def _restored(self):
        """Returns (state, totals) of the newest readable checkpoint, or None if there is none.

        Raises RunError if there are checkpoints but none of them can be read.
        """
        checkpoints, unreadable = self._checkpoints, []
        for step in reversed(checkpoints.steps()):
            try:
                restored = checkpoints.restore(self.program.state, step)
            except RunError as error:
                say(f"{error}; trying the checkpoint before")
                unreadable.append(step)
                continue
            with hosts.first():
                # Damaged checkpoints are renamed only after an older one could be restored: if
                # none can be read, the cause may be something else, and nothing should change.
                for damaged in unreadable:
                    checkpoints.set_aside(damaged)
            say(f"resuming from step {step:,}")
            return restored
        if unreadable:
            raise RunError(
                f"{checkpoints.folder}: no checkpoint can be read; use another workdir to start "
                "again"
            )
        return None

    def _initial(self, origin: Origin | None):
        """Returns (state, totals) before the first update."""
        say(f"no checkpoint in {self._checkpoints.folder}: beginning with step 0")
        return initial_state(self.config, self.task, self.program, origin), dict(NO_TOTALS)

    def _announce(self, recorded) -> None:
        """Prints what is trained and on what, and warnings about intervals and warm-up.

        Prints the learning rate, too, if it has changed.
        """
        if self.start >= self._num_steps:
            return
        config = self.config
        if hosts.index() == 0:  # the same would be said by every process
            for line in opening(self):
                say(line)
        for line in configs.interval_warnings(config.train, config.checkpoint, config.optimizer):
            say(line)
        if recorded and self.start:
            state = self.state
            applied = int(state.updates), int(state.skipped)
            if line := rate_line(recorded, self.config, *applied, state.updates_per_step):
                say(line)

    def _has_missed_evaluation(self) -> bool:
        """Returns whether the run was stopped at a step at which an evaluation was due."""
        return 0 < self.start <= self._num_steps and self._is_due(self._eval_every)

    def _evaluate_late(self) -> None:
        self.scores = self._evaluated()
        if self._chain:
            self._chain.evaluation()
        with hosts.first(), self.clock("checkpoint"):
            self._checkpoints.score(self.start, self.scores)
        self._patience.add(self.scores)

    def _say_if_done(self) -> None:
        """Prints a note if no updates remain to be done."""
        done = f"{self.start:,} of {self._num_steps:,} steps"
        if self.start >= self._num_steps:
            say(f"nothing to do: {self.workdir} has done {done}")
        elif self.ended:
            say(
                f"nothing to do: {self.workdir} ended at step {self.start:,} of "
                f"{self._num_steps:,}: {self.ended}"
            )

    # -------------------------------------------------------------------------------- the batches

    def _read_batches(self) -> Iterator[dict[str, jax.Array]]:
        """Yields the remaining batches."""
        train, step = self.rows.train, self.start
        # The number of rows may grow during the run, and `stream` yields batches of one size, so
        # each stretch of steps with equally large batches has a stream of its own.
        with rows.started(train.batch, self.config.data.readers) as processes:
            while step < self._num_steps:
                end = min(train.until(step), self._num_steps)
                yield from stream(
                    train.batch,
                    train.size(step),
                    self.config.train.accumulation,
                    self.program.batch_sharding,
                    range(step, end),
                    readers=processes,
                )
                step = end

    def _next(self, batches: Iterator):
        """Returns the next batch, or None if the run has to stop before it is read."""
        # Data may be slow, and reading it involves no other process, so it may be abandoned.
        with contextlib.suppress(Abandoned), self._stop.abandoning():
            return next(batches)

    # ---------------------------------------------------------------------------------- the hooks

    def _log(self) -> None:
        """Reports the mean metrics of the updates since the last progress line.

        The metrics are summed on the devices and fetched only here, because a fetch waits for all
        updates in flight. Afterwards the sums start from zero again.
        """
        self._check_finite()
        state, step = self.state, self.step
        sums, skipped = jax.device_get((state.metrics, state.skipped))
        filled, positions = (int(count) for count in sums.pop("filled"))
        flops = self._flops(self.totals["logged_step"], step)
        flops_done = sum(flops.values())
        self.totals = self.totals | {
            "logged_step": step,
            "tokens": self.totals["tokens"] + filled,
            "flops": self.totals["flops"] + flops_done,
        }
        seconds = self.clock.lap()
        # Updates that compiled are left out of the rate, as their time counts as "compile".
        timed_flops = sum(flops[update] for update in self._take_timed())
        rate = timed_flops / (seconds["step"] + seconds["data"]) if timed_flops else math.nan
        applied = step * state.updates_per_step - int(skipped)
        values = {f"train/{name}": mean for name, mean in losses.mean_metrics(sums).items()}
        # Schedules count updates from 0. The throughput in tokens is derived from the rate in
        # FLOP/s, so that, like MFU, it leaves out the updates that compiled.
        values |= {
            "train/learning_rate": float(self.program.learning_rate(applied - 1)),
            "train/skipped": int(skipped),
            "train/padding": 1 - filled / positions if positions else 0.0,
            "train/tokens_total": self.totals["tokens"],
            "train/flops_total": self.totals["flops"],
            "train/tokens_per_second": filled * rate / flops_done,
            "train/mfu": rate / self.program.peak,
        }
        values |= {f"seconds/{purpose}": spent for purpose, spent in seconds.items()}
        self._reporter.write(step, values)
        self._reporter.progress(step, values)
        if self._callbacks.on_log:
            self._callbacks.on_log(step, values)
        self.state = state.replace(metrics=training_step.zeros(self.program.state.metrics))

    def _take_timed(self) -> list[int]:
        timed, self.timed = self.timed, []
        return timed

    def _flops(self, after: int, step: int) -> dict[int, float]:
        """Returns {update: its FLOPs} for the updates after `after`, up to and including `step`."""
        train = self.rows.train
        return {
            update: self.task.flops(train.row_shape(update - 1)) * train.size(update - 1)
            for update in range(after + 1, step + 1)
        }

    def _evaluate(self) -> None:
        """Evaluates the run, and ends it once config.train.patience is exhausted."""
        if self.task.calibrated is not None:
            # Calibrate even if the run has to stop, so that the saved parameters depend on the step
            # alone and a resumed run equals an uninterrupted one.
            with self.clock("evaluation"), self._watchdog.paused():
                params = self.task.calibrated(self.state.params)
                self.state = self.state.replace(params=params)
        if self._stop.reached:
            return
        self.scores = self._evaluated()
        if not self._stop.reached:
            self._patience.add(self.scores)
            if self._patience.over:
                self.end(self._patience.reason)

    def _save_if_due(self) -> None:
        # The timer comes first, because `or` short-circuits and all processes must query the timer
        # after every update.
        if (
            self._timer.due(self.step)
            or self._is_due(self._save_every)
            or (self._saves_at_evaluations and self._is_due(self._eval_every))
            or self.step in self._steps_at_words
            or (self._keep_every and self.step % self._keep_every == 0)
            or self.ended
        ):
            self._save()

    def _open_chain(self) -> None:
        """Opens the chain of digests, if the config asks for one."""
        # A digest of tensors needs a process that holds all of them.
        if not self._keep_every or jax.process_count() > 1:
            return
        from transformer_jax.training import chain  # which few runs write

        if self.start < self._num_steps or chain.read(self.workdir):
            metrics = self._reporter.folder / "metrics.jsonl"
            self._chain = chain.Chain(self.workdir, self.start, self.program.mesh, metrics)

    def _record_update(self) -> None:
        """Records the metrics of the update in the chain of digests."""
        if self._chain:
            self._chain.update(self.state.metrics)

    # ---------------------------------------------------------------------------- the evaluations

    def _evaluated(self) -> dict[str, float]:
        """Measures and reports the mean metrics of each evaluation set and the task's own scores.

        Returns {name: value}. If the run has to stop, reports nothing and returns an empty dict.
        """
        # Wait for the updates in flight, so that their time does not count as evaluation time.
        jax.block_until_ready(self.state.step)
        with self.clock("evaluation"):
            try:
                values = self._means() | self._measured()
            except Abandoned:
                values = {}
            # Some processes may have finished the evaluation, but as all of them stop here, all
            # drop the values, and the resumed run evaluates again.
            if self._stop.due() or not values:
                return {}
            self._reporter.evaluation(self.step, values)
            if self._callbacks.on_evaluate:
                self._callbacks.on_evaluate(self.step, dict(values))
        best_metric = self.config.checkpoint.best_metric
        if best_metric and best_metric not in values:
            say(
                f"config.checkpoint.best_metric={best_metric}: not measured, so no checkpoint is "
                f"kept as the best; measured are {', '.join(values)}"
            )
        return values

    def _means(self) -> dict[str, float]:
        """Returns the mean metrics of the evaluation sets and the metrics derived from them."""
        program, train = self.program, self.config.train
        # As many rows as fit in training: those of a microbatch, or of all that are in a pipeline.
        count = train.accumulation if program.mesh.shape["pipeline"] > 1 else 1
        rows = train.batch // train.accumulation * count
        values = {}
        for name, source in self.rows.eval.items():
            batches = stream(
                functools.partial(source.batch, batch=rows),
                rows,
                count,
                program.batch_sharding,
                range(source.num_batches(rows)),
            )
            # An evaluation reads streams of its own, so it does not continue the carry of training.
            carry = training_step.make_carry(self.task, rows, program.mesh, program.table)
            sums = functools.reduce(losses.add_metrics, self._sums(batches, carry))
            means = losses.mean_metrics(sums)
            means.pop("filled", None)
            means |= self.task.derived(name, means)
            values |= {f"{name}/{key}": value for key, value in means.items()}
        return values

    def _sums(self, batches: Iterator, carry):
        """Yields the summed metrics of each batch, on the host.

        The sums of a batch are fetched while the next batch is being computed, so that at most two
        batches are in flight. Adding the sums on the devices would never wait, and would put all
        batches in flight at once, which `Pace` explains.
        """
        params, batch = self.state.params, next(batches)
        with self._watchdog.paused():
            eval_step = hosts.compiled(self.program.eval_step, params, batch, carry)
            following, carry = eval_step(params, batch, carry)
        for batch in batches:
            sums = following
            following, carry = eval_step(params, batch, carry)
            yield jax.device_get(sums)
            self._watchdog.ping()
            if self._stop.due():
                raise Abandoned
        yield jax.device_get(following)

    def _measured(self) -> dict[str, float]:
        """Returns the scores of the task's own evaluations, which run on the mesh of the run."""
        values = {}
        for name, evaluation in self.task.evaluations().items():
            # The watchdog is paused, because such an evaluation, for example by beam search, may
            # take longer than any step.
            with self._watchdog.paused(), self._stop.evaluating():
                measured = evaluation(self.state.params)
            values |= {f"{name}/{key}": value for key, value in measured.items()}
        return values

    # ---------------------------------------------------------------------------- the checkpoints

    def _save(self) -> None:
        """Saves the state unless it is saved already. Raises RunError if it is not finite."""
        if self.step == self._saved:
            return
        # A run that stops for a loss that is not finite must leave no checkpoint after that step.
        self._check_finite()
        with self.clock("checkpoint"), self._watchdog.paused():
            # Metrics are written first, so that no checkpoint is ahead of metrics.jsonl, and then
            # the chain, whose entries beyond the newest checkpoint a resumed run drops.
            self._reporter.send()
            if self._chain:
                self._chain.checkpoint(self.state, kept=self.step % self._keep_every == 0)
            self._checkpoints.save(self.state, self.totals, self.scores)
        if self._callbacks.on_checkpoint:
            self._callbacks.on_checkpoint(self.step, self._checkpoints.folder / str(self.step))
        self._timer.saved()
        self._saved = self.step

    def _end_if_stopped(self) -> None:
        """Saves the state and raises Preempted or Interrupted if the run has to stop."""
        if self._stop.reached:
            self._save()
            raise self._stop.error(
                f"stopped at step {self.step:,}, state saved; run the same command again"
            )

    def _check_finite(self) -> None:
        """Raises RunError if an update since the start of this process was not finite.

        Earlier ones do not count, because the run may have skipped them under another value of
        config.train.nonfinite. Waits for the updates in flight.
        """
        last = int(self.state.last_skipped)
        stops = self.config.train.nonfinite == "stop"
        if int(self.state.skipped) and last >= self.start and stops:
            raise RunError(
                f"loss, gradient or parameters not finite at update {last:,}; nothing was saved "
                "after it. --config.train.nonfinite=skip continues without such updates; a lower "
                "learning rate, longer warm-up or clipping may help, in a new workdir"
            )


# ------------------------------------------------------------------------------------ the batches

_AHEAD = 4  # batches read and copied early, so that one slow read does not idle the devices


def stream(
    read: Callable[[int, np.ndarray], dict],
    rows: int,
    accumulation: int,
    sharding: NamedSharding,
    steps: range,
    *,
    readers: rows.Readers | None = None,
) -> Iterator[dict[str, jax.Array]]:
    """Yields the batches of consecutive steps, numbered from 0, as global arrays.

    The arrays have the shape (accumulation, rows / accumulation, ...). `read(step, indices)`
    returns the rows with these indices in the batch, as arrays (len(indices), ...). Row j of a
    batch is row j mod (rows / accumulation) of microbatch j div (rows / accumulation), whatever the
    mesh, so that a run may resume on another mesh. Each host reads, ahead of time, only the rows of
    its own devices. With `readers`, other processes call `read`.
    """
    row_indices = np.arange(rows).reshape(accumulation, -1)
    slices = sharding.addressable_devices_indices_map(row_indices.shape)
    # Devices that hold the same rows, such as along the mesh axis "tensor", share one read.
    local_indices = np.unique(
        np.concatenate([row_indices[index].ravel() for index in slices.values()])
    )

    batches = readers and readers.batches(steps, local_indices)

    def load(step):
        # `next` relies on the order of the steps, which the single thread below guarantees.
        rows = next(batches) if readers else read(int(step), local_indices)
        return {
            name: _global_array(values, row_indices, local_indices, sharding)
            for name, values in rows.items()
        }

    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=_AHEAD)
    dataset = grain.MapDataset.range(steps.start, steps.stop).map(load)
    return iter(dataset.to_iter_dataset(options))


def _global_array(values, row_indices, local_indices, sharding) -> jax.Array:
    """Returns the global array (*row_indices.shape, ...) from this host's rows.

    `values` holds the rows with the indices `local_indices`, in ascending order.
    """

    def shard(index):
        return values[np.searchsorted(local_indices, row_indices[index[:2]])]

    # The callback is asked only for this process's shards, so no host holds the whole batch.
    shape = (*row_indices.shape, *values.shape[1:])
    return jax.make_array_from_callback(shape, sharding, shard)


# ----------------------------------------------------------------- dispatching and timing updates


class Updates:
    """Computes the updates of one or more trainers, and compiles them for each new batch shape.

    The time of an update that compiles says nothing about speed, so it is counted as "compile".
    """

    def __init__(self, first: Callable, update: Callable, watchdog: Watchdog):
        """`update(trainers, batches)` returns new states; `first` is called to compile it."""
        self._first = first
        self._update = update
        self._watchdog = watchdog
        self._pace = Pace()
        self._compiled: set[tuple] = set()  # shapes of batches, for each of which jax.jit compiles

    def __call__(self, trainers: Sequence[Trainer], batches: Sequence[dict]) -> None:
        """Sets the states of the trainers after their next updates, perhaps not computed yet."""
        shapes = tuple(map(batch_shape, batches))
        if shapes in self._compiled:
            states = self._update(trainers, batches)
            # The next update donates the buffers of this state, so the fence must be a copy.
            self._pace.dispatched(functools.partial(copied, states[0].step))
            for trainer in trainers:
                trainer.timed.append(trainer.step + 1)
        else:
            self._compiled.add(shapes)
            # Wait for the updates in flight, so that their time does not count as compilation time.
            jax.block_until_ready([trainer.state.step for trainer in trainers])
            with contextlib.ExitStack() as stack:
                for trainer in trainers:
                    stack.enter_context(trainer.clock("compile"))
                stack.enter_context(self._watchdog.paused())
                # jax.jit compiles in its first call, so the whole call is timed, up to its result.
                states = jax.block_until_ready(self._first(trainers, batches))
        for trainer, state in zip(trainers, states):
            trainer.state = state


def batch_shape(batch: dict[str, jax.Array]) -> tuple:
    """Returns the names and shapes of the arrays of a batch, as a key for dictionaries."""
    return tuple(sorted((name, array.shape) for name, array in batch.items()))


@jax.jit
def copied(step: jax.Array) -> jax.Array:
    """Returns a copy of `step`, (), in a buffer of its own."""
    return step + 0  # returning `step` itself would forward the input buffer


_MAX_STEPS = 16
_MAX_SECONDS = 2.0


class Pace:
    """Limits how far the host runs ahead of the devices.

    It bounds the number of steps in flight, which are dispatched but not yet computed.

    A run that has to stop waits for the steps in flight, so they should take at most about
    2 seconds; if a single step takes longer, two are in flight. There are never more than 16,
    because XLA's CPU client deadlocks when a program over several devices is the 33rd in flight:
    the thread that dispatches it to one device is then the thread that another device needs in
    order to finish.

    Every few steps the host keeps a fence, an array that is ready as soon as its step is. At each
    fence it waits for the previous one, not for the latest, so that the devices always have a step
    to continue with.
    """

    def __init__(self):
        self._interval = 1  # steps between two markers
        self._steps = 0  # steps since the latest fence
        self._covered = 1  # steps between the previous fence and the latest one
        self._fence: jax.Array | None = None
        self._ready = time.perf_counter()

    def dispatched(self, fence: Callable[[], jax.Array]) -> None:
        """Call after dispatching a step; `fence()` returns an array that is ready with it."""
        self._steps += 1
        if self._steps < self._interval:
            return
        now = time.perf_counter()
        covered = self._steps
        if self._fence is not None:
            jax.block_until_ready(self._fence)
            now = time.perf_counter()
            # A coarse clock may show the same time twice.
            seconds = max(now - self._ready, 1e-9) / self._covered
            # Half of each limit, because up to two intervals are in flight at once.
            self._interval = max(1, min(_MAX_STEPS // 2, int(_MAX_SECONDS / 2 / seconds)))
        self._fence = fence()
        self._ready = now
        self._covered = covered
        self._steps = 0


# Each purpose of `Clock` has a text for the progress display. "step" has none, because it is
# whatever time remains.
_PURPOSES = {
    "data": "waiting for data",
    "compile": "compiling the training step",
    "evaluation": "evaluating",
    "checkpoint": "saving a checkpoint",
}


def _always() -> bool:
    return True


class Clock:
    """Counts the seconds since the last `lap` by purpose. All remaining time counts as "step"."""

    def __init__(self):
        self._spent: dict[str, float] = {}
        self._lap_start = time.perf_counter()

    @contextlib.contextmanager
    def __call__(self, purpose: str, counts: Callable[[], bool] = _always) -> Iterator[None]:
        """Counts the time in the context towards `purpose`, if `counts()` is true at its end.

        Otherwise the time counts as "step".
        """
        start = time.perf_counter()
        try:
            with jax.profiler.TraceAnnotation(purpose), progress.doing(_PURPOSES[purpose]):
                yield
        finally:
            if counts():
                self.add(purpose, time.perf_counter() - start)

    def spent(self, purpose: str) -> float:
        """Returns the seconds since the last lap that count towards `purpose`."""
        return self._spent.get(purpose, 0.0)

    def add(self, purpose: str, seconds: float) -> None:
        """Counts seconds that have just passed towards `purpose`."""
        self._spent[purpose] = self._spent.get(purpose, 0.0) + seconds

    def lap(self) -> dict[str, float]:
        """Returns {purpose: seconds} and resets all of them to zero."""
        now = time.perf_counter()
        spent = dict.fromkeys(_PURPOSES, 0.0) | self._spent
        spent["step"] = now - self._lap_start - sum(spent.values())
        self._spent = {}
        self._lap_start = now
        return spent


class Trace:
    """Profiles the updates from `updates[0]` to `updates[1]` into `folder`/profile.

    The profile can be viewed with xprof, or with the profile plugin of TensorBoard. Without
    `updates` or without a folder, nothing is traced.

    The profile contains the operations, the updates and the purposes of the clock. Python calls are
    left out, because the Python tracer has crashed the process (jax 0.10 with Python 3.11): it
    hooks into every thread, while the threads that save a checkpoint start and end.
    """

    def __init__(self, folder: pathlib.Path | None, updates: tuple[int, int] | None):
        self.folder = folder and folder / "profile"
        self.first, self.last = updates if updates and folder else (0, -1)  # an empty range
        self.running = False
        self._options = jax.profiler.ProfileOptions()
        self._options.python_tracer_level = 0
        self._update: jax.profiler.StepTraceAnnotation | None = None

    def __enter__(self):
        return self

    def before(self, step: int) -> None:
        """Call before update number `step`. Starts the trace at the first update to profile."""
        if self.first <= step <= self.last and not self.running:
            jax.profiler.start_trace(self.folder, profiler_options=self._options)
            self.running = True
        self._update = jax.profiler.StepTraceAnnotation("update", step_num=step)
        self._update.__enter__()

    def after(self, step: int, state) -> None:
        """Call after update number `step`. Ends the trace after the last update to profile."""
        self._update.__exit__(None, None, None)
        if step == self.last and self.running:
            # Dispatch is asynchronous: without this wait, the trace would miss the last updates.
            jax.block_until_ready(state.step)
            self.__exit__()

    def __exit__(self, *_):
        if self.running:
            self.running = False
            jax.profiler.stop_trace()
            say(f"profile of updates {self.first} to {self.last}: {self.folder}")


# ---------------------------------------------------------- time-based saving, and early stopping

_CHECKS = 10  # checks of the clock between two checkpoints, so that a save is late by about a tenth


class SaveTimer:
    """Tells whether the last checkpoint is `minutes` old. All processes ask after every update.

    All processes must save at the same update, but their clocks differ, so the clock of process 0
    decides. Sharing its answer after every update would cost time. Instead it is shared at a few
    updates, about a tenth of `minutes` apart, together with the number of updates until the next
    of them.
    """

    def __init__(self, minutes: float, step: int, now: Callable[[], float] = time.monotonic):
        self._seconds = 60 * minutes
        self._now = now
        self._saved = self._checked = now()
        self._last_check = step
        self._next_check = step + 1
        self._asked = step, False  # the latest step, and the answer

    def saved(self) -> None:
        """Restarts the timer. Call it whenever a checkpoint has been saved, for any reason."""
        self._saved = self._now()

    def due(self, step: int) -> bool:
        """Returns whether a checkpoint is due after update number `step`.

        Asked again for the same step, it gives the same answer, so that several runs may share it.
        """
        if step == self._asked[0]:
            return self._asked[1]
        self._asked = step, self._is_due(step)
        return self._asked[1]

    def _is_due(self, step: int) -> bool:
        if not self._seconds or step < self._next_check:
            return False
        is_due = self._now() - self._saved >= self._seconds
        is_due, updates = hosts.share([is_due, self._updates_to_next(step)])
        self._last_check = step
        self._next_check = step + updates
        self._checked = self._now()
        return is_due

    def _updates_to_next(self, step: int) -> int:
        """Returns the updates until the next check, at most twice as many as before the last."""
        # A single process shares nothing, so that it can look at the clock after every update.
        if hosts.count() == 1:
            return 1
        updates = step - self._last_check
        seconds = self._now() - self._checked
        interval = self._seconds / _CHECKS
        return max(1, int(min(2 * updates, interval * updates / max(seconds, 1e-9))))


def steps_at_words(task) -> list[int]:
    """Returns the steps after which a run has read the words of config.checkpoint.at_words.

    Words that the run does not reach are left out, with a warning. Raises UserError for values that
    are no numbers above 0, and for a task that reads no text.
    """
    wanted = task.config.checkpoint.at_words
    if not wanted:
        return []
    if not all(type(words) in (int, float) and 0 < words < math.inf for words in wanted):
        raise UserError(
            f"config.checkpoint.at_words={wanted}: must be numbers of words above 0, as in "
            "(1e6, 2e6)"
        )
    num_steps = task.config.train.num_steps
    try:
        most = task.words_read(num_steps)
    except UserError as error:
        raise UserError(f"config.checkpoint.at_words={wanted}: {error}; leave it out") from None
    if beyond := [words for words in wanted if words > most]:
        say(
            f"warning: config.checkpoint.at_words={beyond[0]:g}: the run ends after {most:,.0f} "
            "words; raise config.train.num_steps"
        )
    steps = range(num_steps + 1)
    return [
        bisect.bisect_left(steps, words, key=task.words_read) for words in wanted if words <= most
    ]


class Patience:
    """Early stopping after `config.train.patience` evaluations in a row without a better score.

    The decision depends only on the scores of the run, so that a resumed run decides as an
    uninterrupted one. Process 0 decides for all processes.

    Attributes:
      over: whether the run has to end.
    """

    def __init__(self, config, evaluations: Iterable[dict]):
        """`evaluations` are the recorded ones, each {name: score}; only process 0 needs them."""
        self._limit = config.train.patience
        self._metric = config.checkpoint.best_metric
        self._checkpoint = config.checkpoint
        self._best = -math.inf
        self._waited = 0  # evaluations since the best score
        self.over = False
        for scores in evaluations:
            if self._metric in scores:
                self._count(scores)
        self._decide()

    def add(self, scores: dict[str, float]) -> None:
        """Counts one more evaluation. Raises UserError if it lacks the best metric."""
        if not self._limit:
            return
        if self._metric not in scores:
            raise UserError(
                f"config.checkpoint.best_metric={self._metric}: not measured, and "
                f"config.train.patience={self._limit} needs it; measured are {', '.join(scores)}"
            )
        self._count(scores)
        self._decide()
        if self.over:
            say(f"the run ends here: {self.reason}")

    @property
    def reason(self) -> str:
        """The reason why the run ends, as a message."""
        return (
            f"{self._metric} has not improved in {self._limit} evaluations "
            f"(config.train.patience={self._limit})"
        )

    def _count(self, scores: dict[str, float | None]) -> None:
        """Counts an evaluation. A score that is not finite never improves."""
        value = rank(self._checkpoint, scores)
        self._waited = 0 if value > self._best else self._waited + 1
        self._best = max(self._best, value)

    def _decide(self) -> None:
        # Only process 0 has the recorded evaluations, so only it can count correctly.
        if self._limit:
            self.over = hosts.share(self._waited >= self._limit)


# ------------------------------------------------ the learning rate after num_steps has changed


def rate_line(
    recorded, config, updates: int, skipped: int, updates_per_step: int = 1
) -> str | None:
    """Returns a line about the learning rate of a run that resumes after `updates` updates.

    `recorded` is the recorded config, and `skipped` is the number of updates that were not applied.
    Returns None if `config.train.num_steps` has not changed. If it has, the learning rate may jump,
    because parts of the schedule may be fractions of the run.
    """
    old_length = recorded.train.num_steps
    new_length = config.train.num_steps
    if old_length == new_length:
        return None
    old = _rate(recorded, updates - skipped, updates_per_step)
    new = _rate(config, updates - skipped, updates_per_step)
    change = f"is {new:.3g} instead of {old:.3g}" if new != old else f"stays {new:.3g}"
    return (
        f"config.train.num_steps {old_length:,} -> {new_length:,}: "
        f"{_moved_ends(recorded, config, updates_per_step)}"
        f"the learning rate at update {updates + 1:,} {change}"
    )


def _rate(config, count: int, updates_per_step: int) -> float:
    """Returns the learning rate after `count` applied updates."""
    num_updates = config.train.num_steps * updates_per_step
    return float(optimizer.schedule(config.optimizer, num_updates)(count))


def _moved_ends(recorded, config, updates_per_step: int) -> str:
    """Returns text about the parts of the schedule whose end has moved; empty if none has."""
    line = ""

    def ends(key: str) -> tuple[int, int]:
        return _end(recorded, key, updates_per_step), _end(config, key, updates_per_step)

    old, new = ends("warmup_steps")
    if old != new:
        line += f"the warm-up now ends at {new:,} instead of {old:,}; "
    schedule = config.optimizer.schedule
    old, new = ends("decay_steps")
    if "decay_steps" in SCHEDULES[schedule] and old != new:
        line += f"the {schedule} schedule now ends at {new:,} instead of {old:,}; "
    return line


def _end(config, key: str, updates_per_step: int) -> int:
    value = config.optimizer[key]
    num_updates = config.train.num_steps * updates_per_step
    return num_updates if value is None else configs.span(value, num_updates)


# ------------------------ what a run says of itself before its first update and after its last one

# The program that uses a run, with its flags, by the method of the task that the program calls. The
# first method that a task has is taken.
_USES = {
    "translate": "translate",
    "generate": "generate --prompt=TEXT",
    "transcribe": "transcribe --audio=FILE",
    "fill": "fill_mask",
    "predict": "predict",
    "result": "draw result",
    "features": "features",
}


def opening(trainer: Trainer) -> list[str]:
    """Returns the lines that say what a run trains, on what, and what it measures."""
    config, task, program = trainer.config, trainer.task, trainer.program
    counts = task.parameter_counts()
    size = f"{counts['params']:,} parameters"
    if "params_trained" in counts:
        size += f", of which {counts['params_trained']:,} are trained"
    axes = [f"{axis} {count}" for axis, count in program.mesh.shape.items() if count > 1]
    device = program.mesh.devices.flat[0]
    devices = f"{program.mesh.devices.size} x {device.device_kind}"
    rows = trainer.rows.train.size(trainer.start)
    positions = rows * task.positions(trainer.rows.train.row_shape(trainer.start))
    microbatches = config.train.accumulation
    update = f"{rows:,} rows, {positions:,} target positions"
    lines = {
        "task": f"{config.task.name} with the model {config.model.name}: {size}",
        "devices": ", ".join([devices, *axes]),
        "an update": update + (f", in {microbatches} microbatches" if microbatches > 1 else ""),
        "updates": f"{trainer.start + 1:,} to {config.train.num_steps:,}, in {trainer.workdir}",
        "evaluated": _evaluated(trainer),
    }
    return [f"{name:<11}{line}" for name, line in lines.items() if line]


def _evaluated(trainer: Trainer) -> str:
    """Returns which sets are evaluated, by what and how often; empty if there are none."""
    task, config = trainer.task, trainer.config
    own = task.evaluations()
    if not (trainer.rows.eval or own):
        return ""
    every, _ = configs.intervals(config.train, config.checkpoint)
    sets = [*dict.fromkeys([*trainer.rows.eval, *own])]
    best = config.checkpoint.best_metric
    is_measured = best.partition("/")[0] in sets
    return f"{', '.join(sets)} every {every:,} updates" + (
        f", best by {best}" if is_measured else ""
    )


def closing(trainer: Trainer, reporter: "Reporter") -> list[str]:
    """Returns the lines that say what a run has reached, and how to use it."""
    if not reporter.active:
        return []
    seconds = time.monotonic() - transformer_jax.STARTED
    done = f"update {trainer.step:,} of {reporter.num_steps:,}"
    tokens = f"{trainer.totals['tokens']:,.0f} tokens in all"
    uses = (use for name, use in _USES.items() if callable(getattr(trainer.task, name, None)))
    use = trainer.task.program or next(uses, "evaluate")
    lines = {
        "done": f"{done} after {seconds / 60:.1f} minutes, {tokens}",
        "best": reporter.best and str(reporter.best),
        "curves": f"{trainer.workdir}/curves.png",
        "next": f"python -m transformer_jax.{use} --workdir={trainer.workdir}",
    }
    return [f"{name:<11}{line}" for name, line in lines.items() if line]


# --------------------- the output of a run: the progress line, metrics.jsonl, trackers, curves.png

_SECONDS_BETWEEN_CURVES = 60  # between two drawings, for each of which the loop waits
_SECONDS_BETWEEN_SENDS = 60  # between two copies to a bucket, which takes only whole files


class Reporter:
    """Writes the measurements of a run, in process 0 only.

    A run that was killed may have recorded steps after its last checkpoint, at `start`. Their lines
    are removed, because these steps will be done again.

    Attributes:
      folder: the local folder to which the files are written; None in processes other than 0.
      evaluations: the recorded evaluations up to `start`, each {name: score}.
      evaluated: the evaluation recorded at `start`; empty if there is none.
      best: the score and the step of the best evaluation so far, or None.
      shown: the names of the training metrics that the progress line shows; None: no bar and no
        progress lines, as another run shows them.
    """

    def __init__(
        self,
        workdir: pathlib.Path | buckets.Path,
        start: int,
        num_steps: int,
        shown: Sequence[str] | None = ("loss",),
        *,
        config: ConfigDict | None = None,
    ):
        self.workdir = workdir
        self.num_steps = num_steps
        self.shown = shown
        self.name = "/".join(str(workdir).rstrip("/").split("/")[-2:])  # such as runs/quickstart
        self.active = jax.process_index() == 0
        self.folder: pathlib.Path | None = None
        self.evaluations: list[dict[str, float]] = []
        self.evaluated: dict[str, float] = {}
        self.best: Best | None = None
        self._checkpoint = config and config.checkpoint
        if self.active:
            self._open(start, config)

    def _open(self, start: int, config: ConfigDict | None) -> None:
        self._mirror = Mirror(self.workdir, "metrics.jsonl", trackers.FILE)
        self._sent = time.monotonic()
        self.folder = self._mirror.local
        path = self.folder / "metrics.jsonl"
        evaluations = recorded_evaluations(path, start)
        self.evaluations = [scores for _, scores in evaluations]
        if evaluations and evaluations[-1][0] == start:
            self.evaluated = self.evaluations[-1]
        for step, scores in evaluations:
            self._is_best(step, scores)
        self._lines = _reopened(path, start)
        subject = Subject(self.name, self.folder, lambda: configs.flat(config), revision(), start)
        self._trackers = Trackers(config.track if config else "", subject)
        self._step, self._scores = start, self.evaluated
        self._drawn = time.monotonic()
        self._bar = Bar("training", self.num_steps, start, seconds=float("inf"))

    def __enter__(self):
        if self.active and self.shown is not None:
            self._bar.__enter__()
        return self

    def __exit__(self, *error):
        if not self.active:
            return
        if self.shown is not None:
            self._bar.__exit__(*error)
        # An error of the run itself is more important than an error in writing its last metrics.
        ignored = contextlib.suppress(RunError) if error[0] else contextlib.nullcontext()
        with ignored, self._writing():
            self._lines.close()
            draw_curves(self.folder, self.name)
            self._trackers.picture(self._step, self.folder / "curves.png")
            self._trackers.end(self._scores, failed=error[0] is not None)
            self.send()
        self._mirror.close()

    def write(self, step: int, values: dict[str, float]) -> None:
        """Writes a line to metrics.jsonl, and the finite values to the trackers."""
        if not self.active:
            return
        # JSON has neither NaN nor infinity.
        line = {name: value if math.isfinite(value) else None for name, value in values.items()}
        with self._writing():
            print(json.dumps({"step": step, **line}), file=self._lines, flush=True)
        self._trackers.log(step, values)
        self._step = step
        if time.monotonic() - self._sent > _SECONDS_BETWEEN_SENDS:
            self.send()

    def send(self) -> None:
        """Copies the files to the workdir if it is in a bucket."""
        if self.active and self.folder is not self.workdir:
            with self._writing():
                self._trackers.flush()
                self._mirror.send()
            self._sent = time.monotonic()

    def step(self) -> None:
        """Advances the progress bar by one update."""
        if self.active and self.shown is not None:
            self._bar.advance()

    def progress(self, step: int, values: dict[str, float]) -> None:
        """Shows the measurements: beside the bar in a terminal, elsewhere as a line of text."""
        if not self.active or self.shown is None:
            return
        note = _note(values, self.shown, self.best)
        if console.is_terminal:
            self._bar.advance(0, note)
        else:
            say(f"step {step:,}/{self.num_steps:,}  {note}  {self._bar.left()} left")

    def evaluation(self, step: int, values: dict[str, float]) -> None:
        """Writes and shows the scores of an evaluation.

        Draws the curves if the last drawing is old. They are drawn once more at the end of the run.
        """
        self.write(step, values)
        if not self.active:
            return
        self._scores = dict(values)
        is_best = self._is_best(step, values)
        for line in evaluation_lines(step, self.num_steps, values, is_best):
            say(line)
        if time.monotonic() - self._drawn > _SECONDS_BETWEEN_CURVES:
            with self._writing():
                draw_curves(self.folder, self.name)
            self._drawn = time.monotonic()
        self.send()

    def _is_best(self, step: int, scores: dict[str, float | None]) -> bool:
        """Counts an evaluation, and returns whether it is the best so far."""
        value = rank(self._checkpoint, scores) if self._checkpoint else -math.inf
        if value == -math.inf or (self.best and value <= self.best.rank):
            return False
        metric = self._checkpoint.best_metric
        self.best = Best(metric, scores[metric], step, value)
        return True

    def _writing(self) -> contextlib.AbstractContextManager:
        return buckets.writing(self.workdir, RunError, "; the saved checkpoints are complete")


class Best(NamedTuple):
    """The best evaluation of a run by config.checkpoint.best_metric."""

    metric: str
    score: float
    step: int
    rank: float  # by which evaluations are compared

    def __str__(self):
        return f"{self.metric} {self.score:.4f} at step {self.step:,}"


def evaluation_lines(
    step: int, num_steps: int, values: dict[str, float], is_best: bool
) -> Iterator[str]:
    """Yields lines with the scores of an evaluation, in columns that are those of the others."""
    digits = len(f"{num_steps:,}")
    names = max(map(len, values), default=0)
    cells = [f"{name:<{names}} {value:>9.4f}" for name, value in values.items()]
    cells += ["best"] if is_best else []
    first = f"step {step:>{digits},}"
    indent = len(first)
    # At least one, as on a terminal that is too narrow a line may be too long.
    a_line = max(1, (progress.width() - indent) // (2 + names + 10))
    for start in range(0, len(cells), a_line):
        text = "  ".join(["" if start else first, *cells[start : start + a_line]])
        yield " " * (indent if start else 0) + text


def _note(values: dict[str, float], shown: Sequence[str], best: Best | None = None) -> str:
    """Returns the text of the progress line, which begins with the training metrics `shown`."""
    speed = ""
    if math.isfinite(mfu := values["train/mfu"]):
        speed = f"{values['train/tokens_per_second']:,.0f} tokens/s  "
        # Above 100 %, the peak of a CPU was measured too low, because other processes were running.
        if mfu <= 1:
            speed += f"MFU {mfu:.0%}  "
    skipped = f"  skipped {values['train/skipped']}" if values["train/skipped"] else ""
    measured = "  ".join(f"{name} {values[f'train/{name}']:.4f}" for name in shown)
    best_score = f"  best {best.metric} {best.score:.4f}" if best else ""
    return (
        f"{measured}{best_score}  lr {values['train/learning_rate']:.2e}  {speed}"
        f"padding {values['train/padding']:.1%}{skipped}"
    )


def draw_curves(folder: pathlib.Path, run: str) -> pathlib.Path:
    """Draws curves.png from metrics.jsonl in `folder`, with the name of the run as the title.

    Returns the path of the picture.
    """
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    figure = pictures.curves({"": lines}, title=run)
    path = folder / "curves.png"
    with appearing(path) as temporary:
        figure.savefig(temporary, dpi=100)
    return path


def recorded_evaluations(
    path: pathlib.Path | buckets.Path, until: int
) -> list[tuple[int, dict[str, float]]]:
    """Returns (step, {name: score}) of the evaluations in a metrics file, up to a step."""
    return [
        (line["step"], {name: value for name, value in line.items() if name != "step"})
        for line in _recorded(path, until)
        if not any(name.startswith(("train/", "hook/")) for name in line)
    ]


def _recorded(path: pathlib.Path | buckets.Path, until: int) -> list[dict]:
    """Returns the lines of a metrics file up to a step, parsed."""
    recorded = []
    text = path.read_bytes().decode(errors="replace") if path.is_file() else ""
    for line in text.splitlines(keepends=True):
        # The last line that a killed run has written may be incomplete.
        with contextlib.suppress(ValueError, TypeError, KeyError):
            if line.endswith("\n") and (values := json.loads(line))["step"] <= until:
                recorded.append(values)
    return recorded


def _reopened(path: pathlib.Path, start: int) -> TextIO:
    """Removes the lines of steps after `start` from the metrics file, and opens it to append."""
    if path.exists():
        # The file is replaced as a whole, so that a kill meanwhile leaves the old one.
        recorded = _recorded(path, start)
        write_whole(path, "".join(json.dumps(values) + "\n" for values in recorded))
    return path.open("a")
