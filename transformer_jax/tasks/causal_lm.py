"""Causal language modelling: predicting each token from the tokens before it."""

import dataclasses
import math
import types
from functools import cached_property, partial

import jax.numpy as jnp

from transformer_jax.config import UserError, build_model
from transformer_jax.data import arguments, tokenizers
from transformer_jax.data.text_windows import TextWindows
from transformer_jax.inference.causal import CausalUse
from transformer_jax.losses import cross_entropy
from transformer_jax.pictures.progress import say
from transformer_jax.tasks.base import BaseTask, check_row_length, perplexity
from transformer_jax.tasks.task import Context, Loss


@dataclasses.dataclass
class CausalLM(CausalUse, BaseTask):
    """The objective of Radford et al. 2018, equation 1."""

    length: int = 1024  # tokens of a row
    # tokens of a text that is generated and printed at each evaluation; 0: none
    sample_tokens: int = 0
    # rows continue those of the update before, and the model's state passes from one to the next
    carry: bool = False

    def __post_init__(self):
        self.model = build_model(self.config)
        self.coefficients = {"loss": 1.0}
        max_length = self.model.window
        check_row_length("length", self.length, self.model)
        if not 0 <= self.sample_tokens < max_length:
            raise UserError(
                f"config.task.sample_tokens={self.sample_tokens}: must be from 0 to "
                f"config.model.max_length - 1 = {max_length - 1}"
            )
        self._check_carry()
        if not 0 <= self.config.decode.stride <= self.length:
            raise UserError(
                f"config.decode.stride={self.config.decode.stride}: must be from 0 to "
                f"config.task.length={self.length}"
            )

    def _check_carry(self) -> None:
        if not self.carry:
            return
        if "carry" not in self.model.can:
            raise UserError(
                f"config.task.carry: config.model.name={self.config.model.name!r} has no state to "
                "carry from row to row; set it to false, or take a recurrent model"
            )
        for key, value in (
            ("data.mixture", self.config.data.mixture),
            ("train.first_batch", self.config.train.first_batch),
            ("decode.stride", self.config.decode.stride),
        ):
            if value:
                raise UserError(
                    f"config.{key}={value}: not with config.task.carry, where each row of a batch "
                    "reads its own part of one text; leave it out"
                )

    # data

    @cached_property
    def tokenizer(self):
        return tokenizers.of_run(
            self.tokenizer_folder,
            self.config.data,
            self._texts.training_text,
            self.model.vocab_size,
        )

    @cached_property
    def _texts(self) -> TextWindows:
        return TextWindows(self.config, self.length, self.carry)

    def rows(self):
        return self._rows

    @cached_property
    def _rows(self) -> types.SimpleNamespace:
        train = self._texts.train(self.tokenizer)
        evaluated = {}
        if self._texts.text("valid") is not None:
            evaluated["valid"] = self._texts.evaluation(self.tokenizer, "valid", self.length)
        return types.SimpleNamespace(train=train, eval=evaluated)

    def fingerprint(self) -> dict:
        return self._texts.fingerprint() | {"tokenizer": self.tokenizer.fingerprint()}

    # training

    def batch_spec(self, row_shape: int):
        keys = ["tokens", "labels", "weights"]
        if self.carry:
            keys += ["restarts"]
        elif self.config.data.mask_documents:
            keys += ["positions", "segment_ids"]
        return self.int32_spec(dict.fromkeys(keys, (self.length,)))

    def init(self, rng):
        return self.model.init(rng, jnp.zeros((1, self.length), jnp.int32))["params"]

    def initial_carry(self, rows: int):
        return self.model.initial_carry(rows) if self.carry else None

    def weights(self, batch):
        return {"loss": batch["weights"].sum().astype(jnp.float32)}

    def loss(self, params, batch, context: Context) -> Loss:
        hidden, carry = self._states(params, batch, context)
        table, bias = self.model.apply({"params": params}, method="output")
        weights = batch["weights"].astype(jnp.float32)
        loss, _, correct = cross_entropy(hidden, table, bias, batch["labels"], weights)
        count = batch["weights"].sum(dtype=jnp.int32)
        metrics = {
            "loss": (loss, count),
            "accuracy": (correct, count),
            "filled": (count, jnp.int32(batch["weights"].size)),
        }
        return Loss({"loss": loss}, metrics, carry)

    def _states(self, params, batch, context: Context):
        """Returns (hidden states (B, L, M), carry)."""
        apply = partial(
            self.model.apply,
            {"params": params},
            batch["tokens"],
            train=context.train,
            rngs={"dropout": context.rng} if context.train else None,
        )
        if self.carry:
            return apply(context.carry, restarts=batch["restarts"], method="advance")
        positions, segment_ids = batch.get("positions"), batch.get("segment_ids")
        return apply(positions=positions, segment_ids=segment_ids, method="hidden"), None

    def derived(self, name, means):
        return _perplexities(means["loss"], self._rows.eval[name].component.store.meta)

    def evaluations(self):
        return {"sample": self._print_sample} if self.sample_tokens else {}

    def _print_sample(self, params) -> dict:
        (sample,) = self.generate(params, [""], max_tokens=self.sample_tokens, temperature=0.8)
        say(f"a sample:\n{sample.text}")
        return {}

    def flops(self, row_shape: int = 0) -> float:
        return 3 * self.model.flops(self.length)  # a backward pass costs two forward passes

    def positions(self, row_shape: int = 0) -> int:
        return self.length

    # evaluation

    def evaluate(self, params, split: str) -> dict:
        """Returns loss, accuracy, perplexity, and bits per byte and per character of a split.

        Windows slide over the text by `config.decode.stride`; a model with a carry reads the text
        once, as one stream. Raises UserError where the run has no such split.
        """
        arguments.held_out(self._texts.text, split, "files")
        stride = self.config.decode.stride or max(self.length // 2, 1)
        evaluated = self._texts.evaluation(self.tokenizer, split, stride)
        means = self.mean_metrics(params, evaluated)
        meta = evaluated.component.store.meta
        return {
            "loss": means["loss"],
            "accuracy": means["accuracy"],
            **_perplexities(means["loss"], meta),
            "tokens": meta["tokens"],
            "bytes": meta["bytes"],
            "length": self.length,
            "stride": evaluated.component.stride,
        }


def _perplexities(loss: float, meta: dict) -> dict[str, float]:
    """Returns the perplexity and the bits per byte and character, from the mean loss of a text.

    The loss counts all tokens, including the ends of documents.
    """
    bits = loss * meta["tokens"] / math.log(2)
    return {
        "perplexity": perplexity(loss),
        "bits_per_byte": bits / meta["bytes"],
        "bits_per_character": bits / meta["characters"],
    }
