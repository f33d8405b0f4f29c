"""The trainer: makes the updates of a run, and calls the hooks that are due after each.

It knows no model and no data set, only a task. `Trainer.run` is the whole course of a training. It
restores the state, or initializes it. Each update reads a batch, which is a pure function of the
config and the number of the step, and applies the jitted step of the program. After the update come
the hooks in their order: the progress line, the evaluation, those of the caller, the checkpoint.
"""

import contextlib
import functools
import math
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import grain
import jax
import numpy as np
from jax.sharding import NamedSharding

import transformer_jax
from transformer_jax import metrics
from transformer_jax.config import RunError, UserError
from transformer_jax.configuration import sections
from transformer_jax.configuration.sections import SCHEDULES
from transformer_jax.data import rows
from transformer_jax.distributed import hosts
from transformer_jax.pictures import progress
from transformer_jax.pictures.progress import doing, say
from transformer_jax.storage import buckets
from transformer_jax.training import optimizer, warm_start
from transformer_jax.training import state as states
from transformer_jax.training.checkpoint import Checkpoints
from transformer_jax.training.report import Reporter
from transformer_jax.training.step import Program
from transformer_jax.training.stop import Abandoned, Stop, Watchdog
from transformer_jax.training.warm_start import Origin

Totals = dict[str, float]  # saved with the checkpoint: logged_step, tokens, flops
NO_TOTALS: Totals = {"logged_step": 0, "tokens": 0, "flops": 0.0}


class Hook(NamedTuple):
    """A function that is called with the trainer after updates.

    Attributes:
      every: the number of updates between two calls. The last update of a run is always one.
      function: called with the `Trainer`, by all processes of a run.
    """

    every: int
    function: Callable[["Trainer"], None]


def _checked_hook(every: int, function: Callable[["Trainer"], None]) -> Hook:
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
) -> dict[str, float]:
    """Trains `task` to `config.train.num_steps`; resumes from the newest checkpoint in `workdir`.

    Args:
      config: the config of the run.
      task: the task of the config.
      workdir: the folder of the run.
      program: the program of the config; by default on all devices.
      profile: the first and the last of the updates to trace.
      origin: the run that `config.init_from` names, from `runs.spec.origin`. A run without a
        checkpoint needs it.
      recorded: the config that the workdir held before, if any.
      hooks: what is called beside the updates, see `Hook`.

    Returns the scores of the last evaluation. Raises Preempted after SIGTERM and Interrupted after
    Ctrl-C, with the state saved. Raises RunError where a loss or gradient is not finite, or where
    checkpoints exist and none can be read.
    """
    program = program or Program.of(config, task)
    return Trainer(config, task, workdir, program, hooks).run(profile, origin, recorded)


