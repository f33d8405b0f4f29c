"""Tagging words, as in named-entity recognition (Devlin et al. 2018, figure 4d and section 5.3)."""

import dataclasses
import itertools
from collections.abc import Iterator
from functools import cached_property
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from transformer_jax.config import UserError
from transformer_jax.data.sources import conll, tables
from transformer_jax.finetuning.base import FineTuning
from transformer_jax.finetuning.predictions import Unlabelled
from transformer_jax.layers import flops
from transformer_jax.layers.cells import LSTM
from transformer_jax.layers.heads import Head, RecurrentHead
from transformer_jax.losses import label_nll
from transformer_jax.scores import predictions as scores

# The layers of each kind of features; layer 0 is the embeddings.
_LAYERS = {
    "embeddings": slice(0, 1),
    "second-to-last": slice(-2, -1),
    "last": slice(-1, None),
    "sum-last-four": slice(-4, None),
    "concat-last-four": slice(-4, None),
    "sum-all": slice(1, None),
}


@dataclasses.dataclass(frozen=True)
class _Part:
    """The part of a sentence that fits a row."""

    sentence: int  # its number in the split or input
    ids: list[int]
    places: list[int]  # of each word's first piece in the row
    words: list[str]
    tags: list[int]


@dataclasses.dataclass
class Tagging(FineTuning):
    """A word's tag is read at its first piece. A sentence longer than a row is split between words.

    Files have the form of CoNLL: a word and, in the last column, its tag on each line; a blank line
    ends a sentence.
    """

    prefix: str = ""  # removed from the beginning of each word, such as "en:"
    labels: tuple = ()  # all tags; (): the tags of the training examples, sorted

    # layers of a frozen BERT that an LSTM reads (table 7); "": none, the whole BERT is trained
    features: Literal[
        "", "embeddings", "second-to-last", "last", "sum-last-four", "concat-last-four", "sum-all"
    ] = ""
    lstm_width: int = 768  # width of both directions together, in each of the two layers

    summarises = False
    empty_details = {"words": [], "tags": [], "probabilities": []}
    long_lines = ("split", "skip", "refuse")

    def __post_init__(self):
        self.frozen = self.frozen or bool(self.features)
        super().__post_init__()
        if self.features and self.model.kind != "encoder":
            raise UserError(
                f"config.task.features={self.features}: is for bert, not {self.config.model.name}"
            )
        if self.lstm_width < 2 or self.lstm_width % 2:
            raise UserError(
                f"config.task.lstm_width={self.lstm_width}: must be even and at least 2, for two "
                "directions"
            )
        if self.features.endswith("four") and self.model.num_layers < 4:
            raise UserError(
                f"config.task.features={self.features}: needs 4 layers, but this model has "
                f"{self.model.num_layers} layers"
            )

    # examples

    def read(self, split):
        paths = tables.split_files(self.config.data, split)
        return paths and conll.Conll(paths, self.prefix)

    @cached_property
    def names(self) -> list[str]:
        """The tags in the order of the head."""
        if self.labels:
            return [str(tag) for tag in self.labels]
        names = sorted({tag for record in self.read("train") for tag in record.values[1]})
        if not names:
            raise UserError("config.data.train_files: no example in it")
        return names

    def examples(self, records):
        places = {name: place for place, name in enumerate(self.names)}
        sentences = []
        for record in records:
            words, tags = record.values
            if unknown := [tag for tag in tags if tag not in places]:
                known = ", ".join(self.names[:20])
                raise UserError(
                    f"{record.where}: unknown tag {unknown[0]!r}; the tags are: {known}"
                )
            sentences.append((words, [places[tag] for tag in tags]))
        return self._parts(sentences)

    def _parts(self, sentences) -> list[_Part]:
        """Returns the parts of all sentences, (words, tags) each."""
        words = [word for words, _ in sentences for word in self._spaced(words)]
        pieces = iter(self.tokenizer.encode(words))
        return [
            part
            for number, (words, tags) in enumerate(sentences)
            for part in self._parts_of(number, words, tags, pieces)
        ]

    def _spaced(self, words) -> list[str]:
        """Returns the words with the spaces in front of them, which are part of a word's pieces."""
        return [words[0], *(f" {word}" for word in words[1:])]

    def _parts_of(self, number, words, tags, pieces: Iterator[list[int]]) -> Iterator[_Part]:
        """Yields the parts of one sentence; `pieces` yields the ids of each word."""
        max_tokens = self.length - self.marks.count(1)
        ids, places, start = [], [], 0
        for place in range(len(words)):
            # A word may have no pieces.
            word_ids = next(pieces)[:max_tokens] or [self._unknown]
            if len(ids) + len(word_ids) > max_tokens:
                yield _Part(number, ids, places, words[start:place], tags[start:place])
                ids, places, start = [], [], place
            places.append(len(self.marks.begin) + len(ids))
            ids = ids + word_ids
        yield _Part(number, ids, places, words[start:], tags[start:])

    @property
    def _unknown(self) -> int:
        unknown = self.tokenizer.unk_id
        return self.tokenizer.eos_id if unknown is None else unknown

    def row(self, example):
        row = self.encoder.row(self.tokenizer, example.ids, length=self.length)
        labels, is_word = np.zeros((2, self.length), np.int32)
        labels[example.places] = example.tags
        is_word[example.places] = 1
        return row | {"labels": labels, "is_word": is_word}

    def num_tokens(self, example):
        return len(example.ids) + self.marks.count(1)

    def shapes(self, length):
        return dict.fromkeys((*self.encoder.arrays, "labels", "is_word"), (length,))

    # head and objective

    @property
    def _concatenates(self) -> bool:
        """Whether the states of several layers are concatenated, not summed."""
        return self.features == "concat-last-four"

    def head(self):
        if self.features:
            return RecurrentHead(
                len(self.names), self._concatenates, self.lstm_width, self.head_dropout
            )
        return Head(len(self.names), self.head_dropout, True)

    def init(self, rng):
        if not self.features:
            return super().init(rng)
        head_key, encoder_key = jax.random.split(rng)
        states = jnp.zeros((self.model.num_layers + 1, 1, 8, self.model.d_model))
        chosen = states[_LAYERS[self.features]]
        filled = jnp.ones((1, 8), bool)
        return {
            **self.encoder.init(encoder_key, False),
            "head": self.head().init(head_key, chosen, filled)["params"],
        }

    def outputs(self, params, batch, context):
        if not self.features:
            return super().outputs(params, batch, context)
        states = jax.lax.stop_gradient(self.encoder.layers(params, batch))
        outputs = self.head().apply(
            {"params": params["head"]},
            states[_LAYERS[self.features]],
            batch["segment_ids"] > 0,
            train=context.train,
            rngs={"dropout": context.rng} if context.train else None,
        )
        return outputs, states[-1]

    def flops(self, row_shape=0):
        if not self.features:
            return super().flops(row_shape)
        num_states = 4 if self._concatenates else 1
        length = self.lengths[row_shape]
        cell = LSTM(self.lstm_width // 2)  # of one direction
        first = flops.recurrent(length, num_states * self.model.d_model, cell)
        second = flops.recurrent(length, self.lstm_width, cell)
        return super().flops(row_shape) + 3 * 2 * (first + second)

    def counted(self, batch):
        return batch["is_word"]

    def objective(self, outputs, batch):
        is_word = batch["is_word"]
        count = is_word.sum(dtype=jnp.int32)
        is_right = (outputs.argmax(axis=-1) == batch["labels"]) * is_word
        correct = jnp.sum(is_right, dtype=jnp.float32)
        loss = jnp.sum(label_nll(outputs, batch["labels"]) * is_word)
        return loss, count, {"accuracy": (correct, count)}

    # scores and predictions

    def _predicted(self, example, outputs) -> list[str]:
        """Returns the likeliest tag of each word."""
        return [self.names[tag] for tag in outputs[0][example.places].argmax(axis=-1)]

    def scores(self, examples, outputs):
        gold, predicted = {}, {}
        for example, output in zip(examples, outputs):
            tags = [self.names[tag] for tag in example.tags]
            gold.setdefault(example.sentence, []).extend(tags)
            predicted.setdefault(example.sentence, []).extend(self._predicted(example, output))
        entity_scores = scores.entity_f1(list(gold.values()), list(predicted.values()))
        pairs = [pair for number in gold for pair in zip(gold[number], predicted[number])]
        accuracy = sum(tag == prediction for tag, prediction in pairs) / len(pairs)
        return entity_scores | {"accuracy": accuracy}

    def prediction(self, examples, outputs):
        words, tags, probabilities = [], [], []
        for part, output in zip(examples, outputs):
            words += part.words
            tags += self._predicted(part, output)
            likeliest = scipy.special.softmax(output[0][part.places], axis=-1).max(axis=-1)
            probabilities += likeliest.tolist()
        text = " ".join(f"{word}/{tag}" for word, tag in zip(words, tags))
        return text, {"words": words, "tags": tags, "probabilities": probabilities}

    def unlabelled(self, lines):
        """Returns the parts of each line, a sentence with spaces between its words."""
        sentences = [line.split() for _, line in lines]
        parts = self._parts([(words, [0] * len(words)) for words in sentences])
        by_sentence = itertools.groupby(parts, key=lambda part: part.sentence)
        parts_of_lines = [list(group) for _, group in by_sentence]
        return [Unlabelled(parts, len(parts) > 1) for parts in parts_of_lines]
