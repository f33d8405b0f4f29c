"""The outputs of a head for examples, in batches of like lengths."""

import dataclasses
from collections.abc import Iterator
from functools import cached_property, partial
from typing import Any

import jax
import numpy as np

from transformer_jax.distributed import hosts
from transformer_jax.distributed.placement import Placement, gathered, split_rows
from transformer_jax.inference.batching import in_order
from transformer_jax.pictures.progress import track
from transformer_jax.tasks.task import Context, EvaluationProgram

# Batches whose examples are sorted by length together.
_SORTED_BATCHES = 64


@dataclasses.dataclass(frozen=True)
class Outputs:
    """Computes the outputs of a task's head, `config.decode.batch` examples at a time.

    The devices share the examples of a batch.
    """

    task: Any

    def __call__(
        self, params, examples: list, title: str, sums: np.ndarray | None = None
    ) -> Iterator[np.ndarray]:
        """Yields the outputs (rows of an example, ...) of each example, in order.

        Adds the summed loss and its count to `sums` (2,).
        """
        return in_order(self._numbered(params, examples, title, sums))

    def _numbered(self, params, examples, title, sums) -> Iterator[tuple[int, np.ndarray]]:
        if not examples:
            return
        placement = Placement.of(params, self.task.config.mesh)
        batch_size = placement.rows(self.task.config.decode.batch)
        num_batches = -(-len(examples) // batch_size)
        batches = self.task.in_buckets(examples).batches(batch_size, _SORTED_BATCHES)
        for numbers, batch in track(batches, title, num_batches):
            computed = hosts.run(self._compiled, placement, params, batch)
            outputs, *loss_and_count = jax.device_get(computed)
            if sums is not None:
                sums += loss_and_count
            yield from zip(numbers.tolist(), outputs)

    def program(self, params) -> EvaluationProgram:
        """Returns the program of a batch of the longest examples, lowered for shapes `params`."""
        placement = Placement.of(params, self.task.config.mesh)
        batch_size = self.task.config.decode.batch
        rows = placement.rows(batch_size)
        batch = {
            name: jax.ShapeDtypeStruct((rows, *spec.shape[1:]), spec.dtype)
            for name, spec in self.task.batch_spec(0).items()
        }
        remedy = f"--config.decode.batch={max(batch_size // 2, 1)}: fewer examples at a time"
        return EvaluationProgram(self._compiled.lower(placement, params, batch), (), remedy)

    @cached_property
    def _compiled(self):
        """The function of (placement, params, batch) to (outputs (examples, ...), loss, count)."""

        @partial(jax.jit, static_argnums=0)
        def outputs_and_loss(placement, params, batch):
            with placement.use():
                batch = split_rows(batch)
                outputs, _ = self.task.outputs(params, batch, Context())
                total, count, _ = self.task.objective(outputs, batch)
                num_examples = len(batch["segment_ids"])
                outputs = outputs.reshape(num_examples, -1, *outputs.shape[1:])
                return gathered((outputs, total, count))

        return outputs_and_loss
