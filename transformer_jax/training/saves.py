"""Saving the state of a run, if it is finite."""

from transformer_jax.config import RunError
from transformer_jax.training.save_timer import SaveTimer
from transformer_jax.training.session import Session


class Saves:
    """Saves the checkpoints of a run."""

    def __init__(self, session: Session, timer: SaveTimer):
        self._session = session
        self._timer = timer
        self._saved_step = session.start

    def save(self, step: int, state, totals, scores: dict[str, float]) -> None:
        """Saves the state after update number `step`, unless it is saved already."""
        if step == self._saved_step:
            return
        self.check_finite(state)
        session = self._session
        with session.clock("checkpoint"), session.watchdog.patient():
            # The metrics of a checkpoint are in the workdir before it.
            session.reporter.send()
            session.checkpoints.save(state, totals, scores)
        self._timer.saved()
        self._saved_step = step

    def end_if_stopped(self, step: int, state, totals, scores: dict[str, float]) -> None:
        """If the run has to stop, saves the state and raises Preempted or Interrupted."""
        stop = self._session.stop
        if stop.reached:
            self.save(step, state, totals, scores)
            raise stop.error(f"stopped at step {step:,}, state saved; run the same command again")

    def check_finite(self, state) -> None:
        """Raises RunError where an update of this session was not finite.

        An earlier session may have skipped updates with another setting. Waits for the updates in
        flight.
        """
        session = self._session
        last = int(state.last_skipped)
        stops = session.config.train.nonfinite == "stop"
        if int(state.skipped) and last >= session.start and stops:
            raise RunError(
                f"loss, gradient or parameters not finite at update {last:,}; nothing was saved "
                "after it. --config.train.nonfinite=skip continues without such updates; a lower "
                "learning rate, longer warm-up or clipping may help, in a new workdir"
            )
