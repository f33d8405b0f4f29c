"""The evaluations of a run."""

import functools

import jax

from transformer_jax import metrics
from transformer_jax.distributed import hosts
from transformer_jax.pictures.progress import say
from transformer_jax.training import batches
from transformer_jax.training import state as states
from transformer_jax.training.session import Session
from transformer_jax.training.stop import Abandoned


class Evaluation:
    """Evaluates a run: the mean metrics of every evaluation set, and the task's evaluations."""

    def __init__(self, session: Session):
        self._session = session

    def __call__(self, state, step: int) -> dict[str, float]:
        """Evaluates and reports. Returns the values by name.

        Returns no values and reports nothing where the run has to stop.
        """
        session = self._session
        # The time of updates in flight is not evaluation time.
        jax.block_until_ready(state.step)
        with session.clock("evaluation"):
            try:
                values = self._means(state.params) | self._measured(state.params)
            except Abandoned:
                values = {}
            # Some processes may have finished. All stop here, so all drop their values.
            if session.stop.due() or not values:
                return {}
            session.reporter.evaluation(step, values)
        best_metric = session.config.checkpoint.best_metric
        if best_metric and best_metric not in values:
            say(
                f"config.checkpoint.best_metric={best_metric}: not measured, so no checkpoint is "
                f"kept as the best; measured are {', '.join(values)}"
            )
        return values

    def calibrated(self, state):
        """The state with the parameters that the task measures. A run that has to stop does it too.

        So they depend on the number of the update alone.
        """
        session = self._session
        if session.task.calibrated is None:
            return state
        with session.clock("evaluation"), session.watchdog.patient():
            return state.replace(params=session.task.calibrated(state.params))

    def _means(self, params) -> dict[str, float]:
        """The mean metrics of the evaluation sets, and the values that the task derives."""
        session = self._session
        program = session.program
        rows = session.config.train.batch // session.config.train.accumulation
        values = {}
        for name, source in session.rows.eval.items():
            feed = batches.stream(
                functools.partial(source.batch, batch=rows),
                rows,
                1,
                program.batch_sharding,
                range(source.num_batches(rows)),
            )
            carry = states.make_carry(session.task, rows, program.mesh, program.table)
            sums = functools.reduce(metrics.add, self._sums(params, feed, carry))
            means = {key: mean for key, mean in metrics.means(sums).items() if key != "filled"}
            means |= session.task.derived(name, means)
            values |= {f"{name}/{key}": value for key, value in means.items()}
        return values

    def _sums(self, params, feed, carry):
        """Yields the sums of each batch, on the host.

        At most two batches are in flight. Sums that are added on the devices would put all batches
        in flight at once, see `Pace`.
        """
        session = self._session
        batch = next(feed)
        with session.watchdog.patient():
            eval_step = hosts.compiled(session.program.eval_step, params, batch, carry)
            following, carry = eval_step(params, batch, carry)
        for batch in feed:
            sums = following
            following, carry = eval_step(params, batch, carry)
            yield jax.device_get(sums)
            session.watchdog.fed()
            if session.stop.due():
                raise Abandoned
        yield jax.device_get(following)

    def _measured(self, params) -> dict[str, float]:
        """The task's own evaluations. They run on the mesh of the run, on all processes."""
        values = {}
        for name, evaluation in self._session.task.evaluations().items():
            with self._session.watchdog.patient(), self._session.stop.evaluating():
                measured = evaluation(params)
            values |= {f"{name}/{key}": value for key, value in measured.items()}
        return values
