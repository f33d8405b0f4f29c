"""Several runs of one config that train in lockstep, with all their updates in one program.

The runs differ in their seeds, and perhaps in their learning rates. Each is an ordinary run with
its own rows, keys, metrics, evaluations and checkpoints, and it can be opened as such. The program
of an update maps the training step over the states of all runs: on a CPU by a loop over the runs
inside the program, elsewhere by `jax.vmap`. With `config.mesh.seeds`, the runs are divided over
groups of devices, which then exchange nothing.
"""

import contextlib
import functools
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from transformer_jax import config as configs
from transformer_jax.config import Interrupted, Preempted, RunError, UserError
from transformer_jax.distributed import sharding
from transformer_jax.pictures.progress import doing, say, speaking
from transformer_jax.training import optimizer
from transformer_jax.training import step as training_step
from transformer_jax.training.stop import Stop, Watchdog
from transformer_jax.training.trainer import SaveTimer, Trainer, Updates, batch_shape
from transformer_jax.training.warm_start import Origin

AXIS = "seeds"  # the mesh axis that divides the runs


class Member(NamedTuple):
    """One of the runs: its trainer, and the arguments of `Trainer.run`."""

    trainer: Trainer
    origin: Origin | None = None
    recorded: Any = None


def run(members: Sequence[Member]) -> list[dict[str, float]]:
    """Trains the runs to their ends, and returns the scores of the last evaluation of each.

    They resume from the newest step that all unfinished ones have saved. A run that ends early
    leaves the others to go on. Raises Preempted or Interrupted after a signal, when the
    states of all runs are saved at the same step. Raises RunError, once all others have ended, for
    runs that could not go on.
    """
    trainers = [member.trainer for member in members]
    names = dict(zip(trainers, short_names([trainer.workdir for trainer in trainers])))
    grace = trainers[0].config.train.grace
    with Stop(grace) as stop, contextlib.ExitStack() as saves, Watchdog(stop, grace) as watchdog:
        for trainer in trainers:
            with speaking(names[trainer]):
                saves.enter_context(trainer.saving())
        unfinished = [trainer for trainer in trainers if not trainer.is_over()]
        _align(unfinished)
        timer = SaveTimer(trainers[0].config.checkpoint.minutes, 0)
        batches = {
            trainer: saves.enter_context(
                contextlib.closing(
                    trainer.batches(
                        stop,
                        watchdog,
                        None,
                        origin,
                        recorded,
                        timer=timer,
                        # One of the runs shows how far all are.
                        shows_progress=trainer in unfinished[:1],
                    )
                )
            )
            for trainer, origin, recorded in members
        }
        joint = JointStep(trainers)
        lockstep = _Lockstep(batches, Updates(joint, joint, watchdog), names)
        with doing("training"):
            lockstep.run()
    if lockstep.errors:
        lines = [f"{trainer.workdir}: {error}" for trainer, error in lockstep.errors.items()]
        raise RunError("; ".join(lines))
    return [trainer.scores for trainer in trainers]


def short_names(workdirs: Sequence) -> list[str]:
    """Returns the last parts of paths, as few as tell them apart."""
    parts = [str(workdir).rstrip("/").split("/") for workdir in workdirs]
    for count in range(1, max(map(len, parts)) + 1):
        names = ["/".join(each[-count:]) for each in parts]
        if len({*names}) == len(names):
            break
    return names


def _align(trainers: Sequence[Trainer]) -> None:
    """Makes unfinished runs that were killed in the middle of a save resume at the same step.

    Some have then saved a step that the others have not. They go back by one checkpoint, because
    batches of other steps may have other shapes, whose updates are other programs, with other bits.
    A run that could not go on may be further behind. Each then resumes from its own newest step, as
    too much would be lost.
    """
    steps = [trainer.saved_steps() or [0] for trainer in trainers]
    first = min((own[-1] for own in steps), default=0)
    ahead = [own for own in steps if own[-1] > first]
    if all(own[-2:-1] == [first] for own in ahead):
        for trainer in trainers:
            trainer.discard_after(first)


