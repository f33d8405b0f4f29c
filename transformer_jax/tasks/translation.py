"""Translation: packed pairs, label-smoothed cross-entropy, and translating text with the trained
model.
"""

import dataclasses
import itertools
import math
import types
from collections.abc import Iterable, Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from transformer_jax.config import UserError, build_model
from transformer_jax.data import long_lines, rows, tokenizers
from transformer_jax.data.long_lines import LongLines
from transformer_jax.data.sources import pairs as sources
from transformer_jax.inference.beam_search import BeamSearch
from transformer_jax.inference.stream import Stream
from transformer_jax.layers.attention import weights_in
from transformer_jax.layers.blocks import for_decoding
from transformer_jax.layers.linear import compute_dtype
from transformer_jax.losses import cross_entropy
from transformer_jax.pictures.attended import Attended, Side, between
from transformer_jax.pictures.progress import say, track
from transformer_jax.scores import bleu

LONG = ("split", "truncate", "skip", "refuse")  # ways to treat a line that is too long

_READ_AHEAD = 32  # batches of lines held at a time, sorted by length among themselves


@dataclasses.dataclass
class Translation:
    """The objective of Vaswani et al. 2017, section 5. See tasks/task.py for the methods'
    contracts.

    `tokenizer_folder`: where a run has left its tokenizers; None: train them on the training data.
    """

    config: ConfigDict
    tokenizer_folder: Path | None
    source_length: int = 256  # positions of a packed row
    target_length: int = 256  # positions of a packed target row
    label_smoothing: float = 0.1  # probability that the loss spreads over all tokens
    bleu_lines: int = 200  # validation sentences translated at each evaluation; 0: none

    num_phases = 1
    attentions = ("cross", "encoder", "decoder")  # kinds that can be looked at

    def __post_init__(self):
        self.model = build_model(self.config)
        self.coefficients = {"loss": 1.0}
        for key in ("source_length", "target_length"):
            if not 2 <= getattr(self, key) <= self.model.max_length:
                raise UserError(
                    f"config.task.{key}={getattr(self, key)}: must be from 2 to config.model.max_length={self.model.max_length}"
                )
        if self.bleu_lines < 0:
            raise UserError(f"config.task.bleu_lines={self.bleu_lines}: at least 0, which is none")
        # source tokens that can be translated
        self._longest = self.model.max_length - self.config.decode.max_extra - 1
        if self._longest < 1:
            raise UserError(
                f"config.decode.max_extra={self.config.decode.max_extra} leaves no room in config.model.max_length={self.model.max_length}"
            )

    # data

    @cached_property
    def tokenizer(self) -> tokenizers.Pair:
        if self.tokenizer_folder:
            pair = tokenizers.Pair.load(self.tokenizer_folder)
            tokenizers.check_pair(pair, self.model.source_vocab_size, self.model.vocab_size)
            return pair
        return tokenizers.train_pair(
            self._pairs("train"),
            self.config.data,
            self.model.source_vocab_size,
            self.model.vocab_size,
        )

    @cached_property
    def _rows(self) -> types.SimpleNamespace:
        pack = lambda split: rows.packed_pairs(
            self._pairs(split),
            self.config.data,
            self.tokenizer,
            self.source_length,
            self.target_length,
            split,
        )
        train = rows.train_rows([pack("train")], self.config)
        return types.SimpleNamespace(
            train=train,
            eval={"valid": rows.EvalRows(pack("valid"))} if self._pairs("valid") else {},
        )

    def rows(self):
        return self._rows

    def fingerprint(self) -> dict:
        """What the run's data and tokenizers are, by content."""
        return {
            "train": self._pairs("train").fingerprint(),
            "tokenizer": self.tokenizer.fingerprint(),
        }

    def _pairs(self, split):
        found = sources.pairs(self.config.data, split)
        if found is None and split == "train":
            raise UserError("config.data names no training text")
        return found

    def batch_spec(self, phase: int = 0) -> dict[str, jax.ShapeDtypeStruct]:
        batch = self.config.train.batch
        kinds = {
            "source": ("", "_positions", "_segment_ids"),
            "target": ("", "_positions", "_segment_ids"),
            "labels": ("",),
        }
        size = lambda side: self.source_length if side == "source" else self.target_length
        return {
            side + kind: jax.ShapeDtypeStruct((batch, size(side)), jnp.int32)
            for side, each in kinds.items()
            for kind in each
        }

    # objective

    def init(self, rng):
        tokens = jnp.zeros((1, 2), jnp.int32)
        return self.model.init(rng, tokens, tokens)["params"]

    def weights(self, batch):
        return {"loss": jnp.sum(batch["target_segment_ids"] > 0).astype(jnp.float32)}

    def loss(self, params, batch, rng, *, train):
        variables = {"params": params}
        hidden = self.model.apply(
            variables,
            batch["source"],
            batch["target"],
            batch["source_positions"],
            batch["source_segment_ids"],
            batch["target_positions"],
            batch["target_segment_ids"],
            train=train,
            method="hidden",
            rngs={"dropout": rng} if train else None,
        )
        table = self.model.apply(variables, method="output_table")
        filled = batch["target_segment_ids"] > 0
        weights = filled.astype(jnp.float32)
        loss, nll, correct = cross_entropy(
            hidden, table, None, batch["labels"], weights, self.label_smoothing if train else 0.0
        )
        count = weights.sum()
        metrics = {
            "loss": (loss, count),
            "accuracy": (correct, count),
            "filled": (filled.sum(dtype=jnp.int32), jnp.int32(filled.size)),
        }
        if train:  # beside the smoothed loss, what can be compared with the evaluation's
            metrics["nll"] = (nll, count)
        return {"loss": loss}, metrics

    def trainable(self, path) -> bool:
        return True

    def derived(self, name, means):
        return {"perplexity": math.exp(min(means["loss"], 700.0))}

    def evaluations(self):
        valid = self._pairs("valid")
        if valid is None or not self.bleu_lines:
            return {}
        return {"valid": partial(self._score, valid, self.bleu_lines)}

    def flops(self, phase: int = 0) -> float:
        # a backward pass costs two forward ones
        return 3 * self.model.flops(self.source_length, self.target_length)

    def positions(self, phase: int = 0) -> int:
        return self.target_length

    # use

    def evaluate(self, params, split: str) -> dict:
        """BLEU, chrF and the paper's own measure of a whole split, with signatures.

        Raises UserError where the run's data has no such split.
        """
        sources.check_evaluated(split)
        pairs = self._pairs(split)
        if pairs is None:
            raise UserError(
                f"--set={split}: this run names no such text; give --config.data.{split}_source and --config.data.{split}_target"
            )
        outputs, references = self._translated(pairs, None, params)
        signatures = bleu.signatures(outputs, references, pairs.target_language)
        return bleu.scores(outputs, references) | signatures

    def _score(self, pairs, count, params) -> dict[str, float]:
        return bleu.scores(*self._translated(pairs, count, params))

    def _translated(self, pairs, count, params) -> tuple[list[str], list[str]]:
        """(translations, references) of the first `count` pairs; of all where it is None."""
        inputs, references = map(list, zip(*itertools.islice(pairs, count)))
        if long := {
            i
            for i, ids in enumerate(self.tokenizer.source.encode(inputs))
            if len(ids) > self._longest
        }:
            say(
                f"{len(long)} sentences are longer than the {self._longest} tokens that can be translated, and count as translated by nothing"
            )
            inputs = ["" if i in long else line for i, line in enumerate(inputs)]
        outputs = [
            best[0].text
            for best in self.translate(params, track(inputs, "translating", len(inputs)))
        ]
        return outputs, references

    def translate(
        self, params, lines: Iterable[str], n_best: int = 1, *, long: str = "split"
    ) -> Iterator[list["Hypothesis"]]:
        """The `n_best` translations of each line, in order; an empty line stays empty.

        Holds a bounded number of lines. Beam search as `config.decode` says; greedy with one beam.
        More translations than beams raise UserError.

        `long` decides about a line that is longer than `config.model.max_length` allows. "split"
        translates its sentences one by one, a longer sentence in parts that end at a space; it
        joins their n-th translations and adds their scores. "truncate" cuts the line, "skip"
        leaves its translation empty, "refuse" raises UserError. A warning at the end names the
        numbers of these lines.
        """
        decode = self.config.decode
        if n_best > decode.beam:
            raise UserError(
                f"{n_best} translations of a line need as many beams: config.decode.beam={decode.beam}"
            )
        limit = (
            f"the {self._longest} tokens that can be translated at once (config.model."
            f"max_length={self.model.max_length} less config.decode.max_extra and the end)"
        )
        treatment = LongLines(long, LONG, limit)
        return self._translations(params, sources.several(lines), n_best, treatment)

    def _translations(self, params, lines, n_best, treatment):
        decode, eos_id = self.config.decode, self.tokenizer.source.eos_id
        numbered, stream = enumerate(lines, 1), self.stream(n_best)
        params = for_decoding(params, compute_dtype(self.model.dtype))
        with treatment:
            while chunk := list(itertools.islice(numbered, _READ_AHEAD * decode.batch)):
                lines = list(self._parts(chunk, treatment))
                parts = [[*ids, eos_id] for ids in itertools.chain.from_iterable(lines)]
                order = sorted(range(len(parts)), key=lambda i: -len(parts[i]))
                limits = [len(parts[i]) + decode.max_extra for i in order]
                outputs = {}
                for number, beams in stream(params, [parts[i] for i in order], limits):
                    outputs[order[number]] = self._hypotheses(beams)
                in_order = (outputs[i] for i in range(len(parts)))
                for line in lines:
                    yield _joined(list(itertools.islice(in_order, len(line))), n_best)

    def _hypotheses(self, beams) -> list["Hypothesis"]:
        texts = self.tokenizer.target.decode([ids[ids > 0].tolist() for ids in beams.ids])
        return [Hypothesis(text, float(score)) for text, score in zip(texts, beams.scores)]

    def _parts(self, chunk, treatment: LongLines) -> Iterator[list[list[int]]]:
        """The ids of each numbered line, in parts that are translated one by one.

        An empty line has no part, a long line several, and any other line one.
        """
        encode, most = self.tokenizer.source.encode, self._longest
        for (number, line), ids in zip(chunk, encode([line for _, line in chunk])):
            if len(ids) <= most:
                yield [ids] if ids else []
                continue
            treatment.add(number)
            match treatment.way:
                case "split":
                    yield long_lines.split(line, encode, most)
                case "truncate":
                    yield [ids[:most]]
                case "skip":
                    yield []

    def stream(self, n_best: int) -> Stream:
        """The search as `config.decode` says, over source ids that end with their end token."""
        decode, target = self.config.decode, self.tokenizer.target
        return Stream(
            self.model,
            BeamSearch(decode.beam, decode.alpha, target.eos_id, n_best),
            decode.batch,
            target.bos_id,
        )

    def attention(
        self,
        params,
        source: str,
        target: str | None = None,
        kind: str = "cross",
        *,
        pieces: bool = False,
    ) -> Attended:
        """What a translation, by default the model's own, attends to in its source ("cross") or
        itself ("decoder"), or the source in itself ("encoder").

        By words, or by `pieces`; end tokens included. A query of the decoder is named after the
        word it predicts, a key after the word it has read.
        """
        if target is None:
            target = ""
            if kind != "encoder":
                target = next(self.translate(params, [source], long="refuse"))[0].text
        (from_, source_ids), (to, target_ids) = (
            (tokenizer, [*tokenizer.encode([text])[0], tokenizer.eos_id])
            for tokenizer, text in (
                (self.tokenizer.source, source),
                (self.tokenizer.target, target),
            )
        )
        if max(len(source_ids), len(target_ids)) > self.model.max_length:
            raise UserError(
                f"{max(len(source_ids), len(target_ids))} tokens, at most config.model.max_length={self.model.max_length} can be read"
            )
        read, inputs = jnp.array([source_ids]), [to.bos_id, *target_ids[:-1]]
        keys = Side.of(from_, source_ids, pieces)
        if kind == "encoder":
            return between(
                weights_in(self.model, params, "encoder", read, method="encode"), keys, keys
            )
        queries = Side.of(to, target_ids, pieces)
        if kind == "decoder":
            keys = Side(["<s>"], [0]) + Side.of(to, target_ids[:-1], pieces)
        return between(
            weights_in(
                self.model, params, "decoder", read, jnp.array([inputs]), cross=kind == "cross"
            ),
            queries,
            keys,
        )


class Hypothesis(NamedTuple):
    text: str
    score: float  # log-probability over the length penalty; of a line in parts their sum


def _joined(parts: list[list[Hypothesis]], n_best: int) -> list[Hypothesis]:
    """The hypotheses of a line from those of its parts."""
    if not parts:
        return [Hypothesis("", 0.0)] * n_best
    columns = list(zip(*parts))  # the n-th of each part
    texts = (" ".join(each.text for each in column if each.text) for column in columns)
    scores = (sum(each.score for each in column) for column in columns)
    return [Hypothesis(text, score) for text, score in zip(texts, scores)]