class Trainer:
    """A run in this process.

    Hooks read these attributes. A hook that replaces `state` changes the run, and then a resumed
    run is equal only if the hook depends on nothing but the number of the step.

    Attributes:
      config: the config of the run.
      task: its task, a contracts.task.Task.
      workdir: its folder.
      program: its compiled programs.
      rows: its data, a contracts.task.Rows.
      start: the number of updates that were done before.
      step: the number of the latest update, from 1.
      state: the TrainState after it.
      scores: the scores of the evaluation after it; empty where there was none.
      ended: why the run ends before its last update; None while it does not.
    """

    def __init__(self, config, task, workdir, program: Program, hooks: Iterable[Hook] = ()):
        self.config = config
        self.task = task
        self.workdir = buckets.folder_of_run(workdir)
        self.program = program
        self.rows = task.rows()
        self.scores: dict[str, float] = {}
        self.ended: str | None = None
        self._num_steps = config.train.num_steps
        self._eval_every, self._save_every = sections.intervals(config.train, config.checkpoint)
        self._saves_at_evaluations = sections.saves_at_evaluations(config.train, config.checkpoint)
        self._hooks = [
            Hook(config.train.log_every, Trainer._log),
            Hook(self._eval_every, Trainer._evaluate),
            *(_checked_hook(*hook) for hook in hooks),
            Hook(1, Trainer._save_if_due),
        ]

    # ------------------------------------------------------------------------ the course of a run

    def run(
        self,
        profile: tuple[int, int] | None = None,
        origin: Origin | None = None,
        recorded=None,
    ) -> dict[str, float]:
        """Trains to the end, with the arguments and the errors of the function `run`."""
        config = self.config
        self._clock = Clock()
        self._check_evaluated()
        with (
            Stop(config.train.grace) as self._stop,
            self._opened_checkpoints() as self._checkpoints,
            Watchdog(self._stop, config.train.grace) as self._watchdog,
        ):
            with doing("initializing or restoring the state"):
                self.state, self._totals = self._restored() or self._initial(origin)
            self.start = self.step = self._saved = int(self.state.step)
            self._announce(recorded)
            self._timer = SaveTimer(config.checkpoint.minutes, self.start)
            self._updates = _Updates(self.program.train_step, self._clock, self._watchdog)
            with (
                Reporter(self.workdir, self.start, self._num_steps) as self._reporter,
                Trace(self._reporter.folder, profile) as self._trace,
                doing("training"),
            ):
                self._train()
                return self.scores

    def _train(self) -> None:
        """Makes the updates that are left."""
        self.scores = hosts.share(self._reporter.evaluated)
        self._patience = Patience(self.config, self._reporter.evaluations)
        if not self.scores and self._has_missed_evaluation():
            self._evaluate_late()
        if self._patience.over:
            self.end(self._patience.reason)
        self._say_if_done()

        batches = self._batches()
        for step in range(self.start + 1, self._num_steps + 1):
            if self.ended:
                break
            self._trace.before(step)
            # While updates are in flight, the devices do not wait for data.
            with self._clock("data", self.state.step.is_ready):
                batch = self._next(batches)
            self._stop.due()
            self._end_if_stopped()
            self.step, self.state = step, self._updates(step, self.state, batch)
            self._trace.after(step, self.state)
            self._stop.begin()
            self._reporter.step()
            self._watchdog.ping()
            self.scores = {}
            self._stop.due()
            if step == self.start + 1:
                # The time of the start does not count as the time of updates.
                say(f"first step after {time.monotonic() - transformer_jax.STARTED:.1f} s")
                self._clock.lap()
            for hook in self._hooks:
                if self._is_due(hook.every):
                    hook.function(self)
            self._end_if_stopped()

    def end(self, reason: str) -> None:
        """Ends the run after this update, with a checkpoint. All processes must call it.

        The reason is not recorded: the same command goes on with the next update.
        """
        self.ended = reason

    def record(self, values: dict[str, float]) -> None:
        """Writes values of this update to metrics.jsonl and TensorBoard, as "hook/<name>"."""
        numbers = {f"hook/{name}": float(value) for name, value in values.items()}
        self._reporter.write(self.step, numbers)

    def _is_due(self, every: int) -> bool:
        return self.step == self._num_steps or self.step % every == 0

    # ------------------------------------------------------------------------------- the beginning

    def _check_evaluated(self) -> None:
        """Says that the run has no validation set, if so.

        Raises UserError where early stopping needs one.
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

    def _opened_checkpoints(self) -> Checkpoints:
        def is_frozen(path: tuple[str, ...]) -> bool:
            return self.task.group(path) is None

        folder = self.workdir / "checkpoints"
        return Checkpoints(folder, self.config.checkpoint, is_frozen=is_frozen)

    def _restored(self):
        """Returns (state, totals) of the newest checkpoint that can be read; None without one.

        Raises RunError where checkpoints exist and none can be read.
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
                # Only now: if none could be read, the fault may be elsewhere.
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
        config, task, program = self.config, self.task, self.program
        say(f"no checkpoint in {self._checkpoints.folder}: beginning with step 0")
        state = states.init(task, program.tx, program.state)
        init_from = config.init_from if config.train.pretrained else None
        if init_from or task.other_runs:
            if origin is None:
                raise ValueError(
                    f"config.init_from={init_from}, task.other_runs={task.other_runs}: run needs "
                    "its argument origin, which runs.begin.origin(config, workdir) gives"
                )
            state = state.replace(params=origin.params(task.config, program, state.params))
        return state.replace(params=warm_start.put_vectors(task, state.params)), dict(NO_TOTALS)

    def _announce(self, recorded) -> None:
        """Prints warnings about the length of the run, and its learning rate if it has changed."""
        if self.start >= self._num_steps:
            return
        config = self.config
        for line in sections.warnings(config.train, config.checkpoint, config.optimizer):
            say(line)
        if recorded and self.start:
            state = self.state
            applied = int(state.updates), int(state.skipped)
            if line := rate_line(recorded, self.config, *applied, state.updates_per_step):
                say(line)

    def _has_missed_evaluation(self) -> bool:
        """Returns whether the run was stopped where an evaluation was due."""
        return 0 < self.start <= self._num_steps and self._is_due(self._eval_every)

    def _evaluate_late(self) -> None:
        self.scores = self._evaluated()
        with hosts.first(), self._clock("checkpoint"):
            self._checkpoints.score(self.start, self.scores)
        self._patience.add(self.scores)

    def _say_if_done(self) -> None:
        """Prints that no updates are left, if so."""
        done = f"{self.start:,} of {self._num_steps:,} steps"
        if self.start >= self._num_steps:
            say(f"nothing to do: {self.workdir} has done {done}")
        elif self.ended:
            say(
                f"nothing to do: {self.workdir} ended at step {self.start:,} of "
                f"{self._num_steps:,}: {self.ended}"
            )

    # -------------------------------------------------------------------------------- the batches

    def _batches(self) -> Iterator[dict[str, jax.Array]]:
        """Yields the batches that are left, in parts of one size."""
        train, step = self.rows.train, self.start
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
        """Returns the next batch, or None where the run stops before it is read."""
        with contextlib.suppress(Abandoned), self._stop.abandoning():
            return next(batches)

    # ---------------------------------------------------------------------------------- the hooks

    def _log(self) -> None:
        """Reports the means over the updates since the last progress line.

        Fetches the sums of the metrics: nothing else of the state is copied to the host in
        training. Begins the sums again from zero.
        """
        self._check_finite()
        state, step = self.state, self.step
        sums, skipped = jax.device_get((state.metrics, state.skipped))
        filled, positions = (int(count) for count in sums.pop("filled"))
        flops = self._flops(self._totals["logged_step"], step)
        flops_done = sum(flops.values())
        self._totals = self._totals | {
            "logged_step": step,
            "tokens": self._totals["tokens"] + filled,
            "flops": self._totals["flops"] + flops_done,
        }
        seconds = self._clock.lap()
        timed_flops = sum(flops[update] for update in self._updates.take_timed())
        rate = timed_flops / (seconds["step"] + seconds["data"]) if timed_flops else math.nan
        applied = step * state.updates_per_step - int(skipped)
        values = {f"train/{name}": mean for name, mean in metrics.means(sums).items()}
        values |= {
            "train/learning_rate": float(self.program.learning_rate(applied - 1)),
            "train/skipped": int(skipped),
            "train/padding": 1 - filled / positions if positions else 0.0,
            "train/tokens_total": self._totals["tokens"],
            "train/flops_total": self._totals["flops"],
            "train/tokens_per_second": filled * rate / flops_done,
            "train/mfu": rate / self.program.peak,
        }
        values |= {f"seconds/{purpose}": spent for purpose, spent in seconds.items()}
        self._reporter.write(step, values)
        self._reporter.progress(step, values)
        self.state = state.replace(metrics=states.zeros(self.program.state.metrics))

    def _flops(self, after: int, step: int) -> dict[int, float]:
        """Returns the FLOPs of each update after update `after`, up to `step`."""
        train = self.rows.train
        return {
            update: self.task.flops(train.row_shape(update - 1)) * train.size(update - 1)
            for update in range(after + 1, step + 1)
        }

    def _evaluate(self) -> None:
        """Evaluates the run, and ends it where config.train.patience is exhausted."""
        if self.task.calibrated is not None:
            # A run that has to stop measures these parameters, too, so that they depend on the
            # number of the update alone.
            with self._clock("evaluation"), self._watchdog.paused():
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
        # The timer comes first, because it must be asked after every update.
        if (
            self._timer.due(self.step)
            or self._is_due(self._save_every)
            or (self._saves_at_evaluations and self._is_due(self._eval_every))
            or self.ended
        ):
            self._save()

    # ---------------------------------------------------------------------------- the evaluations

    def _evaluated(self) -> dict[str, float]:
        """Evaluates and reports: the mean metrics of every evaluation set, and the task's own.

        Returns the values by name; none, and reports nothing, where the run has to stop.
        """
        # The time of updates in flight is not evaluation time.
        jax.block_until_ready(self.state.step)
        with self._clock("evaluation"):
            try:
                values = self._means() | self._measured()
            except Abandoned:
                values = {}
            # Some processes may have finished. All stop here, so all drop their values.
            if self._stop.due() or not values:
                return {}
            self._reporter.evaluation(self.step, values)
        best_metric = self.config.checkpoint.best_metric
        if best_metric and best_metric not in values:
            say(
                f"config.checkpoint.best_metric={best_metric}: not measured, so no checkpoint is "
                f"kept as the best; measured are {', '.join(values)}"
            )
        return values

    def _means(self) -> dict[str, float]:
        """Returns the mean metrics of the evaluation sets, and what the task derives from them."""
        program, train = self.program, self.config.train
        rows = train.batch // train.accumulation
        values = {}
        for name, source in self.rows.eval.items():
            batches = stream(
                functools.partial(source.batch, batch=rows),
                rows,
                1,
                program.batch_sharding,
                range(source.num_batches(rows)),
            )
            carry = states.make_carry(self.task, rows, program.mesh, program.table)
            sums = functools.reduce(metrics.add, self._sums(batches, carry))
            means = {key: mean for key, mean in metrics.means(sums).items() if key != "filled"}
            means |= self.task.derived(name, means)
            values |= {f"{name}/{key}": value for key, value in means.items()}
        return values

    def _sums(self, batches: Iterator, carry):
        """Yields the sums of each batch, on the host.

        At most two batches are in flight. Sums that are added on the devices would put all batches
        in flight at once, see `Pace`.
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
        """Returns the task's own evaluations. They run on the run's mesh, on all processes."""
        values = {}
        for name, evaluation in self.task.evaluations().items():
            with self._watchdog.paused(), self._stop.evaluating():
                measured = evaluation(self.state.params)
            values |= {f"{name}/{key}": value for key, value in measured.items()}
        return values

    # ---------------------------------------------------------------------------- the checkpoints

    def _save(self) -> None:
        """Saves the state, unless it is saved already or is not finite."""
        if self.step == self._saved:
            return
        self._check_finite()
        with self._clock("checkpoint"), self._watchdog.paused():
            # The metrics of a checkpoint are in the workdir before it.
            self._reporter.send()
            self._checkpoints.save(self.state, self._totals, self.scores)
        self._timer.saved()
        self._saved = self.step

    def _end_if_stopped(self) -> None:
        """If the run has to stop, saves the state and raises Preempted or Interrupted."""
        if self._stop.reached:
            self._save()
            raise self._stop.error(
                f"stopped at step {self.step:,}, state saved; run the same command again"
            )

    def _check_finite(self) -> None:
        """Raises RunError where an update of this session was not finite.

        An earlier session may have skipped updates with another setting. Waits for the updates in
        flight.
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

