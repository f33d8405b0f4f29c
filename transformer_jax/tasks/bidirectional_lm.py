"""Bidirectional language modeling: predicting the next word, and in reverse the previous one."""

import dataclasses
from functools import cached_property

import jax.numpy as jnp

from transformer_jax.config import UserError, build_model
from transformer_jax.contracts.task import Context, Loss
from transformer_jax.data import arguments
from transformer_jax.data.texts import BothWaysTexts
from transformer_jax.inference.encoder import EncoderUse
from transformer_jax.inference.log_probabilities import Forward
from transformer_jax.objectives.texts import (
    TextTask,
    carried_states,
    check_row_length,
    perplexities,
    perplexity,
)

_DIRECTIONS = ("forward", "backward")


@dataclasses.dataclass
class BidirectionalLM(EncoderUse, TextTask):
    """The mean of the losses of both directions (Peters et al. 2018, section 3.1).

    Each direction reads the whole text as a stream of its own, in rows of `length` words, and its
    state is carried from one update to the next. The backward stream starts at the end of the text,
    so that its state at a row depends on the words after it. As in the published code, the two
    directions read different parts of the text in an update.
    """

    length: int = 20  # words of a row, in each direction

    def __post_init__(self):
        self.model = build_model(self.config)
        self.coefficients = {"loss": 1.0}
        if "both_ways" not in self.model.can:
            raise UserError(
                f"config.model.name={self.config.model.name!r}: config.task.name="
                f"{self.config.task.name!r} is for a model with two directions, such as elmo"
            )
        check_row_length("length", self.length, self.model)
        self.texts.check_streams(f"config.task.name={self.config.task.name}")

    @cached_property
    def texts(self) -> BothWaysTexts:
        return BothWaysTexts(self.config, self.length, self.model.max_characters)

    @property
    def scoring(self) -> Forward:
        return Forward(self.model, self.tokenizer)

    def batch_spec(self, row_shape: int):
        both = (self.length, 2)
        # A token may itself be an array, of the characters of a word: `unit_shape` is then not ().
        shapes = dict.fromkeys(("labels", "weights", "restarts"), both)
        return self.int32_spec(shapes | {"tokens": (*both, *self.model.unit_shape)})

    def init(self, rng):
        tokens = jnp.zeros((1, 2, 2, *self.model.unit_shape), jnp.int32)
        return self.model.init(rng, tokens)["params"]

    def initial_carry(self, rows: int):
        return self.model.initial_carry(rows)

    def weights(self, batch):
        return {"loss": batch["weights"].sum().astype(jnp.float32)}

    def loss(self, params, batch, context: Context) -> Loss:
        states, carry = carried_states(self.model, params, batch, context)
        # Both directions share the softmax layer (section 3.1).
        output = self.model.apply({"params": params}, method="scaled_output")
        metrics, sums, count = {}, jnp.zeros(2), batch["weights"].sum(dtype=jnp.int32)
        for way, name in enumerate(_DIRECTIONS):
            labels, weights = batch["labels"][..., way], batch["weights"][..., way]
            loss, _, correct = output.cross_entropy(
                states[:, :, way], labels, weights.astype(jnp.float32)
            )
            metrics[f"{name}_loss"] = (loss, weights.sum(dtype=jnp.int32))
            sums += jnp.stack([loss, correct])
        metrics["loss"], metrics["accuracy"] = ((total, count) for total in sums)
        metrics["filled"] = (count, jnp.int32(batch["weights"].size))
        return Loss({"loss": sums[0]}, metrics, carry)

    def derived(self, name, means):
        return self._perplexities(means, self._rows.eval[name].component.store.meta)

    def _perplexities(self, means, meta: dict) -> dict[str, float]:
        by_direction = {
            f"{name}_perplexity": perplexity(means[f"{name}_loss"]) for name in _DIRECTIONS
        }
        return perplexities(means["loss"], meta) | by_direction

    def flops(self, row_shape: int = 0) -> float:
        # The factor 3, because a backward pass costs two forward passes. The word encoder runs for
        # each direction, because both read different words.
        words = self.model.words_flops(self.length)
        return 3 * (self.model.flops(self.length, self.length) + words)

    def positions(self, row_shape: int = 0) -> int:
        return 2 * self.length

    def evaluate(self, params, split: str) -> dict:
        """Returns losses, accuracy and perplexities of a split, which each direction reads once.

        "loss" and "perplexity" are over both directions together. Raises UserError if the run has
        no such split.
        """
        arguments.held_out(self.texts.text, split, "files")
        evaluated = self.texts.evaluation(self.tokenizer, split)
        means = self.mean_metrics(params, evaluated)
        means.pop("filled")
        meta = evaluated.component.store.meta
        return means | self._perplexities(means, meta) | {"tokens": meta["tokens"]}
