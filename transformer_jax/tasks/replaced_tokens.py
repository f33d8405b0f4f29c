"""ELECTRA's pre-training: detecting the tokens that a generator replaced."""

import dataclasses
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Annotated

import jax
import jax.numpy as jnp
import optax

from transformer_jax.config import PositiveFloat, Range, UserError, build_model
from transformer_jax.contracts.model import Inputs
from transformer_jax.contracts.task import Context, Loss
from transformer_jax.data import arguments
from transformer_jax.data.masking import NUM_DRAWS, ReplacedRows
from transformer_jax.inference.filling import Filling
from transformer_jax.inference.generation import drawn
from transformer_jax.inference.log_probabilities import Discriminator
from transformer_jax.layers.embeddings import Output, map_logits
from transformer_jax.objectives.texts import MaskedTextTask


@dataclasses.dataclass
class ReplacedTokens(MaskedTextTask):
    """Replaced token detection (Clark et al. 2020, section 2).

    The generator is a masked language model. Each masked token is replaced by a sample of the
    generator, and the discriminator predicts for every token whether it was replaced. A sample that
    equals the original token counts as original. No gradient flows through the samples.

    "loss" and "accuracy" belong to the generator, because its task is the same throughout a run,
    while the discriminator's becomes harder. "replaced_accuracy" is the accuracy of the
    discriminator, and "always_original" the accuracy of calling every token original.
    """

    # phases of the run, in order: (share of config.train.num_steps, tokens of a row, most
    # replacements of a row)
    phases: tuple = ((1.0, 128, 19),)
    # share of the tokens of a row that the generator replaces
    selected: Annotated[float, Range(above=0, below=1)] = 0.15
    # weight of the discriminator's loss, relative to the generator's
    replaced_weight: PositiveFloat = 50.0
    # rows are pairs of consecutive texts, in one order or the other, instead of windows
    pairs: bool = False

    masked = (*MaskedTextTask.masked, "masked_draws")

    def __post_init__(self):
        self.model = build_model(self.config)
        self.coefficients = {"mlm": 1.0, "replaced": self.replaced_weight}
        self.num_row_shapes = len(self.phases)
        if "detect" not in self.model.can:
            raise UserError(
                f"config.model.name={self.config.model.name!r}: replaced tokens need a model with "
                "a generator, such as electra"
            )
        self.texts.check(self.model)

    @property
    def texts(self) -> ReplacedRows:
        return ReplacedRows(
            self.config,
            self.phases,
            self.pairs,
            whole_words=False,
            swaps=True,
            selected=self.selected,
        )

    @property
    def scoring(self) -> Discriminator:
        return Discriminator(self.model, self.tokenizer)

    def _check_generator(self) -> None:
        """Raises UserError if the model is only a discriminator, as converted checkpoints are."""
        if not self.model.generator_size:
            raise UserError(
                "config.model.generator_size=0: no generator replaces tokens; set it to a share of "
                "config.model.d_model, such as 0.25"
            )

    def batch_spec(self, row_shape: int):
        # Only training needs the generator: a converted discriminator can be opened without one.
        self._check_generator()
        return super().batch_spec(row_shape)

    def init(self, rng):
        def used(model, inputs):
            if model.generator_size:
                model.generator_transformed(model.generated(inputs))
                model.generator_output()
            return model.detected(model.hidden(inputs))

        inputs = Inputs(jnp.zeros((1, 8), jnp.int32))
        return self.model.init(rng, inputs, method=used)["params"]

    def weights(self, batch):
        return {
            "mlm": batch["masked_weights"].sum().astype(jnp.float32),
            "replaced": (batch["segment_ids"] > 0).sum().astype(jnp.float32),
        }

    def loss(self, params, batch, context: Context) -> Loss:
        # Two keys, because both networks drop out on their own.
        generator_key, key = jax.random.split(context.rng) if context.train else (None, None)
        read = partial(self._read, params, batch, train=context.train)
        states = read("generated", batch["tokens"], generator_key)
        # Gathered before the projection to the vocabulary, which would cost most at all positions.
        states = jnp.take_along_axis(states, batch["masked_positions"][..., None], axis=1)
        apply = partial(self.model.apply, {"params": params})
        states = apply(states, method="generator_transformed")  # (B, P, E)
        output = apply(method="generator_output")
        mlm, _, correct = output.cross_entropy(
            states, batch["masked_labels"], batch["masked_weights"].astype(jnp.float32)
        )

        sampled = _sampled(states, output, batch["masked_draws"])
        tokens = _placed(batch, sampled)
        # Compared with the original tokens, because a sample may equal its original (section 2).
        is_replaced = tokens != _placed(batch, batch["masked_labels"])
        logits = apply(read("hidden", tokens, key), method="detected")  # (B, L)
        filled = batch["segment_ids"] > 0
        replaced = jnp.sum(optax.sigmoid_binary_cross_entropy(logits, is_replaced) * filled)
        right = ((logits > 0) == is_replaced) & filled
        num_masked = batch["masked_weights"].sum(dtype=jnp.int32)
        num_tokens = filled.sum(dtype=jnp.int32)
        metrics = {
            "loss": (mlm, num_masked),
            "accuracy": (correct, num_masked),
            "replaced_loss": (replaced, num_tokens),
            "replaced_accuracy": (right.sum(dtype=jnp.float32), num_tokens),
            "always_original": ((~is_replaced & filled).sum(dtype=jnp.float32), num_tokens),
            "filled": (num_tokens, jnp.int32(filled.size)),
        }
        return Loss({"mlm": mlm, "replaced": replaced}, metrics)

    def _read(self, params, batch, method: str, tokens, key, *, train: bool) -> jax.Array:
        """Returns the hidden states of `tokens` (B, L) by a method of the model."""
        return self.model.apply(
            {"params": params},
            Inputs(
                tokens,
                token_types=batch["token_types"],
                segment_ids=batch["segment_ids"],
                padding_last=True,
            ),
            train=train,
            method=method,
            rngs={"dropout": key} if train else None,
        )

    def flops(self, row_shape: int = 0) -> float:
        _, length, num_predictions = self.phases[row_shape]
        # The factor 3, because a backward pass costs two forward passes.
        return 3 * self.model.detection_flops(length, num_predictions)

    def evaluate(self, params, split: str) -> dict:
        """Returns the losses and accuracies of generator and discriminator on a split.

        The rows have the length of the last phase. A split of fewer than 2,000 rows is read several
        times, with different masks. Raises UserError if the run has no such split or no generator.
        """
        self._check_generator()
        arguments.held_out(self.texts.text, split, "files")
        evaluated = self.texts.evaluation(self.tokenizer, split)
        means = self.mean_metrics(params, evaluated)
        means.pop("filled")
        return means | self.derived(split, means) | {"rows": len(evaluated)}

    def fill(
        self, params, texts: Iterable[str], top_k: int = 5, *, long: str = "split"
    ) -> Iterator[list[list[Filling]]]:
        """Yields the generator's likeliest words for each [MASK] of each text.

        Raises UserError if the run has no generator, and as `fill` of a masked language model does.
        """
        self._check_generator()
        params = self.model.narrow_params(params)
        reader = self._reader(params, self.model.narrow())
        return reader.fill(params, arguments.as_texts(texts), top_k, long)