_AHEAD = 4  # batches that are read and copied to the devices before they are used


def stream(
    read: Callable[[int, np.ndarray], dict],
    rows: int,
    accumulation: int,
    sharding: NamedSharding,
    steps: range,
    *,
    readers: rows.Readers | None = None,
) -> Iterator[dict[str, jax.Array]]:
    """Yields the batches of consecutive updates, numbered from 0, as global arrays.

    The arrays are (accumulation, rows / accumulation, ...). `read(step, places)` returns the rows
    at these places of a batch: arrays (len(places), ...). Row j of an update is row
    j mod (rows / accumulation) of microbatch j div (rows / accumulation), whatever the mesh. Each
    host reads ahead the rows of its own devices; `readers` call `read` in other processes.
    """
    places = np.arange(rows).reshape(accumulation, -1)
    indices = sharding.addressable_devices_indices_map(places.shape)
    local_places = np.unique(np.concatenate([places[index].ravel() for index in indices.values()]))

    batches = readers and readers.batches(steps, local_places)

    def load(step):
        # One thread loads the steps in order.
        rows = next(batches) if readers else read(int(step), local_places)
        return {
            name: _global_array(values, places, local_places, sharding)
            for name, values in rows.items()
        }

    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=_AHEAD)
    dataset = grain.MapDataset.range(steps.start, steps.stop).map(load)
    return iter(dataset.to_iter_dataset(options))


