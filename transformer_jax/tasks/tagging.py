"""A tag for each word: named entities and the like (Devlin et al. 2018, figure 4d and section 5.3)."""

import dataclasses
import itertools
from functools import cached_property
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from transformer_jax.config import UserError
from transformer_jax.data.sources import tables
from transformer_jax.finetuning.base import ROW, FineTuning
from transformer_jax.finetuning.predictions import Asked
from transformer_jax.layers import flops
from transformer_jax.layers.heads import Head, RecurrentHead
from transformer_jax.losses import label_nll
from transformer_jax.scores import predictions as scores

_FEATURES = {  # layers, from 0, the embeddings; whether they are concatenated, not summed
    "embeddings": (slice(0, 1), False),
    "second-to-last": (slice(-2, -1), False),
    "last": (slice(-1, None), False),
    "sum-last-four": (slice(-4, None), False),
    "concat-last-four": (slice(-4, None), True),
    "sum-all": (slice(1, None), False),
}


@dataclasses.dataclass(frozen=True)
class _Part:
    """As much of a sentence as fits a row; the words are numbered from 0 in the split or input."""

    sentence: int
    ids: list[int]
    places: list[int]  # of each word's first piece in the row
    words: list[str]
    tags: list[int]


@dataclasses.dataclass
class Tagging(FineTuning):
    """Words are read and tagged where their first piece stands; sentences longer than a row are
    taken apart between words.

    Files are in CoNLL's form: a word and, in the last column, its tag; a blank line ends a
    sentence.
    """

    prefix: str = ""  # taken off each word, such as "en:"
    labels: tuple = ()  # all tags; (): those of the training examples, sorted

    # of a frozen BERT, for an LSTM (table 7)
    features: Literal[
        "", "embeddings", "second-to-last", "last", "sum-last-four", "concat-last-four", "sum-all"
    ] = ""
    lstm_width: int = 768  # of both directions together, in each of two layers

    summarises = False
    unread = {"words": [], "tags": [], "probabilities": []}
    long_lines = ("split", "skip", "refuse")

    def __post_init__(self):
        self.frozen = self.frozen or bool(self.features)
        super().__post_init__()
        if self.features and not self.encoder.bidirectional:
            raise UserError(
                f"config.task.features={self.features}: for bert, not {self.config.model.name}"
            )
        if self.lstm_width < 2 or self.lstm_width % 2:
            raise UserError(
                f"config.task.lstm_width={self.lstm_width}: two directions share it evenly"
            )
        if self.features.endswith("four") and self.model.num_layers < 4:
            raise UserError(
                f"config.task.features={self.features}: this model has {self.model.num_layers} layers"
            )

    def read(self, split):
        paths = tables.files(self.config.data, split)
        return paths and tables.Conll(paths, self.prefix)

    @cached_property
    def names(self) -> list[str]:
        found = [str(tag) for tag in self.labels] or sorted(
            {tag for record in self.read("train") for tag in record.values[1]}
        )
        if not found:
            raise UserError("config.data.train_files: no example in it")
        return found

    def examples(self, records):
        index, found = {name: number for number, name in enumerate(self.names)}, []
        for record in records:
            words, tags = record.values
            if unknown := [tag for tag in tags if tag not in index]:
                raise UserError(
                    f"{record.where}: unknown tag {unknown[0]!r}; there are: {', '.join(self.names[:20])}"
                )
            found.append((words, [index[tag] for tag in tags]))
        return self._parts(found)

    def _parts(self, sentences) -> list[_Part]:
        # WordPiece knows words, others spaces
        spaced = lambda words: (
            words if self.encoder.bidirectional else [words[0], *(f" {word}" for word in words[1:])]
        )
        pieces = iter(
            self.tokenizer.encode([word for words, _ in sentences for word in spaced(words)])
        )
        found = []
        for number, (words, tags) in enumerate(sentences):
            ids, places, start = [], [], 0
            for place, word in enumerate(words):
                # a word the tokenizer makes nothing of
                these = next(pieces)[: self.length - 2] or [self._unknown]
                if len(ids) + len(these) > self.length - 2:
                    found.append(_Part(number, ids, places, words[start:place], tags[start:place]))
                    ids, places, start = [], [], place
                places.append(1 + len(ids))
                ids = ids + these
            found.append(_Part(number, ids, places, words[start:], tags[start:]))
        return found

    @property
    def _unknown(self) -> int:
        return getattr(self.tokenizer, "unk_id", self.tokenizer.eos_id)

    def row(self, example):
        labels, asked = np.zeros((2, self.length), np.int32)
        labels[example.places], asked[example.places] = example.tags, 1
        return self.encoder.row(self.tokenizer, example.ids, None, self.length) | {
            "labels": labels,
            "asked": asked,
        }

    def filled(self, example):
        return len(example.ids) + 2

    def shapes(self, length):
        return dict.fromkeys((*ROW, "labels", "asked"), (length,))

    def head(self):
        if self.features:
            return RecurrentHead(
                len(self.names), _FEATURES[self.features][1], self.lstm_width, self.head_dropout
            )
        return Head(len(self.names), self.head_dropout, True)

    def init(self, rng):
        if not self.features:
            return super().init(rng)
        ours, theirs = jax.random.split(rng)
        states = jnp.zeros((self.model.num_layers + 1, 1, 8, self.model.d_model))[
            _FEATURES[self.features][0]
        ]
        return {
            **self.encoder.init(theirs, False),
            "head": self.head().init(ours, states, jnp.ones((1, 8), bool))["params"],
        }

    def outputs(self, params, batch, rng, train):
        if not self.features:
            return super().outputs(params, batch, rng, train)
        states = jax.lax.stop_gradient(self.encoder.layers(params, batch))
        dropout = {"dropout": rng} if train else None
        return self.head().apply(
            {"params": params["head"]},
            states[_FEATURES[self.features][0]],
            batch["segment_ids"] > 0,
            train=train,
            rngs=dropout,
        ), states[-1]

    def flops(self, phase=0):
        if not self.features:
            return super().flops(phase)
        num_states = 4 if _FEATURES[self.features][1] else 1
        length = self.lengths[phase]
        width = self.lstm_width // 2  # of one direction
        first = flops.lstm(length, num_states * self.model.d_model, width)
        second = flops.lstm(length, self.lstm_width, width)
        return super().flops(phase) + 3 * 2 * (first + second)

    def counted(self, batch):
        return batch["asked"]

    def objective(self, outputs, batch):
        asked, count = batch["asked"], batch["asked"].sum(dtype=jnp.int32)
        right = jnp.sum((outputs.argmax(axis=-1) == batch["labels"]) * asked, dtype=jnp.float32)
        return (
            jnp.sum(label_nll(outputs, batch["labels"]) * asked),
            count,
            {"accuracy": (right, count)},
        )

    def _found(self, example, outputs) -> list[str]:
        return [self.names[tag] for tag in outputs[0][example.places].argmax(axis=-1)]

    def scores(self, examples, outputs):
        gold, found = {}, {}
        for example, output in zip(examples, outputs):
            gold.setdefault(example.sentence, []).extend(self.names[tag] for tag in example.tags)
            found.setdefault(example.sentence, []).extend(self._found(example, output))
        words = [(a, b) for number in gold for a, b in zip(gold[number], found[number])]
        return scores.entity_f1(list(gold.values()), list(found.values())) | {
            "accuracy": sum(a == b for a, b in words) / len(words)
        }

    def shown(self, examples, outputs):
        words, tags, probabilities = [], [], []
        for part, output in zip(examples, outputs):
            words += part.words
            tags += self._found(part, output)
            likeliest = scipy.special.softmax(output[0][part.places], axis=-1).max(axis=-1)
            probabilities += likeliest.tolist()
        shown = " ".join(f"{word}/{tag}" for word, tag in zip(words, tags))
        return shown, {"words": words, "tags": tags, "probabilities": probabilities}

    def asked(self, lines):
        """A sentence a line, its words separated by spaces; a longer one has several parts."""
        sentences = [line.split() for _, line in lines]
        parts = self._parts([(words, [0] * len(words)) for words in sentences])
        by_sentence = itertools.groupby(parts, key=lambda part: part.sentence)
        lists = (list(group) for _, group in by_sentence)
        return [Asked(each, len(each) > 1) for each in lists]
