"""The evaluations of a run."""

import dataclasses
import functools
from typing import Any

import jax

from transformer_jax import metrics
from transformer_jax.distributed import hosts
from transformer_jax.pictures.progress import say
from transformer_jax.training import batches
from transformer_jax.training.report import Clock, Reporter
from transformer_jax.training.stop import Abandoned, Stop
from transformer_jax.training.watchdog import Watchdog


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Means over every evaluation set, and what the task measures beside; reported, and drawn."""

    task: Any
    rows: Any
    program: Any
    clock: Clock
    reporter: Reporter
    stop: Stop
    watchdog: Watchdog

    def __call__(self, state, step: int) -> dict[str, float]:
        """The values by name; none, and nothing reported, where the run is to stop."""
        jax.block_until_ready(state.step)  # updates still under way are not evaluation time
        with self.clock("evaluation"):
            try:
                values = self._means(state.params) | self._measured(state.params)
            except Abandoned:
                values = {}
            # of several processes some may be done; as all stop here, all drop their values
            if self.stop.due() or not values:
                return {}
            self.reporter.evaluation(step, values)
        best = self.task.config.checkpoint.best_metric
        if best and best not in values:
            say(
                f"config.checkpoint.best_metric={best} is not measured, and no checkpoint kept "
                f"for it; there are: {', '.join(values)}"
            )
        return values

    def _means(self, params) -> dict[str, float]:
        values, train = {}, self.task.config.train
        batch = train.batch // train.accumulation
        for name, source in self.rows.eval.items():
            read = functools.partial(source.batch, batch=batch)
            feed = batches.stream(
                read, batch, 1, self.program.batch_sharding, 0, source.num_batches(batch)
            )
            sums = functools.reduce(metrics.add, self._sums(params, feed))
            means = {key: mean for key, mean in metrics.means(sums).items() if key != "filled"}
            means |= self.task.derived(name, means)
            values |= {f"{name}/{key}": value for key, value in means.items()}
        return values

    def _sums(self, params, feed):
        """Yields each batch's sums on the host, the next batch under way, so at most two are.

        Added on the devices, they would all be under way at once: see Pace.
        """
        batch = next(feed)
        with self.watchdog.patient():
            ahead = hosts.compiled(self.program.eval_step, params, batch)(params, batch)
        for batch in feed:
            sums, ahead = ahead, self.program.eval_step(params, batch)
            yield jax.device_get(sums)
            self.watchdog.fed()
            if self.stop.due():
                raise Abandoned
        yield jax.device_get(ahead)

    def _measured(self, params) -> dict[str, float]:
        """By each process for itself, on its first device."""
        if not (evaluations := self.task.evaluations()):
            return {}
        params, values = jax.block_until_ready(_local(params)), {}
        for name, evaluation in evaluations.items():
            with self.watchdog.patient(), self.stop.abandoning():
                measured = evaluation(params)
            values |= {f"{name}/{key}": value for key, value in measured.items()}
        return values


def _local(tree):
    """A tree of global arrays whole on this process's first device."""
    mesh = jax.tree.leaves(tree)[0].sharding.mesh
    if mesh.size == 1:
        return tree
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    gather = hosts.compiled(jax.jit(_same, out_shardings=whole), tree)
    return jax.tree.map(_first, gather(tree))


def _same(tree):
    return tree


def _first(array):
    return array.addressable_data(0)