def _global_array(values, places, local_places, sharding) -> jax.Array:
    """Returns the array (*places.shape, ...), of which `values` are the rows at `local_places`."""

    def part(index):
        return values[np.searchsorted(local_places, places[index[:2]])]

    shape = (*places.shape, *values.shape[1:])
    return jax.make_array_from_callback(shape, sharding, part)


# ----------------------------------------------------------------------- the updates and their time


class _Updates:
    """Dispatches updates. Compiles the training step for each new shape of batches.

    An update that compiles is no measure of speed. Its time counts as the purpose "compile".
    """

    def __init__(self, train_step, clock: "Clock", watchdog: Watchdog):
        self._train_step = train_step
        self._clock = clock
        self._watchdog = watchdog
        self._pace = Pace()
        self._compiled: set[tuple] = set()  # shapes of batches
        self._timed: list[int] = []

    def __call__(self, step: int, state, batch):
        """Returns the state after update number `step`, from 1; may return before it is ready."""
        shape = tuple(sorted((name, array.shape) for name, array in batch.items()))
        if shape in self._compiled:
            self._timed.append(step)
            state = self._train_step(state, batch)
            # The next update deletes the state, so the marker is a copy.
            self._pace.dispatched(functools.partial(copied, state.step))
            return state
        self._compiled.add(shape)
        # The time of updates in flight is not compilation time.
        jax.block_until_ready(state.step)
        with self._clock("compile"), self._watchdog.paused():
            train_step = hosts.compiled(self._train_step, state, batch)
            return jax.block_until_ready(train_step(state, batch))

    def take_timed(self) -> list[int]:
        """Returns the updates since the last call whose time is the purpose "step"."""
        timed = self._timed
        self._timed = []
        return timed


