"""Code that the pre-training tasks share: batches, the evaluation loop, checks of lengths."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from transformer_jax import metrics
from transformer_jax.config import UserError
from transformer_jax.pictures.progress import track
from transformer_jax.tasks.task import Context, Task


@dataclasses.dataclass
class BaseTask(Task):
    """A task with one model and one tokenizer. See tasks/task.py for the contract.

    `tokenizer_folder` is the folder of a run's tokenizer. Where it is None, the tokenizer is read
    or trained as `config.data` says.
    """

    config: ConfigDict
    tokenizer_folder: Path | None

    def int32_spec(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns the shapes of a training batch of int32 arrays, from the shapes of a row."""
        batch = self.config.train.batch
        return {
            name: jax.ShapeDtypeStruct((batch, *shape), jnp.int32) for name, shape in shapes.items()
        }

    def derived(self, name: str, means: Mapping[str, float]) -> dict[str, float]:
        return {"perplexity": perplexity(means["loss"])}

    def mean_metrics(
        self, params, rows, observe: Callable[[dict[str, np.ndarray]], None] | None = None
    ) -> dict[str, float]:
        """Returns the mean of each of the loss's metrics over evaluation rows.

        `observe` is called with each batch. A task with a carry reads the rows one by one, as one
        stream.
        """
        step = jax.jit(self._measured)
        carry = self.initial_carry(1)
        batch_size = self.config.decode.batch if carry is None else 1
        num_batches = rows.num_batches(batch_size)
        sums = []
        for number in track(range(num_batches), "evaluating (batches)", num_batches):
            batch = rows.batch(number, range(batch_size), batch_size)
            if observe is not None:
                observe(batch)
            measured, carry = step(params, batch, carry)
            sums.append(jax.device_get(measured))
        return metrics.means(jax.tree.map(_sum, *sums))

    def _measured(self, params, batch, carry):
        loss = self.loss(params, batch, Context(carry=carry))
        return loss.metrics, loss.carry


def check_row_length(key: str, length: int, model: Any, least: int = 2) -> None:
    """Raises UserError where rows of `length` tokens, set by config.task.<key>, do not suit a
    model.
    """
    if not least <= length <= model.window:
        raise UserError(
            f"config.task.{key}={length}: must be from {least} to "
            f"config.model.max_length={model.max_length}"
        )


def perplexity(loss: float) -> float:
    """Returns exp(loss), finite for any loss."""
    return math.exp(min(loss, 700.0))


def _sum(*batches: np.ndarray) -> np.float64:
    return np.sum(batches, dtype=np.float64)
