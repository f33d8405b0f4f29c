"""Rows and their order: which row feeds which update is a pure function of (config, step).

A run is a list of phases. Row j of update s has the position g = (rows of the phase's earlier
updates) + j. Where a phase mixes components, a fixed table of P slots names them: row g belongs to
the component of slot g mod P. Then c is the number of the component's slots before g; otherwise
c = g. With R rows in the component, the epoch is c div R, and the number of the row is
index_shuffle(c mod R; seed, phase, component, epoch). No iterator has a state, so resuming at step
s means asking for the rows of step s.

A phase in streams is for models that carry a state from one update to the next. It divides the R
rows of its component into B streams of S = R div B consecutive rows, the segments. Row j of its
update s is segment s mod S of stream j, row number j S + s mod S, in epoch s div S.
"""

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

from transformer_jax.config import RunError, UserError
from transformer_jax.configuration import classes

Row = dict[str, np.ndarray]
# Stages of a growing batch. Each has another shape, which costs a compilation.
_NUM_STAGES = 8


class Component(Protocol):
    """A set of rows. Equal arguments (row number, epoch) always give equal rows."""

    def __len__(self) -> int: ...
    def rows(self, numbers: Sequence[tuple[int, int]]) -> list[Row]:
        """Returns the rows of these (row number, epoch), read in parallel."""
        ...