@jax.jit
def copied(step: jax.Array) -> jax.Array:
    """Returns a copy, (), in its own memory."""
    return step + 0


_MAX_STEPS = 16
_MAX_SECONDS = 2.0


class Pace:
    """Limits how far the host runs ahead of the devices.

    It bounds the steps in flight, which are dispatched and not finished by the devices.

    A stop waits for the steps in flight. So they take at most about 2 seconds, or are two where one
    step takes longer. There are at most 16, because of a deadlock in XLA's CPU client. It occurs
    when a program over several devices is the 33rd in flight. The thread that dispatches it to one
    device is then the thread that another device needs to finish.

    Every few steps the host keeps a marker, an array that is ready when its step is. At the next
    marker, it waits for the one before. So the devices always have a step to continue with.
    """

    def __init__(self):
        self._interval = 1  # steps between two markers
        self._steps = 0  # since the last marker
        self._covered = 1  # steps from the marker before to the last one
        self._marker: jax.Array | None = None
        self._ready = time.perf_counter()

    def dispatched(self, marker: Callable[[], jax.Array]) -> None:
        """A step was dispatched; `marker()` returns an array that is ready when the step is."""
        self._steps += 1
        if self._steps < self._interval:
            return
        now = time.perf_counter()
        covered = self._steps
        if self._marker is not None:
            jax.block_until_ready(self._marker)
            now = time.perf_counter()
            seconds = max(now - self._ready, 1e-9) / self._covered
            self._interval = max(1, min(_MAX_STEPS // 2, int(_MAX_SECONDS / 2 / seconds)))
        self._marker = marker()
        self._ready = now
        self._covered = covered
        self._steps = 0


# What the run is doing, in words.
_PURPOSES = {
    "data": "waiting for data",
    "compile": "compiling the training step",
    "evaluation": "evaluating",
    "checkpoint": "saving a checkpoint",
}


def _always() -> bool:
    return True


class Clock:
    """Counts seconds by purpose since the last `lap`; the remaining time has the purpose "step"."""

    def __init__(self):
        self._spent: dict[str, float] = {}
        self._began = time.perf_counter()

    @contextlib.contextmanager
    def __call__(self, purpose: str, counts: Callable[[], bool] = _always) -> Iterator[None]:
        """Counts the time of the context for `purpose` if `counts()` is true at its end.

        Time that is not counted belongs to "step".
        """
        began = time.perf_counter()
        try:
            with jax.profiler.TraceAnnotation(purpose), progress.doing(_PURPOSES[purpose]):
                yield
        finally:
            if counts():
                seconds = time.perf_counter() - began
                self._spent[purpose] = self._spent.get(purpose, 0.0) + seconds

    def lap(self) -> dict[str, float]:
        """Returns the seconds by purpose, and starts again from zero."""
        now = time.perf_counter()
        spent = {purpose: self._spent.get(purpose, 0.0) for purpose in _PURPOSES}
        spent["step"] = now - self._began - sum(spent.values())
        self._spent = {}
        self._began = now
        return spent


class Trace:
    """Traces the updates from the first to the last of `updates` into `folder`/profile.

    xprof shows the profile, and so does TensorBoard with its profile plugin. Without `updates` or a
    folder, nothing is traced.

    The profile holds the operations, the updates and the purposes of the clock. It has no Python
    calls, because their tracer has crashed the process (jax 0.10 with Python 3.11). It hooks into
    every thread, and the threads of a save begin and end meanwhile.
    """

    def __init__(self, folder: pathlib.Path | None, updates: tuple[int, int] | None):
        self.folder = folder and folder / "profile"
        self.first, self.last = updates if updates and folder else (0, -1)
        self.running = False
        self._options = jax.profiler.ProfileOptions()
        self._options.python_tracer_level = 0
        self._update: jax.profiler.StepTraceAnnotation | None = None

    def __enter__(self):
        return self

    def before(self, step: int) -> None:
        """Call it before update number `step`; starts the trace if it is within the updates."""
        if self.first <= step <= self.last and not self.running:
            jax.profiler.start_trace(self.folder, profiler_options=self._options)
            self.running = True
        self._update = jax.profiler.StepTraceAnnotation("update", step_num=step)
        self._update.__enter__()

    def after(self, step: int, state) -> None:
        """Call it after update number `step`; ends the trace after the last of the updates."""
        self._update.__exit__(None, None, None)
        if step == self.last and self.running:
            jax.block_until_ready(state.step)
            self.__exit__()

    def __exit__(self, *_):
        if self.running:
            self.running = False
            jax.profiler.stop_trace()
            say(f"profile of updates {self.first} to {self.last}: {self.folder}")


# ------------------------------------------------------------ when to save, when to end

_CHECKS = 10  # of the clock, between two checkpoints


class SaveTimer:
    """Whether the last checkpoint is `minutes` old, asked by every process after every update.

    All hosts must save at the same update, and their clocks differ. So the clock of process 0
    decides. The processes share its answer at certain updates, together with the number of the next
    such update. These updates are about a tenth of `minutes` apart, so the time for sharing is
    negligible.
    """

    def __init__(self, minutes: float, step: int, now: Callable[[], float] = time.monotonic):
        self._seconds = 60 * minutes
        self._now = now
        self._saved = self._checked = now()
        self._last_check = step
        self._next_check = step + 1

    def saved(self) -> None:
        """Starts again: a checkpoint has been saved, for any reason."""
        self._saved = self._now()

    def due(self, step: int) -> bool:
        """Whether a checkpoint is due after update number `step`."""
        if not self._seconds or step < self._next_check:
            return False
        is_due = self._now() - self._saved >= self._seconds
        is_due, updates = hosts.share([is_due, self._updates_to_next(step)])
        self._last_check = step
        self._next_check = step + updates
        self._checked = self._now()
        return is_due

    def _updates_to_next(self, step: int) -> int:
        """Updates until the next check: at most twice as many as before the last one."""
        if hosts.count() == 1:
            return 1
        updates = step - self._last_check
        seconds = self._now() - self._checked
        interval = self._seconds / _CHECKS
        return max(1, int(min(2 * updates, interval * updates / max(seconds, 1e-9))))


class Patience:
    """Whether `config.train.patience` evaluations in a row have not improved the best score.

    It depends only on the scores of the run, so a resumed run decides alike. On several hosts
    process 0 decides.

    Attributes:
      over: whether the run ends.
    """

    def __init__(self, config, evaluations: Iterable[dict]):
        """`evaluations`: those recorded so far, each {name: score}; only process 0 needs them."""
        self._limit = config.train.patience
        self._metric = config.checkpoint.best_metric
        self._sign = 1 if config.checkpoint.best_mode == "max" else -1
        self._best = -math.inf
        self._waited = 0  # evaluations since the best score
        self.over = False
        for scores in evaluations:
            if self._metric in scores:
                self._count(scores[self._metric])
        self._decide()

    def add(self, scores: dict[str, float]) -> None:
        """Counts one more evaluation. Raises UserError where it lacks the score."""
        if not self._limit:
            return
        if self._metric not in scores:
            raise UserError(
                f"config.checkpoint.best_metric={self._metric}: not measured, and "
                f"config.train.patience={self._limit} needs it; measured are {', '.join(scores)}"
            )
        self._count(scores[self._metric])
        self._decide()
        if self.over:
            say(f"the run ends here: {self.reason}")

    @property
    def reason(self) -> str:
        """Why the run ends, for a message."""
        return (
            f"{self._metric} has not improved in {self._limit} evaluations "
            f"(config.train.patience={self._limit})"
        )

    def _count(self, score: float | None) -> None:
        """A score that is not finite is no improvement. Records keep it as None."""
        is_finite = score is not None and math.isfinite(score)
        value = self._sign * score if is_finite else -math.inf
        self._waited = 0 if value > self._best else self._waited + 1
        self._best = max(self._best, value)

    def _decide(self) -> None:
        if self._limit:
            self.over = hosts.share(self._waited >= self._limit)


# -------------------------------------------------- the learning rate of a run of another length


def rate_line(
    recorded, config, updates: int, skipped: int, updates_per_step: int = 1
) -> str | None:
    """A line about the learning rate of a run that resumes after update number `updates`.

    `recorded` is the recorded config. `skipped` of the updates were not applied. Returns None where
    the length of the run is the same.
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
    """The learning rate after `count` applied updates."""
    num_updates = config.train.num_steps * updates_per_step
    return float(optimizer.schedule(config.optimizer, num_updates)(count))


def _moved_ends(recorded, config, updates_per_step: int) -> str:
    """The parts of the schedule that end at another update than before; empty if none do."""
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
    return num_updates if value is None else sections.span(value, num_updates)
