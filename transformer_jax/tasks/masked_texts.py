"""What the tasks share whose rows have masks: texts in phases of the run, and the loss of masks."""

from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp

from transformer_jax.data import tokenizers
from transformer_jax.data.masked_rows import MaskedRows
from transformer_jax.inference.encoder import EncoderUse
from transformer_jax.tasks.base import TextTask
from transformer_jax.tasks.task import Context, Loss

# The arrays of each masked token.
MASKED = ("masked_positions", "masked_labels", "masked_weights")


def states(
    model: Any, params, tokens: jax.Array, inputs: dict[str, jax.Array], context: Context
) -> jax.Array:
    """Returns a model's states of rows (B, L, M). `inputs` are those beside the tokens."""
    return model.apply(
        {"params": params},
        tokens,
        **inputs,
        train=context.train,
        method="hidden",
        rngs={"dropout": context.rng} if context.train else None,
    )


def masked_loss(model: Any, params, batch, hidden: jax.Array) -> Loss:
    """Returns the cross-entropy of the masked tokens of rows whose states are `hidden` (B, L, M).

    Its only term is "mlm".
    """
    apply = partial(model.apply, {"params": params})
    # Logits are computed at the masked positions only.
    masked = jnp.take_along_axis(hidden, batch["masked_positions"][..., None], axis=1)
    filled = batch["segment_ids"] > 0
    mlm, _, correct = apply(method="output").cross_entropy(
        apply(masked, method="transformed"),
        batch["masked_labels"],
        batch["masked_weights"].astype(jnp.float32),
    )
    count = batch["masked_weights"].sum(dtype=jnp.int32)
    metrics = {
        "loss": (mlm, count),
        "accuracy": (correct, count),
        "filled": (filled.sum(dtype=jnp.int32), jnp.int32(filled.size)),
    }
    return Loss({"mlm": mlm}, metrics)


class MaskedTextTask(EncoderUse, TextTask):
    """A task with `phases` and `texts`. See MaskedLM."""

    phases: tuple
    texts: MaskedRows

    masked = MASKED

    @cached_property
    def tokenizer(self) -> tokenizers.Tokenizer:
        tokenizer = super().tokenizer
        tokenizer.required("cls", "sep", "mask", user="masked language modelling")
        return tokenizer

    @property
    def phase_steps(self) -> list[int]:
        """The number of updates of each phase."""
        return self.texts.phase_steps

    def batch_spec(self, row_shape: int):
        _, length, num_predictions = self.phases[row_shape]
        shapes = dict.fromkeys(("tokens", "token_types", "segment_ids"), (length,))
        shapes |= dict.fromkeys(self.masked, (num_predictions,))
        if self.texts.pairs:
            shapes["follows"] = ()
        return self.int32_spec(shapes)

    def positions(self, row_shape: int = 0) -> int:
        return self.phases[row_shape][1]
