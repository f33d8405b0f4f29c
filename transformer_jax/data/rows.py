"""Training and evaluation rows: which row feeds which update is a pure function of (config, step).

A run is a list of phases. Row j of update s has the position g = (rows of the phase's earlier
updates) + j. If the phase mixes several components, a fixed table of P slots assigns positions to
components: position g belongs to the component of slot g mod P, and c is the number of earlier
positions that belong to the same component. With a single component, c = g. If the component has R
rows, the epoch is c div R and the row number is
index_shuffle(c mod R; seed, phase, component, epoch). Because no iterator holds state, resuming at
step s only means asking for the rows of step s.

A phase with order="stream" is for models that carry a state from one update to the next. It divides
the R rows of its component into B streams of S = R div B consecutive rows, called segments. Row j
of its update s is segment s mod S of stream j, which is row number j S + s mod S, in epoch s div S.
"""

import bisect
import contextlib
import dataclasses
import functools
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Literal, Protocol

import numpy as np
from grain.experimental import index_shuffle

from transformer_jax import config as configs
from transformer_jax.config import RunError, UserError

Row = dict[str, np.ndarray]
# Stages of a growing batch. The number is small because each stage has its own batch shape and so
# costs one compilation of the train step.
_NUM_STAGES = 8


class Component(Protocol):
    """A set of rows. The same (row number, epoch) always gives the same row."""

    def __len__(self) -> int: ...
    def rows(self, numbers: Sequence[tuple[int, int]]) -> list[Row]:
        """Returns the rows for these pairs (row number, epoch), which are read in parallel."""
        ...