class _Lockstep:
    """Advances the loops of all trainers by one update at a time.

    Attributes:
      errors: the errors of the runs that could not go on.
    """

    def __init__(
        self, batches: dict[Trainer, Iterator[dict]], updates: Updates, names: dict[Trainer, str]
    ):
        self._batches = batches
        self._updates = updates
        self._names = names
        self._started: set[Trainer] = set()
        self._waiting: dict[Trainer, dict] = {}  # the batch of the next update of each
        self.errors: dict[Trainer, RunError] = {}

    def run(self) -> None:
        advancing = [*self._batches]
        while advancing:
            for number, trainer in enumerate(advancing):
                try:
                    self._advance(trainer)
                except (Preempted, Interrupted) as error:
                    self._stop(advancing[:number], advancing[number + 1 :], error)
                    raise
            self._compute()
            advancing = [*self._waiting]

    def _compute(self) -> None:
        """Computes the next update of each run."""
        waiting = self._waiting
        if len({*map(batch_shape, waiting.values())}) == 1:
            self._updates([*waiting], [*waiting.values()])
            return
        # One after another, because each combination of shapes would be a program of its own.
        for trainer, batch in waiting.items():
            self._updates([trainer], [batch])

    def _advance(self, trainer: Trainer) -> None:
        """Lets a run do all that it does between two updates."""
        start = time.perf_counter()
        self._started.add(trainer)
        batch = None
        with speaking(self._names[trainer]):
            try:
                batch = next(self._batches[trainer], None)
            except RunError as error:
                self._fail(trainer, error)
        self._waiting.pop(trainer, None)
        # As with data, time counts as lost only if the devices have become idle meanwhile.
        for other in self._waiting:
            if other.state.step.is_ready():
                other.clock.add("others", time.perf_counter() - start)
        if batch is not None:
            self._waiting[trainer] = batch

    def _fail(self, trainer: Trainer, error: RunError) -> None:
        self.errors[trainer] = error
        say(f"{error}; the other runs go on")

    def _stop(self, before: Sequence[Trainer], after: Sequence[Trainer], signal) -> None:
        """Saves the other runs at the same step, after a run has stopped for a signal.

        Those `before` it wait for their next update; those `after` it have still to look for the
        signal.
        """
        for trainer in [*before, *after]:
            batches = self._batches[trainer]
            with (
                speaking(self._names[trainer]),
                contextlib.suppress(Preempted, Interrupted, StopIteration),
            ):
                try:
                    if trainer not in self._started:
                        batches.close()
                    elif trainer in before:
                        batches.throw(signal)
                    else:
                        next(batches)
                except RunError as error:
                    self._fail(trainer, error)


# --------------------------------------------------------------- the program of all runs' updates


def check(task, program, groups: int) -> None:
    """Raises UserError for a task whose update is not one program that can be mapped over runs.

    `groups` is the number of groups of devices.
    """
    name = task.config.task.name
    if task.rollouts is not None:
        raise UserError(
            f"--together: config.task.name={name!r}: Python computes its rewards between two "
            "programs, so its seeds can't train as one; leave out --together"
        )
    step = _mapped(task, program, program.mesh, way=_way(program, groups))
    one = jax.eval_shape(_stacked, [(program.state, program.batch, _own(task.config))])
    try:
        jax.eval_shape(step, *one)
    except NotImplementedError as error:  # of a primitive without a batching rule
        raise UserError(
            f"--together: config.task.name={name!r}: its update can't be mapped over seeds "
            f"({error}); leave out --together"
        ) from None


def _way(program, groups: int) -> str:
    """Returns how to map over runs: what is faster, or over several groups what divides them."""
    is_cpu = program.mesh.devices.flat[0].platform == "cpu"
    return "loop" if is_cpu and groups == 1 else "vmap"


