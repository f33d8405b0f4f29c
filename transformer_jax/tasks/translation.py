"""Translation: packed pairs, label-smoothed cross-entropy, and translating text with the trained model."""
import dataclasses
import itertools
import types
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from transformer_jax.config import UserError, build_model
from transformer_jax.data import rows, sources, tokenizers
from transformer_jax.decoding import sampling
from transformer_jax.losses import cross_entropy

_BUCKET = 16  # source lengths are padded to multiples of it, so that few shapes are compiled
_READ_AHEAD = 32  # batches of lines held at a time, sorted by length among themselves


@dataclasses.dataclass
class Translation:
    """The objective of Vaswani et al. 2017, section 5. See tasks/task.py for the methods' contracts.

    `tokenizer_folder`: where a run has left its tokenizers; None: train them on the training data.
    """

    config: ConfigDict
    tokenizer_folder: Path | None
    source_length: int = 256  # positions of a packed row
    target_length: int = 256
    label_smoothing: float = 0.1

    def __post_init__(self):
        self.model = build_model(self.config)
        self.coefficients = {"loss": 1.0}
        for key in ("source_length", "target_length"):
            if not 2 <= getattr(self, key) <= self.model.max_length:
                raise UserError(f"config.task.{key}={getattr(self, key)}: must be from 2 to config.model.max_length={self.model.max_length}")

    # data

    @cached_property
    def tokenizer(self) -> tokenizers.Pair:
        if self.tokenizer_folder:
            return tokenizers.Pair.load(self.tokenizer_folder)
        return tokenizers.train_pair(self._pairs("train"), self.config.data, self.model.source_vocab_size, self.model.vocab_size)

    @cached_property
    def _rows(self) -> types.SimpleNamespace:
        pack = lambda split: rows.packed_pairs(self._pairs(split), self.config.data, self.tokenizer, self.source_length, self.target_length, split)
        train = rows.TrainRows([rows.Phase(pack("train"), self.config.train.batch)], self.config.data.seed)
        return types.SimpleNamespace(train=train, eval={"valid": rows.EvalRows(pack("valid"))} if self._pairs("valid") else {})

    def rows(self):
        return self._rows

    def fingerprint(self) -> dict:
        """What the run's data and tokenizers are, by content."""
        return {"train": self._pairs("train").fingerprint(), "tokenizer": self.tokenizer.fingerprint()}

    def _pairs(self, split):
        found = sources.pairs(self.config.data, split)
        if found is None and split == "train":
            raise UserError("config.data names no training text")
        return found

    def batch_spec(self, phase: int = 0) -> dict[str, jax.ShapeDtypeStruct]:
        batch = self.config.train.batch
        kinds = {"source": ("", "_positions", "_segment_ids"), "target": ("", "_positions", "_segment_ids"), "labels": ("",)}
        size = lambda side: self.source_length if side == "source" else self.target_length
        return {side + kind: jax.ShapeDtypeStruct((batch, size(side)), jnp.int32) for side, each in kinds.items() for kind in each}

    # objective

    def init(self, rng):
        tokens = jnp.zeros((1, 2), jnp.int32)
        return self.model.init(rng, tokens, tokens)["params"]

    def weights(self, batch):
        return {"loss": jnp.sum(batch["target_segment_ids"] > 0).astype(jnp.float32)}

    def loss(self, params, batch, rng, *, train):
        variables = {"params": params}
        hidden = self.model.apply(variables, batch["source"], batch["target"], batch["source_positions"], batch["source_segment_ids"],
                                  batch["target_positions"], batch["target_segment_ids"], train=train, method="hidden",
                                  rngs={"dropout": rng} if train else None)
        table = self.model.apply(variables, method="output_table")
        filled = batch["target_segment_ids"] > 0
        weights = filled.astype(jnp.float32)
        loss, nll, correct = cross_entropy(hidden, table, batch["labels"], weights, self.label_smoothing if train else 0.0)
        count = weights.sum()
        metrics = {"loss": (loss, count), "nll": (nll, count), "accuracy": (correct, count),
                   "filled": (filled.sum(dtype=jnp.int32), jnp.int32(filled.size))}
        return {"loss": loss}, metrics

    def trainable(self, path) -> bool:
        return True

    def evaluations(self):
        return {}

    def flops(self, phase: int = 0) -> float:
        return 3 * self.model.flops(self.source_length, self.target_length)  # a backward pass costs two forward ones

    def positions(self, phase: int = 0) -> int:
        return self.target_length

    # use

    def translate(self, params, lines: Iterable[str]) -> Iterator[str]:
        """Translates lines greedily, in order; an empty line stays empty. Holds a bounded number of lines.

        Raises UserError for a line longer than `config.model.max_length` allows.
        """
        decode = self.config.decode
        limit = self.model.max_length - decode.max_extra
        numbered = enumerate(lines, 1)
        while chunk := list(itertools.islice(numbered, _READ_AHEAD * decode.batch)):
            sources_ = self.tokenizer.source.encode([line for _, line in chunk])
            for (number, _), ids in zip(chunk, sources_):
                if len(ids) >= limit:
                    raise UserError(f"line {number}: {len(ids)} tokens, at most {limit - 1} can be translated (config.model.max_length)")
            order = sorted((i for i, ids in enumerate(sources_) if ids), key=lambda i: -len(sources_[i]))
            outputs = [""] * len(chunk)
            for start in range(0, len(order), decode.batch):
                chosen = order[start:start + decode.batch]
                for i, text in zip(chosen, self._translate_batch(params, [sources_[i] for i in chosen])):
                    outputs[i] = text
            yield from outputs

    def _translate_batch(self, params, sources_: list[list[int]]) -> list[str]:
        """One batch of token lists, the longest first; padded to a bucket's shape."""
        length = -(-(len(sources_[0]) + 1) // _BUCKET) * _BUCKET
        source = np.zeros((self.config.decode.batch, length), np.int32)
        limits = np.ones(self.config.decode.batch, np.int32)
        for row, ids in enumerate(sources_):
            source[row, : len(ids) + 1] = [*ids, self.tokenizer.source.eos_id]
            limits[row] = len(ids) + 1 + self.config.decode.max_extra
        ids = jax.device_get(self._decode(params, source, limits))[: len(sources_)]
        return self.tokenizer.target.decode([row[row > 0].tolist() for row in ids])

    @cached_property
    def _decode(self):
        """Compiled: params, source (B, S), most target tokens of each (B,) -> target ids (B, S + max_extra), zeros after the end."""
        target = self.tokenizer.target

        @jax.jit
        def decode(params, source, limits):
            slots = source.shape[1] + self.config.decode.max_extra
            segments = (source > 0).astype(jnp.int32)
            memory = self.model.apply({"params": params}, source, None, segments, method="encode")

            def step(cache, tokens, positions, memory=None):
                """Tokens (B,) at positions (B,) -> logits (B, V) of the next, and the cache with them in it."""
                hidden, new = self.model.apply({"params": params, **cache}, tokens[:, None], memory, positions[:, None], None, segments,
                                               decode=slots, method="decode", mutable=["cache"])
                return self.model.apply({"params": params}, hidden[:, 0], method="logits"), new

            begin = jnp.full(source.shape[:1], target.bos_id)
            logits, cache = step({}, begin, jnp.zeros_like(begin), memory)
            return sampling.greedy(step, logits, cache, jnp.ones_like(begin), limits, slots, target.eos_id)

        return decode
