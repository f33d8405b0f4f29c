"""Permutation language modeling: predicting tokens in a random order (Yang et al. 2019)."""

import dataclasses
from functools import cached_property, partial
from typing import Annotated

import jax.numpy as jnp

from transformer_jax.config import Range, UserError, build_model
from transformer_jax.contracts.model import Inputs
from transformer_jax.contracts.task import Context, Loss
from transformer_jax.data import arguments, permuted_rows, tokenizers
from transformer_jax.inference.encoder import EncoderUse
from transformer_jax.inference.log_probabilities import Permuted
from transformer_jax.objectives.texts import TextTask

_MIN_LENGTH = 16


@dataclasses.dataclass
class PermutedLM(EncoderUse, TextTask):
    """Permutation language modeling with partial prediction (Yang et al. 2019, equation 5).

    One token in six is predicted, in spans. A target is predicted given its position, the tokens
    that are not targets, and the targets before it in the order. If the model has a memory, a row
    also attends to the first halves of the rows before it, whose text it continues.
    """

    # tokens of a row; with a memory, the next row starts at its middle
    length: Annotated[int, Range(least=_MIN_LENGTH)] = 512

    def __post_init__(self):
        self.model = build_model(self.config)
        self.coefficients = {"loss": 1.0}
        self._check()

    def _check(self) -> None:
        if "permute" not in self.model.can:
            raise UserError(
                f"config.model.name={self.config.model.name!r}: predicts no tokens in a permuted "
                "order; take a model that does, such as xlnet"
            )
        if self.config.mesh.sequence != 1:
            raise UserError(
                f"config.mesh.sequence={self.config.mesh.sequence}: permuted_lm does not split "
                "rows; set it to 1"
            )
        if self.model.memory_length:
            self.texts.check_streams("config.model.memory_length")

    @property
    def _remembered(self) -> int:
        """The number of first tokens of a row that are added to the memory."""
        # The second half is not added, because the next row reads it again as its first half.
        return self.length // 2 if self.model.memory_length else 0

    @cached_property
    def texts(self) -> permuted_rows.PermutedRows:
        return permuted_rows.PermutedRows(self.config, self.length, self._remembered)

    @cached_property
    def tokenizer(self) -> tokenizers.Tokenizer:
        tokenizer = super().tokenizer
        tokenizer.required("cls", "sep", user="permutation language modeling")
        return tokenizer

    @property
    def scoring(self) -> Permuted:
        return Permuted(self.model, self.tokenizer)

    @property
    def _num_targets(self) -> int:
        return permuted_rows.num_targets(self.length)

    def batch_spec(self, row_shape: int):
        shapes = dict.fromkeys(("tokens", "token_types", "ranks"), (self.length,))
        shapes |= dict.fromkeys(("target_positions", "target_weights"), (self._num_targets,))
        if self.model.memory_length:
            shapes["restarts"] = (1,)
        return self.int32_spec(shapes)

    def init(self, rng):
        # Initialized through `permuted`, because only it reads the embedding of the targets.
        def used(model, tokens):
            states, _ = model.permuted(Inputs(tokens, ranks=tokens), tokens[:, :1])
            return model.logits(states)

        return self.model.init(rng, jnp.zeros((1, 8), jnp.int32), method=used)["params"]

    def initial_carry(self, rows: int):
        return self.model.initial_carry(rows) if self.model.memory_length else None

    def weights(self, batch):
        return {"loss": batch["target_weights"].sum().astype(jnp.float32)}

    def loss(self, params, batch, context: Context) -> Loss:
        states, carry = self._states(params, batch, context)
        apply = partial(self.model.apply, {"params": params})
        loss, _, correct = apply(method="scaled_output").cross_entropy(
            states,
            # The row itself has the labels: no token is masked, but no target attends to its own.
            jnp.take_along_axis(batch["tokens"], batch["target_positions"], axis=1),
            batch["target_weights"].astype(jnp.float32),
        )
        count = batch["target_weights"].sum(dtype=jnp.int32)
        # The texts of a row fill it, so there is no padding.
        size = jnp.int32(batch["tokens"].size)
        metrics = {"loss": (loss, count), "accuracy": (correct, count), "filled": (size, size)}
        return Loss({"loss": loss}, metrics, carry)

    def _states(self, params, batch, context: Context):
        """Returns (the hidden states of the targets (B, P, M), carry)."""
        carry = context.carry
        if carry is not None:
            # Where a stream restarts, the memory is masked instead of being cleared.
            memory, filled = carry
            carry = memory, jnp.where(batch["restarts"] > 0, 0, filled)
        outputs, _ = self.model.apply(
            {"params": params},
            Inputs(batch["tokens"], ranks=batch["ranks"], token_types=batch["token_types"]),
            batch["target_positions"],
            carry=carry,
            remembered=self._remembered,
            train=context.train,
            method="permuted",
            rngs={"dropout": context.rng} if context.train else None,
            mutable=["state"],
        )
        return outputs

    def flops(self, row_shape: int = 0) -> float:
        # The factor 3, because a backward pass costs two forward passes.
        return 3 * self.model.flops(self.length, self._num_targets)

    def positions(self, row_shape: int = 0) -> int:
        return self.length

    def evaluate(self, params, split: str) -> dict:
        """Returns loss, accuracy and perplexity of a split.

        A model with a memory reads the split as a single stream. Otherwise, a split of fewer than
        2,000 rows is read several times, with different orders. Raises UserError if the run has no
        such split.
        """
        arguments.held_out(self.texts.text, split, "files")
        evaluated = self.texts.evaluation(self.tokenizer, split)
        means = self.mean_metrics(params, evaluated)
        means.pop("filled")
        return means | self.derived(split, means) | {"rows": len(evaluated)}