def _mapped(task, program, mesh: Mesh, *, way: str, axis: str | None = None):
    """Returns the training step, mapped over the first axis of the arrays of all its arguments.

    `axis` is the axis of `mesh` that splits it.
    """
    config = task.config
    num_updates = config.train.num_steps * math.prod(task.passes)
    param_shardings = jax.tree.map(
        lambda x: NamedSharding(mesh, x.sharding.spec), program.state.params
    )

    def step(state, batch, own):
        tx = optimizer.make(config.optimizer, num_updates, task, program.traits, own["peaks"])
        rate = optimizer.schedule(config.optimizer, num_updates, own["peaks"][""])
        both = training_step.Optimizer(tx, rate)
        key = jax.random.wrap_key_data(own["key"])
        return training_step.make_step(task, both, param_shardings)(state, batch, key)

    def mapped(states, batches, own):
        with sharding.use(mesh, program.table):
            if way == "loop":
                return jax.lax.map(lambda each: step(*each), (states, batches, own))
            return jax.vmap(step, spmd_axis_name=axis)(states, batches, own)

    return mapped


class JointStep:
    """The training steps of several runs in one program, (trainers, batches) -> new states.

    All batches have the same shape.
    """

    def __init__(self, trainers: Sequence[Trainer], way: str = ""):
        """`way` is "loop" or "vmap", by default what is faster on the devices."""
        self._trainers = trainers
        self._task = trainers[0].task
        self._program = trainers[0].program
        self._own = {trainer: _own(trainer.config) for trainer in trainers}
        # The runs are divided over groups of devices, of which each has a mesh.
        meshes = {trainer.program.mesh: [] for trainer in trainers}
        for trainer in trainers:
            meshes[trainer.program.mesh].append(trainer)
        self._groups = {mesh: _Group(group) for mesh, group in meshes.items()}
        self._way = way or _way(self._program, len(meshes))
        self._step_on = functools.cache(self._jitted_on)

    def __call__(self, trainers: Sequence[Trainer], batches: Sequence[dict]) -> list:
        if len(self._groups) == 1 or len(trainers) == 1:
            step = self._step_on(trainers[0].program.mesh)
            own = [self._own[trainer] for trainer in trainers]
            return step([trainer.state for trainer in trainers], [*batches], own)
        return self._over_devices(dict(zip(trainers, batches)))

    def _jitted_on(self, mesh: Mesh):
        """Returns the jitted function (states, batches, own) -> states of runs on one mesh."""
        group = self._groups[mesh]
        mapped = _mapped(self._task, self._program, mesh, way=self._way)

        @functools.partial(jax.jit, donate_argnums=0)
        def step(states, batches, own):
            new = _parts(mapped(_stacked(states), _stacked(batches), _stacked(own)), len(states))
            return [jax.lax.with_sharding_constraint(state, group.shardings) for state in new]

        return step

    # --------------------------------------------------------- runs on several groups of devices

    def _over_devices(self, batches: dict[Trainer, dict]) -> list:
        stacked = [group.stacked(batches, self._own) for group in self._groups.values()]
        new = self._joint_step(*jax.tree.map(self._joined, *stacked))
        states = {}
        for group in self._groups.values():
            states |= group.parts(new)
        return [states[trainer] for trainer in batches]

    @functools.cached_property
    def _mesh(self) -> Mesh:
        devices = np.stack([mesh.devices for mesh in self._groups])
        axes = (AXIS, *sharding.AXES)
        return Mesh(devices, axes, axis_types=(AxisType.Auto,) * len(axes))

    @functools.cached_property
    def _joint_step(self):
        shardings = jax.tree.map(self._of_all, self._program.state)
        mapped = _mapped(self._task, self._program, self._mesh, way="vmap", axis=AXIS)
        return jax.jit(mapped, donate_argnums=0, out_shardings=shardings)

    def _of_all(self, x: jax.ShapeDtypeStruct) -> NamedSharding:
        return NamedSharding(self._mesh, PartitionSpec(AXIS, *x.sharding.spec))

    def _joined(self, *parts: jax.Array) -> jax.Array:
        """Returns the array (runs, ...) of the arrays (runs of a group, ...), copying nothing."""
        shape = (sum(map(len, parts)), *parts[0].shape[1:])
        spec = PartitionSpec(AXIS, *parts[0].sharding.spec[1:])
        shards = [shard.data for part in parts for shard in part.addressable_shards]
        return jax.make_array_from_single_device_arrays(
            shape, NamedSharding(self._mesh, spec), shards
        )


