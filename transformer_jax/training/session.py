"""The objects that the parts of a training run share."""

import dataclasses
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.training.checkpoint import Checkpoints
from transformer_jax.training.clock import Clock
from transformer_jax.training.program import Program
from transformer_jax.training.report import Reporter
from transformer_jax.training.stop import Stop
from transformer_jax.training.watchdog import Watchdog


@dataclasses.dataclass(frozen=True)
class Session:
    """A run in one process, from its start or resume to its end.

    Attributes:
      task: a tasks.task.Task.
      rows: its data, a tasks.task.Rows.
      start: the updates that were done before.
    """

    config: ConfigDict
    task: Any
    rows: Any
    program: Program
    start: int
    checkpoints: Checkpoints
    reporter: Reporter
    clock: Clock
    stop: Stop
    watchdog: Watchdog
