"""Code that the objectives of causal models share: the loss of the tokens that follow."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp

from transformer_jax.config import UserError, build_model
from transformer_jax.inference.causal import CausalUse
from transformer_jax.tasks.base import TextTask, check_row_length
from transformer_jax.tasks.task import Context, Loss


@dataclasses.dataclass
class NextTokens(CausalUse, TextTask):
    """The cross-entropy of the labels of rows by their weights. A subclass defines `texts`.

    A batch has tokens, labels and weights, int32 (B, L). It may have positions and segment_ids.
    """

    length: int = 1024  # tokens of a row

    def __post_init__(self):
        self.model = build_model(self.config)
        if self.model.kind != "causal":
            raise UserError(
                f"config.model.name={self.config.model.name!r}: config.task.name="
                f"{self.config.task.name!r} is for causal models, such as gpt and decoder"
            )
        self.coefficients = {"loss": 1.0}
        check_row_length("length", self.length, self.model)

    def init(self, rng):
        return self.model.init(rng, jnp.zeros((1, self.length), jnp.int32))["params"]

    def weights(self, batch):
        return {"loss": batch["weights"].sum().astype(jnp.float32)}

    def loss(self, params, batch, context: Context) -> Loss:
        hidden, carry = self.states(params, batch, context)
        output = self.model.apply({"params": params}, method="output")
        weights = batch["weights"].astype(jnp.float32)
        loss, _, correct = output.cross_entropy(hidden, batch["labels"], weights)
        count = batch["weights"].sum(dtype=jnp.int32)
        metrics = {
            "loss": (loss, count),
            "accuracy": (correct, count),
            "filled": (self.filled(batch), jnp.int32(batch["weights"].size)),
        }
        return Loss({"loss": loss}, metrics, carry)

    def states(self, params, batch, context: Context):
        """Returns (hidden states (B, L, M), carry)."""
        return self.applied(params, batch, context)(
            positions=batch.get("positions"),
            segment_ids=batch.get("segment_ids"),
            method="hidden",
        ), None

    def applied(self, params, batch, context: Context):
        """Returns the model's `apply` to the tokens of a batch. It takes the other arguments."""
        rngs = {"dropout": context.rng} if context.train else None
        return partial(
            self.model.apply, {"params": params}, batch["tokens"], train=context.train, rngs=rngs
        )

    def filled(self, batch) -> jax.Array:
        """Returns the number of positions that are no padding: by default those with a weight."""
        return batch["weights"].sum(dtype=jnp.int32)

    def flops(self, row_shape: int = 0) -> float:
        return 3 * self.model.flops(self.length)  # a backward pass costs two forward passes

    def positions(self, row_shape: int = 0) -> int:
        return self.length