@dataclasses.dataclass(frozen=True)
class Phase:
    """A part of a run: its components with their integer weights, and its batch.

    The number of rows per update may grow from `first_batch` to `batch` over `ramp_steps` updates.

    With order="stream", the rows of an update continue those of the update before. There is one
    component; its consecutive rows continue each other, and have the key "restarts" (L,), 1 where
    the state of a model begins anew. The batch adds a 1 where a stream begins.
    """

    components: Sequence[Component]
    batch: int
    num_steps: int | None = None  # updates; None: to the end of the run
    weights: Sequence[int] = (1,)
    first_batch: int = 0  # 0: the batch does not grow
    ramp_steps: int = 0
    order: Literal["shuffled", "stream"] = "shuffled"

    def __post_init__(self):
        if self.order == "stream" and not self.num_segments:
            raise UserError(
                f"config.train.batch={self.batch}: the text has {len(self.components[0])} rows, "
                "too few for a stream in each row of the batch; give more text, shorter rows or a "
                "smaller batch"
            )

    @functools.cached_property
    def num_segments(self) -> int:
        """The number of rows of a stream."""
        return len(self.components[0]) // self.batch

    def size(self, step: int) -> int:
        """Returns the number of rows of the phase's update `step`.

        The ramp has equal stages. The number of rows is a multiple of first_batch in all of them.
        """
        if not self.first_batch or step >= self.ramp_steps:
            return self.batch
        stage = step * _NUM_STAGES // self.ramp_steps
        growth = (self.batch - self.first_batch) * stage / _NUM_STAGES
        return self.first_batch + int(growth / self.first_batch) * self.first_batch

    @property
    def _stage_starts(self) -> list[int]:
        """The first update of each stage."""
        if not self.first_batch:
            return [0]
        return [-(-stage * self.ramp_steps // _NUM_STAGES) for stage in range(_NUM_STAGES + 1)]

    def rows_before(self, step: int) -> int:
        """Returns the number of rows of the updates before `step`."""
        starts = self._stage_starts
        stops = [*starts[1:], step]
        return sum(
            self.size(start) * (min(stop, step) - start)
            for start, stop in zip(starts, stops)
            if start < min(stop, step)
        )

    def until(self, step: int) -> float:
        """Returns the end of the stage that `step` belongs to."""
        end_of_phase = math.inf if self.num_steps is None else self.num_steps
        later_starts = (start for start in self._stage_starts if start > step)
        return min(later_starts, default=end_of_phase)

    @functools.cached_property
    def slots(self) -> np.ndarray:
        """(P, 2): the component of each slot, and the number of its earlier slots.

        P is the sum of the weights. Each component is spread evenly over the table.
        """
        spread = sorted(
            ((index + 0.5) / weight, component, index)
            for component, weight in enumerate(self.weights)
            for index in range(weight)
        )
        return np.array([(component, index) for _, component, index in spread])

    def locate(self, position: int) -> tuple[int, int]:
        """Returns (component, number of its earlier rows) for a position of the phase."""
        turn, slot = divmod(position, len(self.slots))
        component, earlier = self.slots[slot]
        return int(component), turn * self.weights[component] + int(earlier)


@dataclasses.dataclass(frozen=True)
class TrainRows:
    """The training rows of a run, by update and by place in the update's batch."""

    phases: Sequence[Phase]
    seed: int

    def phase(self, step: int) -> tuple[int, int]:
        """Returns (number of the phase, number of its updates before `step`)."""
        for number, phase in enumerate(self.phases):
            if phase.num_steps is None or step < phase.num_steps:
                return number, step
            step -= phase.num_steps
        raise IndexError(f"no phase has update {step} left")

    def row_shape(self, step: int) -> int:
        """Returns the number of update `step`'s phase, whose rows have one shape."""
        return self.phase(step)[0]

    def size(self, step: int) -> int:
        """Returns the number of rows of update `step`."""
        number, step_of_phase = self.phase(step)
        return self.phases[number].size(step_of_phase)

    def until(self, step: int) -> float:
        """Returns the first update after `step` whose batch may have another shape."""
        number, step_of_phase = self.phase(step)
        return step - step_of_phase + self.phases[number].until(step_of_phase)

    def numbers(self, step: int, places: Sequence[int]) -> list[tuple[int, int, int]]:
        """Returns (component, row number, epoch) of these places of update `step`."""
        phase_number, step_of_phase = self.phase(step)
        phase = self.phases[phase_number]
        if phase.order == "stream":
            epoch, segment = divmod(step_of_phase, phase.num_segments)
            return [(0, int(stream) * phase.num_segments + segment, epoch) for stream in places]
        first = phase.rows_before(step_of_phase)
        sizes = [len(component) for component in phase.components]
        numbers = []
        for place in places:
            component, count = phase.locate(first + int(place))
            epoch, index = divmod(count, sizes[component])
            row_number = index_shuffle(
                index,
                max_index=sizes[component] - 1,
                seed=_order_seed(self.seed, phase_number, component, epoch),
                rounds=4,
            )
            numbers.append((component, row_number, epoch))
        return numbers

    def batch(self, step: int, places: Sequence[int]) -> Row:
        """Returns these places of the batch of update `step`: arrays (len(places), ...)."""
        phase_number, step_of_phase = self.phase(step)
        phase = self.phases[phase_number]
        numbers = self.numbers(step, places)
        order = sorted(range(len(places)), key=lambda i: numbers[i][0])
        rows = {}
        for component, group in itertools.groupby(order, key=lambda i: numbers[i][0]):
            indices = list(group)
            rows |= zip(
                indices, phase.components[component].rows([numbers[i][1:] for i in indices])
            )
        batch = {name: np.stack([rows[i][name] for i in range(len(places))]) for name in rows[0]}
        if phase.order == "stream" and step_of_phase % phase.num_segments == 0:
            batch["restarts"][:, 0] = 1
        return batch


@functools.lru_cache
def _order_seed(*key: int) -> int:
    """Returns the seed of the order in which (seed, phase, component, epoch) visits its rows."""
    return int(np.random.SeedSequence(key).generate_state(1)[0])


def train_rows(
    components: Sequence[Component],
    train,
    seed: int,
    weights: Sequence[int] = (1,),
    order: Literal["shuffled", "stream"] = "shuffled",
) -> TrainRows:
    """Returns the rows of a run of one phase, with the batch and the ramp of `config.train`.

    `seed` is config.data.seed.
    """
    phase = Phase(
        components,
        train.batch,
        weights=weights,
        first_batch=train.first_batch,
        ramp_steps=train.ramp_steps,
        order=order,
    )
    return TrainRows([phase], seed)


@dataclasses.dataclass(frozen=True)
class EvalRows:
    """Every row once an epoch, in order. Places beyond the last row hold zeros (weight 0).

    With order="stream", row j of batch s is segment s of stream j, as in a phase; every batch has
    the same streams, and a stream has as many rows as there are batches.
    """

    component: Component
    epochs: int = 1  # More are useful where each epoch draws its rows anew.
    order: Literal["rows", "stream"] = "rows"

    def __len__(self) -> int:
        return self.epochs * len(self.component)

    def num_batches(self, batch: int) -> int:
        return -(-len(self) // batch)

    def batch(self, step: int, places: Sequence[int], batch: int) -> Row:
        """Returns these places of batch `step`: arrays (len(places), ...)."""
        if self.order == "stream":
            positions = [int(stream) * self.num_batches(batch) + step for stream in places]
        else:
            positions = [step * batch + int(place) for place in places]
        is_row = [position < len(self) for position in positions]
        # Row 0 gives the shapes of the places beyond the last row.
        rows = self.component.rows(
            [self._number(position if valid else 0) for position, valid in zip(positions, is_row)]
        )
        rows = [row if valid else _zeros_like(row) for row, valid in zip(rows, is_row)]
        return {name: np.stack([row[name] for row in rows]) for name in rows[0]}

    def _number(self, position: int) -> tuple[int, int]:
        """Returns (row number, epoch) of a position."""
        epoch, number = divmod(position, len(self.component))
        return number, epoch


def _zeros_like(row: Row) -> Row:
    return {name: np.zeros_like(values) for name, values in row.items()}


def philox_key(key: tuple[int, int, int]) -> np.ndarray:
    """Returns the key of Philox for (seed, phase, component), uint64 (2,)."""
    seed, phase, component = key
    return np.array([seed, phase << 32 | component], np.uint64)


def generator(key: np.ndarray, number: int, epoch: int) -> np.random.Generator:
    """Returns the generator of a row. `key` is that of Philox."""
    return np.random.Generator(np.random.Philox(key=key, counter=[0, 0, number, epoch]))


def padded(values: np.ndarray, size: int) -> np.ndarray:
    """Returns int32 (size, ...): the values, numbers or arrays, then zeros."""
    out = np.zeros((size, *np.shape(values)[1:]), np.int32)
    out[: len(values)] = values
    return out


# Reader processes: they read the rows of coming updates beside the training process.
#
# Rows are a pure function of (config, step), so the results are those of one process.

Batch = dict[str, np.ndarray]
Read = Callable[[int, np.ndarray], Batch]  # from the number of an update, and places in its batch

_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[2])
from transformer_jax.data import rows
rows.serve(int(sys.argv[1]))
"""
_ENDING = {signal.SIGINT, signal.SIGTERM}


class Readers:
    """`count` processes that call `read`, each for one update at a time.

    They end with this process, however it ends. SIGTERM and Ctrl-C leave them running: the training
    process decides when the run stops.
    """

    def __init__(self, read: Read, count: int):
        self._processes = []
        try:
            message = ForkingPickler.dumps(read)
        except Exception as error:  # Each kind of object raises its own.
            raise UserError(
                f"config.data.readers={count}: other processes can't read this task's rows "
                f"({error}); 0 reads them in the training process"
            ) from None
        for _ in range(count):
            self._processes.append(_start())
        for _, connection in self._processes:
            connection.send(classes.executed())  # `read` may be of a class in such a file
            connection.send_bytes(message)

    def batches(self, steps: range, places: np.ndarray) -> Iterator[Batch]:
        """Yields `read(step, places)` of consecutive steps. Each process is one batch ahead."""
        count = len(self._processes)
        for step in steps[:count]:
            self._ask(step, places)
        for step in steps:
            yield self._answer(step)
            if step + count in steps:
                self._ask(step + count, places)

    def _ask(self, step: int, places: np.ndarray) -> None:
        _, connection = self._processes[step % len(self._processes)]
        with contextlib.suppress(OSError):  # of a process that ended: `_answer` says so
            connection.send((step, places))

    def _answer(self, step: int) -> Batch:
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
        line, trace, is_users = failure
        raise UserError(line) if is_users else RunError(line) from RuntimeError(trace)

    def close(self) -> None:
        """Ends the processes."""
        for process, connection in self._processes:
            process.kill()
            process.wait()
            connection.close()


@contextlib.contextmanager
def started(read: Read, count: int) -> Iterator[Readers | None]:
    """Yields `count` processes that call `read`, or None for 0, and ends them after the context."""
    if not count:
        yield None
        return
    with contextlib.closing(Readers(read, count)) as readers:
        yield readers


def _start() -> tuple[subprocess.Popen, Connection]:
    """Starts a process that runs `serve`, and returns it with the connection to it."""
    ours, theirs = Pipe()
    descriptor = theirs.fileno()
    command = [sys.executable, "-c", _PROGRAM, str(descriptor), json.dumps(sys.path)]
    # The process inherits the blocked signals, and so never receives them.
    earlier = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            pass_fds=[descriptor],
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)
        theirs.close()
    return process, ours


def serve(descriptor: int) -> None:
    """Answers the requests of the training process until it ends or closes the connection."""
    connection = Connection(descriptor)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        for file in connection.recv():
            classes.module("task", file)
        read = connection.recv()
        while True:
            step, places = connection.recv()
            connection.send(_read(read, step, places))


def _read(read: Read, step: int, places: np.ndarray):
    """Returns (batch, None), or (None, the line, traceback and kind of an error)."""
    try:
        return read(step, places), None
    except UserError as error:
        return None, (str(error), traceback.format_exc(), True)
    except Exception as error:
        line = f"a reader process failed at update {step + 1}: {type(error).__name__}: {error}"
        return None, (" ".join(line.split()), traceback.format_exc(), False)