@dataclasses.dataclass(frozen=True)
class Phase:
    """A part of a run: the components it mixes, their integer weights, and its batch size.

    The number of rows per update may grow from `first_batch` to `batch` over `ramp_steps` updates.

    With `turn_steps`, the components are not mixed: they take turns over so many updates, and each
    has as many rows of them as its weight says. The last one goes on after these updates.

    With order="stream", each row of an update continues the same row of the previous update. There
    is one component, whose consecutive rows continue each other. Its rows have the key "restarts"
    (L,), which is 1 where the model's state is reset; the batch also sets it at the start of each
    stream.

    Raises UserError if order="stream" and the component has fewer rows than the batch.
    """

    components: Sequence[Component]
    batch: int
    num_steps: int | None = None  # updates; None: until the end of the run
    weights: Sequence[int] = (1,)
    first_batch: int = 0  # 0: the batch does not grow
    ramp_steps: int = 0
    order: Literal["shuffled", "stream"] = "shuffled"
    turn_steps: int = 0

    def __post_init__(self):
        if self.order == "stream" and not self.num_segments:
            raise UserError(
                f"config.train.batch={self.batch}: the text has {len(self.components[0])} rows, "
                "too few for a stream in each row of the batch; give more text, shorter rows or a "
                "smaller batch"
            )

    @functools.cached_property
    def num_segments(self) -> int:
        """The number of rows in each stream."""
        return len(self.components[0]) // self.batch

    def size(self, step: int) -> int:
        """Returns the batch size of update `step`, counted from the start of the phase.

        The ramp is divided into stages of equal length. The batch size is a multiple of
        `first_batch` in each of them, so that a batch that divides evenly among the devices at the
        start does so throughout the ramp.
        """
        if not self.first_batch or step >= self.ramp_steps:
            return self.batch
        stage = step * _NUM_STAGES // self.ramp_steps
        growth = (self.batch - self.first_batch) * stage / _NUM_STAGES
        return self.first_batch + int(growth / self.first_batch) * self.first_batch

    @property
    def _stage_starts(self) -> list[int]:
        """The first update of each stage of the ramp, and the first update after the ramp."""
        if not self.first_batch:
            return [0]
        # Rounded up, because `size` rounds down: this is the first update that `size` puts into a
        # stage.
        return [-(-stage * self.ramp_steps // _NUM_STAGES) for stage in range(_NUM_STAGES + 1)]

    def rows_before(self, step: int) -> int:
        """Returns the total number of rows of all updates before `step`."""
        # The sum is over stages, not updates, because it is computed for every batch of a run.
        # Without the condition, stages after `step` would count negatively.
        starts = self._stage_starts
        stops = [*starts[1:], step]
        return sum(
            self.size(start) * (min(stop, step) - start)
            for start, stop in zip(starts, stops)
            if start < min(stop, step)
        )

    def until(self, step: int) -> float:
        """Returns the first update after the stage that contains `step`."""
        end_of_phase = math.inf if self.num_steps is None else self.num_steps
        later_starts = (start for start in self._stage_starts if start > step)
        return min(later_starts, default=end_of_phase)

    @functools.cached_property
    def slots(self) -> np.ndarray:
        """(P, 2): the component of each slot, and how many earlier slots it has.

        P is the sum of the weights. The slots of each component are spread evenly over the table,
        so that even short stretches of training see the mixture in its proportions.
        """
        # A fixed table, not a random draw of the component for each position: the number of earlier
        # rows of a component then follows from the position alone (`locate`), without counting.
        spread = sorted(
            ((index + 0.5) / weight, component, index)
            for component, weight in enumerate(self.weights)
            for index in range(weight)
        )
        return np.array([(component, index) for _, component, index in spread])

    @functools.cached_property
    def _turns(self) -> list[int]:
        """The position at which the turn of each component begins."""
        rows = self.rows_before(self.turn_steps)
        before = itertools.accumulate(self.weights[:-1], initial=0)
        return [rows * weight // sum(self.weights) for weight in before]

    def locate(self, position: int) -> tuple[int, int]:
        """Returns (component, number of its earlier rows) for a position in the phase."""
        if self.turn_steps:
            component = bisect.bisect_right(self._turns, position) - 1
            return component, position - self._turns[component]
        turn, slot = divmod(position, len(self.slots))
        component, earlier = self.slots[slot]
        return int(component), turn * self.weights[component] + int(earlier)

    def epochs_before(self, step: int) -> list[float]:
        """Returns how many times all updates before `step` have read each component."""
        if self.turn_steps:
            ends = [*self._turns[1:], math.inf]
            position = self.rows_before(step)
            return [
                max(min(position, end) - start, 0) / len(component)
                for start, end, component in zip(self._turns, ends, self.components, strict=True)
            ]
        rows = self.rows_before(step) / sum(self.weights)
        return [
            rows * weight / len(component)
            for weight, component in zip(self.weights, self.components, strict=True)
        ]


@dataclasses.dataclass(frozen=True)
class TrainRows:
    """The training rows of a run, addressed by update and by index in the update's batch."""

    phases: Sequence[Phase]
    seed: int

    def phase(self, step: int) -> tuple[int, int]:
        """Returns (number of the phase, number of its updates before `step`).

        Raises IndexError if `step` is beyond the last phase.
        """
        for number, phase in enumerate(self.phases):
            if phase.num_steps is None or step < phase.num_steps:
                return number, step
            step -= phase.num_steps
        raise IndexError(f"no phase has update {step} left")

    def epochs_before(self, step: int) -> list[float]:
        """Returns how many times the updates before `step` have read each component of a phase."""
        number, step_of_phase = self.phase(step)
        phases = [phase.epochs_before(phase.num_steps) for phase in self.phases[:number]] + [
            self.phases[number].epochs_before(step_of_phase)
        ]
        return [sum(epochs) for epochs in zip(*phases, strict=True)]

    def row_shape(self, step: int) -> int:
        """Returns the phase number of update `step`; all rows of a phase have the same shape."""
        return self.phase(step)[0]

    def size(self, step: int) -> int:
        """Returns the batch size of update `step`."""
        number, step_of_phase = self.phase(step)
        return self.phases[number].size(step_of_phase)

    def until(self, step: int) -> float:
        """Returns the first update after `step` whose batch may have another shape."""
        number, step_of_phase = self.phase(step)
        return step - step_of_phase + self.phases[number].until(step_of_phase)

    def numbers(self, step: int, indices: Sequence[int]) -> list[tuple[int, int, int]]:
        """Returns (component, row number, epoch) for these indices in the batch of `step`."""
        phase_number, step_of_phase = self.phase(step)
        phase = self.phases[phase_number]
        if phase.order == "stream":
            epoch, segment = divmod(step_of_phase, phase.num_segments)
            return [(0, int(stream) * phase.num_segments + segment, epoch) for stream in indices]
        first = phase.rows_before(step_of_phase)
        sizes = [len(component) for component in phase.components]
        numbers = []
        for index in indices:
            component, count = phase.locate(first + int(index))
            epoch, row = divmod(count, sizes[component])
            # A pseudo-random permutation that is evaluated at a single index. A stored permutation
            # would take 8 bytes a row, and a new one would have to be drawn in every epoch.
            row_number = index_shuffle(
                row,
                max_index=sizes[component] - 1,
                seed=_order_seed(self.seed, phase_number, component, epoch),
                rounds=4,
            )
            numbers.append((component, row_number, epoch))
        return numbers

    def batch(self, step: int, indices: Sequence[int]) -> Row:
        """Returns the rows at these indices in the batch of `step`: arrays (len(indices), ...).

        A process of a multi-host run asks for the indices of its own devices only.
        """
        phase_number, step_of_phase = self.phase(step)
        phase = self.phases[phase_number]
        numbers = self.numbers(step, indices)
        # One call per component, because a component reads the rows of a call in parallel.
        order = sorted(range(len(indices)), key=lambda i: numbers[i][0])
        rows = {}
        for component, group in itertools.groupby(order, key=lambda i: numbers[i][0]):
            members = list(group)
            rows |= zip(
                members, phase.components[component].rows([numbers[i][1:] for i in members])
            )
        batch = {name: np.stack([rows[i][name] for i in range(len(indices))]) for name in rows[0]}
        if phase.order == "stream" and step_of_phase % phase.num_segments == 0:
            # A new epoch begins, and the state at the end of a stream must not flow into its start.
            batch["restarts"][:, 0] = 1
        return batch


@functools.lru_cache
def _order_seed(*key: int) -> int:
    """Returns the seed of the row order for a `key` of (seed, phase, component, epoch)."""
    # One word of 32 bits, because `index_shuffle` takes no larger seed. Cached, because all rows of
    # an epoch ask for the same key.
    return int(np.random.SeedSequence(key).generate_state(1)[0])


def train_rows(
    components: Sequence[Component],
    train,
    seed: int,
    weights: Sequence[int] = (1,),
    order: Literal["shuffled", "stream"] = "shuffled",
    *,
    in_turn: bool = False,
) -> TrainRows:
    """Returns the rows of a run with a single phase, whose batch and ramp `config.train` sets.

    `seed` is config.data.seed. With `in_turn`, the components take turns instead of being mixed.
    """
    phase = Phase(
        components,
        train.batch,
        weights=weights,
        first_batch=train.first_batch,
        ramp_steps=train.ramp_steps,
        order=order,
        turn_steps=train.num_steps if in_turn else 0,
    )
    return TrainRows([phase], seed)


@dataclasses.dataclass(frozen=True)
class EvalRows:
    """Evaluation rows: every row once per epoch, in order.

    The last batch is filled up with rows of zeros, whose weights are therefore 0, so that all
    batches have the same shape.

    With order="stream", row j of batch s is segment s of stream j, as in a phase: every batch has
    the same streams, and each stream has as many rows as there are batches.
    """

    component: Component
    epochs: int = 1  # more than 1 is useful if each epoch draws its rows anew
    order: Literal["rows", "stream"] = "rows"

    def __len__(self) -> int:
        return self.epochs * len(self.component)

    def num_batches(self, batch: int) -> int:
        return -(-len(self) // batch)

    def batch(self, step: int, indices: Sequence[int], batch: int) -> Row:
        """Returns the rows at these indices in batch `step`: arrays (len(indices), ...)."""
        if self.order == "stream":
            positions = [int(stream) * self.num_batches(batch) + step for stream in indices]
        else:
            positions = [step * batch + int(index) for index in indices]
        is_row = [position < len(self) for position in positions]
        # Row 0 supplies the shapes and dtypes of the rows of zeros beyond the last row.
        rows = self.component.rows(
            [self._number(position if valid else 0) for position, valid in zip(positions, is_row)]
        )
        # Zeros also in the weights, so that no metric counts these rows.
        rows = [row if valid else _zeros_like(row) for row, valid in zip(rows, is_row)]
        return {name: np.stack([row[name] for row in rows]) for name in rows[0]}

    def _number(self, position: int) -> tuple[int, int]:
        """Returns (row number, epoch) for a position."""
        epoch, number = divmod(position, len(self.component))
        return number, epoch


def _zeros_like(row: Row) -> Row:
    return {name: np.zeros_like(values) for name, values in row.items()}


def philox_key(key: tuple[int, int, int]) -> np.ndarray:
    """Returns the key of the Philox generator for (seed, phase, component), uint64 (2,)."""
    seed, phase, component = key
    # A Philox key has two words of 64 bits, so phase and component share the second one.
    return np.array([seed, phase << 32 | component], np.uint64)


def generator(key: np.ndarray, number: int, epoch: int) -> np.random.Generator:
    """Returns the random generator of a row. `key` comes from `philox_key`."""
    # Philox is counter-based, so a generator for any row is created without drawing the numbers of
    # earlier rows. Draws advance the low words of the counter. Row number and epoch are in the two
    # high words, which no realistic number of draws reaches, so the streams of rows never overlap.
    return np.random.Generator(np.random.Philox(key=key, counter=[0, 0, number, epoch]))


def padded(values: np.ndarray, size: int) -> np.ndarray:
    """Returns the values, followed by zeros, as an int32 array (size, ...)."""
    out = np.zeros((size, *np.shape(values)[1:]), np.int32)
    out[: len(values)] = values
    return out


# Reader processes read the rows of upcoming updates beside the training process. They share no
# state with it or with each other, because rows are a pure function of (config, step): the batches
# are the same for any number of readers, and a resumed run may use another number.

Batch = dict[str, np.ndarray]
Read = Callable[[int, np.ndarray], Batch]  # from the number of an update and indices in its batch

_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[2])
from transformer_jax.data import rows
rows.serve(int(sys.argv[1]))
"""
# Blocked in the readers: Ctrl-C in a terminal is sent to them as well, while the training process
# still needs rows for its last updates.
_ENDING = {signal.SIGINT, signal.SIGTERM}


class Readers:
    """`count` processes that call `read`, each for one update at a time.

    They exit when this process exits, no matter how. SIGTERM and Ctrl-C don't stop them, because
    the training process decides when the run stops: it still needs rows for its last updates.

    Raises UserError if `read` can't be pickled.
    """

    def __init__(self, read: Read, count: int):
        self._processes = []
        try:
            # Pickled before any process starts, so that a failure leaves none behind.
            message = ForkingPickler.dumps(read)
        except Exception as error:  # Different objects fail to pickle with different exceptions.
            raise UserError(
                f"config.data.readers={count}: other processes can't read this task's rows "
                f"({error}); 0 reads them in the training process"
            ) from None
        for _ in range(count):
            self._processes.append(_start())
        for _, connection in self._processes:
            # A class that a user's file defines can be unpickled only after that file has been
            # executed, so the paths of these files are sent first.
            connection.send(configs.executed_files())
            connection.send_bytes(message)

    def batches(self, steps: range, indices: np.ndarray) -> Iterator[Batch]:
        """Yields `read(step, indices)` for consecutive steps. Each process reads one batch ahead.

        Raises UserError or RunError if `read` raised in a reader process, and RunError if a reader
        process died.
        """
        # Process s mod N reads update s, so that batches arrive in order without a shared queue.
        count = len(self._processes)
        for step in steps[:count]:
            self._ask(step, indices)
        for step in steps:
            yield self._receive(step)
            if step + count in steps:
                self._ask(step + count, indices)

    def _ask(self, step: int, indices: np.ndarray) -> None:
        _, connection = self._processes[step % len(self._processes)]
        with contextlib.suppress(OSError):  # the process has died, which `_receive` reports
            connection.send((step, indices))

    def _receive(self, step: int) -> Batch:
        process, connection = self._processes[step % len(self._processes)]
        try:
            batch, failure = connection.recv()
        except (EOFError, OSError):
            raise RunError(
                f"reader process {process.pid} ended with exit code {process.wait()} while it read "
                f"the rows of update {step + 1}; the same command continues the run, and fewer "
                "config.data.readers take less memory"
            ) from None
        if failure is None:
            return batch
        line, trace, is_user_error = failure
        # A traceback can't be sent between processes. Its text as the cause still shows the user
        # where the rows failed.
        raise UserError(line) if is_user_error else RunError(line) from RuntimeError(trace)

    def close(self) -> None:
        """Kills the processes."""
        for process, connection in self._processes:
            # The readers block SIGTERM. They hold nothing that would have to be saved first.
            process.kill()
            process.wait()
            connection.close()


@contextlib.contextmanager
def started(read: Read, count: int) -> Iterator[Readers | None]:
    """Yields `Readers`, or None if `count` is 0, and closes them when the context exits."""
    if not count:
        yield None
        return
    with contextlib.closing(Readers(read, count)) as readers:
        yield readers


def _start() -> tuple[subprocess.Popen, Connection]:
    """Starts a process that runs `serve`, and returns it with the connection to it."""
    # A new interpreter, not a fork: a fork of a process in which JAX runs threads may deadlock.
    ours, theirs = Pipe()
    descriptor = theirs.fileno()
    # A folder that was added to sys.path at run time, as in a notebook, must be found there, too:
    # `read` may be defined in a module from it.
    command = [sys.executable, "-c", _PROGRAM, str(descriptor), json.dumps(sys.path)]
    # A child process inherits the signal mask, so it never receives these signals.
    earlier = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            pass_fds=[descriptor],
            # Readers must not claim the accelerator, which the training process uses.
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)
        theirs.close()
    return process, ours


def serve(descriptor: int) -> None:
    """Serves the requests of the training process until it exits or closes the connection."""
    connection = Connection(descriptor)
    # These errors are the normal end: the training process has exited or closed the connection.
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        for file in connection.recv():
            configs.file_module("task", file)
        read = connection.recv()
        while True:
            step, indices = connection.recv()
            connection.send(_read(read, step, indices))


def _read(read: Read, step: int, indices: np.ndarray):
    """Returns (batch, None), or (None, (message, traceback, whether it is a UserError))."""
    try:
        return read(step, indices), None
    except UserError as error:
        return None, (str(error), traceback.format_exc(), True)
    except Exception as error:
        # Sent as text, because an exception of a user's or a library's class may fail to unpickle.
        line = f"a reader process failed at update {step + 1}: {type(error).__name__}: {error}"
        return None, (" ".join(line.split()), traceback.format_exc(), False)