class _Group:
    """The runs on one group of devices.

    Attributes:
      shardings: those of the state of a run.
    """

    def __init__(self, trainers: Sequence[Trainer]):
        self._trainers = trainers
        self._idle: dict[Trainer, tuple] = {}  # the state and batch in place of an ended run's
        program = trainers[0].program
        self._batch_sharding = program.batch_sharding
        self._replicated = NamedSharding(program.mesh, PartitionSpec())
        self.shardings = jax.tree.map(lambda x: x.sharding, program.state)
        self._stacked_shardings = jax.tree.map(_with_runs, self.shardings)
        self._stack = jax.jit(
            lambda *trees: tuple(map(_stacked, trees)),
            out_shardings=(
                self._stacked_shardings,
                _with_runs(self._batch_sharding),
                self._replicated,
            ),
        )
        self._split = jax.jit(
            lambda tree: _parts(tree, len(trainers)), out_shardings=[self.shardings] * len(trainers)
        )

    def stacked(self, batches: dict[Trainer, dict], own: dict[Trainer, Any]) -> tuple:
        """Returns the states, the batches and what is each run's own, (runs, ...)."""
        states, rows = [], []
        for trainer in self._trainers:
            if trainer not in batches and trainer not in self._idle:
                other = next(iter(batches))
                self._idle[trainer] = (
                    jax.device_put(other.state, self.shardings),
                    jax.device_put(batches[other], self._batch_sharding),
                )
            # The devices of a run that has ended compute updates that are not used.
            state, batch = self._idle.get(trainer) or (trainer.state, batches[trainer])
            states.append(state)
            rows.append(batch)
        each = [own[trainer] for trainer in self._trainers]
        return self._stack(states, rows, jax.device_put(each, self._replicated))

    def parts(self, states) -> dict[Trainer, Any]:
        """Returns the state of each run, from those of the runs of all groups."""

        def own_runs(x: jax.Array, own: NamedSharding) -> jax.Array:
            devices = own.mesh.devices
            shards = [shard.data for shard in x.addressable_shards if shard.device in devices]
            shape = (len(self._trainers), *x.shape[1:])
            return jax.make_array_from_single_device_arrays(shape, own, shards)

        own = jax.tree.map(own_runs, states, self._stacked_shardings)
        return dict(zip(self._trainers, self._split(own)))


def _own(config) -> dict[str, Any]:
    """Returns the key of a run, and the learning rates of its groups of parameters."""
    sections = configs.optimizer_sections(config.optimizer)
    return {
        "key": jax.random.key_data(jax.random.key(training_step.dropout_seed(config))),
        "peaks": {name: np.float32(each.learning_rate) for name, each in sections.items()},
    }


def _with_runs(one: NamedSharding) -> NamedSharding:
    """Returns the sharding of arrays (runs, ...), from that of the array of a run."""
    return NamedSharding(one.mesh, PartitionSpec(None, *one.spec))


def _stacked(trees: Sequence):
    return jax.tree.map(lambda *arrays: jnp.stack(arrays), *trees)


def _parts(tree, count: int) -> list:
    def part(number: int):
        return jax.tree.map(lambda x: x[number], tree)

    return [part(number) for number in range(count)]