def _sampled(states: jax.Array, output: Output, draws: jax.Array) -> jax.Array:
    """Returns samples (B, P) int32 of the softmax of an output, given draws (B, P) int32.

    The draws are random numbers that the data pipeline made, so that a batch determines its
    samples. The states are (B, P, E). No gradient flows through the samples.
    """

    def sample(logits, draws):
        # Without the largest logit, exp can't overflow; `drawn` needs no normalized weights.
        weights = jnp.exp(logits - logits.max(axis=-1, keepdims=True))
        weights = weights.reshape(-1, weights.shape[-1])  # (rows * P, V)
        uniform = draws.reshape(-1).astype(jnp.float32) / NUM_DRAWS
        return drawn(weights, uniform).reshape(draws.shape)

    return map_logits(sample, *jax.lax.stop_gradient((states, output)), draws)


def _placed(batch, values: jax.Array) -> jax.Array:
    """Returns the tokens (B, L) with `values` (B, P) at the masked positions."""
    positions = jnp.arange(batch["tokens"].shape[1])
    is_masked = batch["masked_positions"][..., None] == positions  # (B, P, L)
    # The padding of the masked positions is 0 and must not overwrite the first token.
    is_masked &= batch["masked_weights"][..., None] > 0
    placed = jnp.where(is_masked, values[..., None], 0).sum(axis=1)
    return jnp.where(is_masked.any(axis=1), placed, batch["tokens"])
