"""Causal language modelling: predicting each token from the tokens before it."""

import dataclasses
import math
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Literal

import jax.numpy as jnp

from transformer_jax.config import UserError, build_model
from transformer_jax.data import arguments, rows, tokenizers, windows
from transformer_jax.data.sources import documents
from transformer_jax.inference import attention
from transformer_jax.inference.generation import Continuation, Generator, Request
from transformer_jax.inference.sampling import Sampling
from transformer_jax.inference.sampling import of_options as sampling_of
from transformer_jax.inference.scoring import Likelihood, Scorer
from transformer_jax.losses import cross_entropy
from transformer_jax.pictures.attended import Attended
from transformer_jax.pictures.progress import say
from transformer_jax.tasks.base import BaseTask, check_row_length, perplexity
from transformer_jax.tasks.task import Context, Loss


@dataclasses.dataclass
class CausalLM(BaseTask):
    """The objective of Radford et al. 2018, equation 1."""

    length: int = 1024  # tokens of a row
    # tokens of a text that is generated and printed at each evaluation; 0: none
    sample_tokens: int = 0

    attentions = ("decoder",)  # the kinds of attention that `attention` returns

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

    # evaluation and use

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

    def generate(
        self,
        params,
        prompts: Iterable[str],
        *,
        max_tokens: int | None = None,
        how: Sampling | None = None,
        stop: str | Sequence[str] = (),
        seed: int = 0,
        watch: Callable[[list[str]], None] | None = None,
        window: Literal["slide", "refuse"] = "slide",
        **sampling,
    ) -> Iterator[Continuation]:
        """Yields a continuation of each prompt, in order.

        A continuation ends where the document ends, before one of the strings `stop`, or after
        `max_tokens` tokens (default: 100). `how=Sampling(...)` decides how a token is drawn; its
        options may be given by name, as in temperature=0.8. `watch` is called from time to time
        with the unfinished continuations of a batch.

        The model reads a window of at most `config.model.max_length` tokens. When the window is
        full, its last half becomes a new prompt with positions from 0. The end of a document that
        stands before a text is not repeated there. A prompt that fills the window is cut to its
        last half. `repetition_penalty` counts the tokens of the whole text.

        With window="refuse", a prompt and `max_tokens` that exceed the window together raise
        UserError. The default of `max_tokens` is then at most the room that is left.

        A text depends only on its prompt, the number of its prompt, and `seed`. Other texts of its
        batch change its logits by rounding errors. In float32 these errors decide no token; in
        bfloat16 they rarely do.
        """
        stop = (stop,) if isinstance(stop, str) else tuple(stop)
        drawing = sampling_of(how, sampling)
        request = Request(max_tokens, drawing, stop, seed, watch, window)
        batch = self.config.decode.batch
        generator = Generator(self.model, self.tokenizer, self.with_start, batch)
        return generator(params, arguments.as_texts(prompts), request)

    def with_start(self, ids: list[int]) -> list[int]:
        """Returns the ids of a text's beginning, as the model reads them in training.

        The end token comes first where rows keep documents apart, and where there are no ids.
        """
        return [self.tokenizer.eos_id, *ids] if self.config.data.mask_documents or not ids else ids

    def attention(self, params, text: str, *, pieces: bool = False) -> Attended:
        """Returns the attention weights between the words of a text; with `pieces`, its tokens.

        Raises UserError for a text longer than `config.model.max_length`.
        """
        ids = self.with_start(self.tokenizer.encode([text])[0])
        return attention.in_text(
            self.model, params, self.tokenizer, ids, stack="decoder", pieces=pieces
        )

    def log_likelihoods(self, params, pairs: Iterable[tuple[str, str]]) -> Iterator[Likelihood]:
        """Yields log P(continuation | context) for each (context, continuation), in order.

        An empty context is the beginning of a document. A text that is too long for the model loses
        the beginning of its context.
        """
        return self._scorer.texts(params, pairs)

    def token_log_likelihoods(
        self, params, pairs: Sequence[tuple[list[int], list[int]]]
    ) -> Iterator[Likelihood]:
        """As `log_likelihoods`, for token ids.

        Raises UserError for an empty context, and for ids that are not in the vocabulary.
        """
        return self._scorer.tokens(params, pairs)

    @property
    def _scorer(self) -> Scorer:
        return Scorer(self.model, self.tokenizer, self.with_start, self.config.decode.batch)


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
