"""Causal language modelling: predicting each token from those before it, and writing and scoring
text with the trained model.
"""

import dataclasses
import itertools
import math
import os
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from transformer_jax import metrics
from transformer_jax.config import UserError, build_model
from transformer_jax.data import rows, tokenizers, windows
from transformer_jax.data.sources import documents
from transformer_jax.data.sources import pairs as sources
from transformer_jax.inference import generation
from transformer_jax.inference.generation import Continuation
from transformer_jax.inference.sampling import Sampling
from transformer_jax.inference.sampling import of_options as sampling_of
from transformer_jax.layers.attention import weights_in
from transformer_jax.layers.embeddings import check_ids
from transformer_jax.losses import cross_entropy, token_log_probs
from transformer_jax.pictures.attended import Attended, Side, between
from transformer_jax.pictures.progress import say, track

_BUCKET = 64  # lengths are padded to multiples of it, so that few shapes are compiled


@dataclasses.dataclass
class CausalLM:
    """The objective of Radford et al. 2018, equation 1. See tasks/task.py for the methods'
    contracts.

    `tokenizer_folder`: where a run has left its tokenizer; None: read or train what `config.data`
    says.
    """

    config: ConfigDict
    tokenizer_folder: Path | None
    length: int = 1024  # tokens of a row
    sample_tokens: int = 0  # of a text written and shown at each evaluation

    num_phases = 1
    attentions = ("decoder",)  # kinds that can be looked at

    def __post_init__(self):
        self.model = build_model(self.config)
        self.coefficients = {"loss": 1.0}
        if not 2 <= self.length <= self.model.max_length:
            raise UserError(
                f"config.task.length={self.length}: must be from 2 to config.model.max_length={self.model.max_length}"
            )
        if not 0 <= self.sample_tokens < self.model.max_length:
            raise UserError(
                f"config.task.sample_tokens={self.sample_tokens}: must be less than config.model.max_length={self.model.max_length}"
            )
        if not 0 <= self.config.decode.stride <= self.length:
            raise UserError(
                f"config.decode.stride={self.config.decode.stride}: at most config.task.length={self.length}"
            )

    # data

    @cached_property
    def tokenizer(self):
        text = lambda: documents.Together(tuple(text for text, _ in self._parts))
        return tokenizers.of_run(
            self.tokenizer_folder, self.config.data, text, self.model.vocab_size
        )

    @cached_property
    def _parts(self):
        return documents.mixture(self.config.data)

    def _text(self, split: str):
        return documents.documents(self.config.data, split)

    def _tokens(self, text, name: str):
        return windows.tokenised(text, self.config.data, self.tokenizer, name)

    @cached_property
    def _rows(self) -> types.SimpleNamespace:
        data = self.config.data
        names = (
            ["train"]
            if len(self._parts) == 1
            else [f"train-{number}" for number in range(len(self._parts))]
        )
        parts = [
            windows.Windows(
                self._tokens(text, name), self.length, data.mask_documents, (data.seed, 0, number)
            )
            for number, (name, (text, _)) in enumerate(zip(names, self._parts))
        ]
        valid = self._text("valid")
        found = (
            {}
            if valid is None
            else {
                "valid": rows.EvalRows(
                    windows.SlidingWindows(
                        self._tokens(valid, "valid"), self.length, self.length, data.mask_documents
                    )
                )
            }
        )
        return types.SimpleNamespace(
            train=rows.train_rows(parts, self.config, [weight for _, weight in self._parts]),
            eval=found,
        )

    def rows(self):
        return self._rows

    def fingerprint(self) -> dict:
        """What the run's data and tokenizer are, by content."""
        weights = {"mixture": [weight for _, weight in self._parts]} if len(self._parts) > 1 else {}
        return {
            "train": [text.fingerprint() for text, _ in self._parts],
            **weights,
            "tokenizer": self.tokenizer.fingerprint(),
        }

    # training

    def batch_spec(self, phase: int):
        keys = ("tokens", "labels", "weights") + (
            ("positions", "segment_ids") if self.config.data.mask_documents else ()
        )
        return {
            key: jax.ShapeDtypeStruct((self.config.train.batch, self.length), jnp.int32)
            for key in keys
        }

    def init(self, rng):
        return self.model.init(rng, jnp.zeros((1, self.length), jnp.int32))["params"]

    def weights(self, batch):
        return {"loss": batch["weights"].sum().astype(jnp.float32)}

    def loss(self, params, batch, rng, *, train):
        variables = {"params": params}
        hidden = self.model.apply(
            variables,
            batch["tokens"],
            batch.get("positions"),
            batch.get("segment_ids"),
            train=train,
            method="hidden",
            rngs={"dropout": rng} if train else None,
        )
        table, bias = self.model.apply(variables, method="output")
        loss, _, correct = cross_entropy(
            hidden, table, bias, batch["labels"], batch["weights"].astype(jnp.float32)
        )
        filled = batch["weights"].sum(dtype=jnp.int32)
        return {"loss": loss}, {
            "loss": (loss, filled),
            "accuracy": (correct, filled),
            "filled": (filled, jnp.int32(batch["weights"].size)),
        }

    def trainable(self, path) -> bool:
        return True

    def derived(self, name, means):
        meta = self._rows.eval[name].component.store.meta
        return _measures(means["loss"], meta)

    def evaluations(self):
        return {"sample": self._show_sample} if self.sample_tokens else {}

    def _show_sample(self, params) -> dict:
        found = next(self.generate(params, [""], max_tokens=self.sample_tokens, temperature=0.8))
        say(f"a sample:\n{found.text}")
        return {}

    def flops(self, phase: int = 0) -> float:
        return 3 * self.model.flops(self.length)  # a backward pass costs two forward ones

    def positions(self, phase: int = 0) -> int:
        return self.length

    # use

    def evaluate(self, params, split: str) -> dict:
        """Perplexity, bits per byte and per character of a whole split, by windows that slide over
        it by `config.decode.stride`.

        Raises UserError where the run's data has no such split.
        """
        sources.check_evaluated(split)
        text, batch = self._text(split), self.config.decode.batch
        if text is None:
            raise UserError(
                f"--set={split}: this run names no such text; give --config.data.{split}_files"
            )
        stride = self.config.decode.stride or max(self.length // 2, 1)
        found = rows.EvalRows(
            windows.SlidingWindows(
                self._tokens(text, split), self.length, stride, self.config.data.mask_documents
            )
        )
        step = jax.jit(lambda params, batch: self.loss(params, batch, None, train=False)[1])
        numbers = track(
            range(found.num_batches(batch)), "evaluating (batches)", found.num_batches(batch)
        )
        sums = [
            jax.device_get(step(params, found.batch(number, range(batch), batch)))
            for number in numbers
        ]
        means, meta = (
            metrics.means(jax.tree.map(lambda *x: np.sum(x, dtype=np.float64), *sums)),
            found.component.store.meta,
        )
        return {
            "loss": means["loss"],
            "accuracy": means["accuracy"],
            **_measures(means["loss"], meta),
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
        """Continues each prompt, in order: until the document ends, or before one of `stop`.

        `max_tokens`: the most tokens of a continuation, 100 by default. `how=Sampling(...)` decides
        how a token is drawn; its options may be given by name, as in temperature=0.8. `watch` is
        called now and then with the unfinished continuations of a batch.

        The model sees a window of at most `config.model.max_length` tokens. When it is full, its
        last half is read as a new prompt, at positions from 0 and without the document's end that
        stands before a text. A prompt that fills the window begins with its last half.
        `repetition_penalty` counts the whole text. With window="refuse" a prompt and `max_tokens`
        that exceed the window raise UserError; the default is then at most the room that is left.

        A text depends on its prompt, its number among the prompts and `seed` alone. The texts
        beside it change its logits by rounding: in float32 this decides no token, in bfloat16 now
        and then one.
        """
        stop = (stop,) if isinstance(stop, str) else tuple(stop)
        drawing = sampling_of(how, sampling)
        request = generation.Request(max_tokens, drawing, stop, seed, watch, window)
        batch = self.config.decode.batch
        generator = generation.Generator(self.model, self.tokenizer, self.begun, batch)
        return generator(params, sources.several(prompts), request)

    def begun(self, ids: list[int]) -> list[int]:
        """The ids of a text's beginning as in training: behind the end of another, where rows keep
        documents apart or there is nothing else.
        """
        return [self.tokenizer.eos_id, *ids] if self.config.data.mask_documents or not ids else ids

    def attention(self, params, text: str, *, pieces: bool = False) -> Attended:
        """What each word of a text, or each of its `pieces`, attends to. Raises UserError for a
        text longer than `config.model.max_length`.
        """
        ids = self.begun(self.tokenizer.encode([text])[0])
        if len(ids) > self.model.max_length:
            raise UserError(
                f"{len(ids)} tokens, at most config.model.max_length={self.model.max_length} can be read"
            )
        side = Side.of(self.tokenizer, ids, pieces)
        return between(weights_in(self.model, params, "decoder", jnp.array([ids])), side, side)

    def log_likelihoods(self, params, pairs: Iterable[tuple[str, str]]) -> Iterator["Likelihood"]:
        """log P(continuation | context) for each (context, continuation), in order. An empty
        context is the beginning of a document.

        What is too long for the model loses the beginning of its context.
        """
        pairs = iter(pairs)
        while chunk := list(itertools.islice(pairs, 16 * self.config.decode.batch)):
            yield from self.token_log_likelihoods(params, self._split(chunk))

    def _split(self, pairs):
        """Token ids of contexts and continuations. Spaces that end a context belong to the
        continuation, as its first word's token has them.
        """
        contexts = [context.rstrip() for context, _ in pairs]
        wholes = self.tokenizer.encode([context + continuation for context, continuation in pairs])
        # a token across the border is the continuation's
        shared = [
            len(os.path.commonprefix([*both]))
            for both in zip(wholes, self.tokenizer.encode(contexts))
        ]
        return [(self.begun(whole[:count]), whole[count:]) for whole, count in zip(wholes, shared)]

    def token_log_likelihoods(
        self, params, pairs: Sequence[tuple[list[int], list[int]]]
    ) -> Iterator["Likelihood"]:
        """As `log_likelihoods`, of token ids: (context, continuation).

        Raises UserError for an empty context, and for ids that the vocabulary lacks.
        """
        size, room = self.config.decode.batch, self.model.max_length
        for number, pair in enumerate(pairs, 1):
            self._check_pair(number, *pair)
        if long := next(
            (len(continuation) for _, continuation in pairs if len(continuation) > room), None
        ):
            raise UserError(
                f"a continuation has {long} tokens, more than config.model.max_length={room}"
            )
        whole = [
            ((context + continuation)[-room - 1 :], len(continuation))
            for context, continuation in pairs
        ]
        order = sorted(range(len(whole)), key=lambda i: -len(whole[i][0]))
        found = {}
        for start in range(0, len(order), size):
            chosen = order[start : start + size]
            length = min(_rounded(len(whole[chosen[0]][0]) - 1), room)
            tokens, weights = (
                np.zeros((size, length + 1), np.int32),
                np.zeros((size, length), np.int32),
            )
            for row, i in enumerate(chosen):
                ids, count = whole[i]
                tokens[row, : len(ids)] = ids
                weights[row, len(ids) - 1 - count : len(ids) - 1] = 1
            sums, greedy = jax.device_get(self._score(params, tokens, weights))
            found |= {
                i: Likelihood(float(sums[row]), bool(greedy[row]), whole[i][1])
                for row, i in enumerate(chosen)
            }
        return (found[i] for i in range(len(whole)))

    def _check_pair(self, number: int, context: Sequence[int], continuation: Sequence[int]) -> None:
        if not len(context):
            raise UserError(f"pair {number}: the context is empty; eos_id begins a document")
        try:
            check_ids(np.array([*context, *continuation]), self.model.vocab_size)
        except UserError as error:
            raise UserError(f"pair {number}: {error}") from None

    @cached_property
    def _score(self):
        """Compiled: params, tokens (B, L + 1), weights (B, L) -> sums of the weighted labels'
        log-probabilities (B,), and whether all are the likeliest.
        """

        @jax.jit
        def score(params, tokens, weights):
            hidden = self.model.apply({"params": params}, tokens[:, :-1], method="hidden")
            log_probs, likeliest = token_log_probs(
                hidden, *self.model.apply({"params": params}, method="output"), tokens[:, 1:]
            )
            return jnp.sum(log_probs * weights, axis=1), jnp.all(likeliest | (weights == 0), axis=1)

        return score


class Likelihood(NamedTuple):
    log_prob: float
    greedy: bool  # each token was the likeliest
    tokens: int


def _measures(loss: float, meta: dict) -> dict[str, float]:
    """Of a mean loss over all tokens of a text, its document ends included."""
    bits = loss * meta["tokens"] / math.log(2)
    return {
        "perplexity": math.exp(min(loss, 700.0)),
        "bits_per_byte": bits / meta["bytes"],
        "bits_per_character": bits / meta["characters"],
    }


def _rounded(length: int) -> int:
    return -(-length // _BUCKET) * _BUCKET
