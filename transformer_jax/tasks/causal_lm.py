"""Causal language modelling: predicting each token from the tokens before it."""

import dataclasses
import math
import types
from functools import cached_property

import jax.numpy as jnp

from transformer_jax.config import UserError, build_model
from transformer_jax.data import arguments, rows, tokenizers, windows
from transformer_jax.data.sources import documents
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

    def __post_init__(self):
        self.model = build_model(self.config)
        self.coefficients = {"loss": 1.0}
        max_length = self.model.max_length
        check_row_length("length", self.length, self.model)
        if not 0 <= self.sample_tokens < max_length:
            raise UserError(
                f"config.task.sample_tokens={self.sample_tokens}: must be from 0 to "
                f"config.model.max_length - 1 = {max_length - 1}"
            )
        if not 0 <= self.config.decode.stride <= self.length:
            raise UserError(
                f"config.decode.stride={self.config.decode.stride}: must be from 0 to "
                f"config.task.length={self.length}"
            )

    # data

    @cached_property
    def tokenizer(self):
        return tokenizers.of_run(
            self.tokenizer_folder, self.config.data, self._training_data, self.model.vocab_size
        )

    def _training_data(self) -> documents.Concatenation:
        return documents.Concatenation(tuple(text for text, _ in self._mixture))

    @cached_property
    def _mixture(self):
        """The training texts with their weights."""
        return documents.mixture(self.config.data)

    def _text(self, split: str):
        return documents.of_split(self.config.data, split)

    def _tokens(self, text, name: str):
        return windows.tokenised(text, self.config.data, self.tokenizer, name)

    @cached_property
    def _rows(self) -> types.SimpleNamespace:
        data = self.config.data
        components = []
        for number, (text, _) in enumerate(self._mixture):
            name = "train" if len(self._mixture) == 1 else f"train-{number}"
            tokens = self._tokens(text, name)
            key = (data.seed, 0, number)
            components.append(windows.Windows(tokens, self.length, data.mask_documents, key))
        weights = [weight for _, weight in self._mixture]
        valid = self._text("valid")
        evaluated = {}
        if valid is not None:
            evaluated["valid"] = self._evaluation_rows(valid, "valid", self.length)
        return types.SimpleNamespace(
            train=rows.train_rows(components, self.config, weights), eval=evaluated
        )

    def _evaluation_rows(self, text, split: str, stride: int) -> rows.EvalRows:
        tokens = self._tokens(text, split)
        mask_documents = self.config.data.mask_documents
        return rows.EvalRows(windows.SlidingWindows(tokens, self.length, stride, mask_documents))

    def fingerprint(self) -> dict:
        content = {"train": [text.fingerprint() for text, _ in self._mixture]}
        if len(self._mixture) > 1:
            content["mixture"] = [weight for _, weight in self._mixture]
        return content | {"tokenizer": self.tokenizer.fingerprint()}

    # training

    def batch_spec(self, row_shape: int):
        keys = ["tokens", "labels", "weights"]
        if self.config.data.mask_documents:
            keys += ["positions", "segment_ids"]
        return self.int32_spec(dict.fromkeys(keys, (self.length,)))

    def init(self, rng):
        return self.model.init(rng, jnp.zeros((1, self.length), jnp.int32))["params"]

    def weights(self, batch):
        return {"loss": batch["weights"].sum().astype(jnp.float32)}

    def loss(self, params, batch, context: Context) -> Loss:
        variables = {"params": params}
        hidden = self.model.apply(
            variables,
            batch["tokens"],
            positions=batch.get("positions"),
            segment_ids=batch.get("segment_ids"),
            train=context.train,
            method="hidden",
            rngs={"dropout": context.rng} if context.train else None,
        )
        table, bias = self.model.apply(variables, method="output")
        weights = batch["weights"].astype(jnp.float32)
        loss, _, correct = cross_entropy(hidden, table, bias, batch["labels"], weights)
        count = batch["weights"].sum(dtype=jnp.int32)
        metrics = {
            "loss": (loss, count),
            "accuracy": (correct, count),
            "filled": (count, jnp.int32(batch["weights"].size)),
        }
        return Loss({"loss": loss}, metrics)

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

        Windows slide over the text by `config.decode.stride`. Raises UserError where the run has
        no such split.
        """
        text = arguments.held_out(self._text, split, "files")
        stride = self.config.decode.stride or max(self.length // 2, 1)
        evaluated = self._evaluation_rows(text, split, stride)
        means = self.mean_metrics(params, evaluated)
        meta = evaluated.component.store.meta
        return {
            "loss": means["loss"],
            "accuracy": means["accuracy"],
            **_perplexities(means["loss"], meta),
            "tokens": meta["tokens"],
            "bytes": meta["bytes"],
            "length": self.length,
            "stride": stride,
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
