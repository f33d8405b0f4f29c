"""When a run saves its state, and that it saves only what is finite."""

import dataclasses

from ml_collections import ConfigDict

from transformer_jax.config import RunError
from transformer_jax.training.checkpoint import Checkpoints
from transformer_jax.training.report import Clock, Reporter
from transformer_jax.training.save_timer import SaveTimer
from transformer_jax.training.stop import Stop
from transformer_jax.training.watchdog import Watchdog


@dataclasses.dataclass
class Saves:
    """The checkpoints of a run that goes on from the update `start`."""

    config: ConfigDict
    start: int
    checkpoints: Checkpoints
    reporter: Reporter
    clock: Clock
    timer: SaveTimer
    stop: Stop
    watchdog: Watchdog

    def __post_init__(self):
        self._last = self.start

    def save(self, step: int, state, totals, scores: dict[str, float]) -> None:
        """Saves the state after the update `step`, unless that is done."""
        if step == self._last:
            return
        self.check_finite(state)
        with self.clock("checkpoint"), self.watchdog.patient():
            self.reporter.send()  # a checkpoint's lines come before it
            self.checkpoints.save(state, totals, scores)
        self.timer.saved()
        self._last = step

    def end_if_stopped(self, step: int, state, totals, scores: dict[str, float]) -> None:
        """Where the run is to stop, saves the state and raises what ends the run."""
        if self.stop.reached:
            self.save(step, state, totals, scores)
            raise self.stop.error(
                f"stopped at step {step:,}, state saved; run the same command again"
            )

    def check_finite(self, state) -> None:
        """Raises RunError where an update since `start` was not finite.

        Earlier ones may have been skipped by another setting. Waits for the updates under way.
        """
        last = int(state.last_skipped)
        if int(state.skipped) and last >= self.start and self.config.train.nonfinite == "stop":
            raise RunError(
                f"loss, gradient or parameters not finite at update {last:,}; nothing was saved "
                "after it. --config.train.nonfinite=skip goes on without such updates; a lower "
                "learning rate, longer warm-up or clipping may help, in a new workdir"
            )
