"""Tagging words, as in named-entity recognition (Devlin et al. 2018, figure 4d and section 5.3)."""

import dataclasses
import itertools
from collections.abc import Iterator
from functools import cached_property
from typing import Literal

import jax.numpy as jnp
import numpy as np
import scipy.special

from transformer_jax.config import UserError
from transformer_jax.data.sources import tables
from transformer_jax.finetuning.features import FeatureBased
from transformer_jax.finetuning.predictions import Unlabelled
from transformer_jax.losses import label_nll
from transformer_jax.scores import predictions as scores


@dataclasses.dataclass(frozen=True)
class _Part:
    """The part of a sentence that fits a row."""

    sentence: int  # its index in the split or input
    ids: list[int]
    positions: list[int]  # of each word's first piece in the row
    words: list[str]
    tags: list[int]


@dataclasses.dataclass
class Tagging(FeatureBased):
    """The tag of a word is predicted at its first piece.

    A sentence longer than a row is split between words. Files have the CoNLL format: each line
    holds a word and, in the last column, its tag, and a blank line ends a sentence.
    """

    prefix: str = ""  # removed from the start of each word, such as "en:"
    labels: tuple = ()  # all tags; (): the tags of the training examples, sorted
    # how tags denote entities, for the scores: auto recognizes IOB1, IOB2, BIOES, BILOU and BMES; a
    # named scheme counts complete entities alone; plain: each tag is a type, without a letter
    scheme: Literal[
        "auto", "plain", "IOB1", "IOB2", "IOE1", "IOE2", "BIOES", "IOBES", "BILOU", "BMES"
    ] = "auto"

    summarises = False
    empty_details = {"words": [], "tags": [], "probabilities": []}
    long_lines = ("split", "skip", "refuse")

    def read(self, split):
        paths = tables.split_files(self.config.data, split)
        return paths and tables.Conll(paths, self.prefix)

    @cached_property
    def names(self) -> list[str]:
        """The tags in the order of the head's outputs."""
        if self.labels:
            return [str(tag) for tag in self.labels]
        first_lines = {}  # of each tag, so that an error can name the line
        for record in self.read("train"):
            for index, tag in enumerate(record.values[1]):
                first_lines.setdefault(tag, _line(record, index))
        if not first_lines:
            raise UserError("config.data.train_files: no example in it")
        self._check_scheme(first_lines)
        # Sorted, so that the head's outputs do not depend on the order of the files.
        return sorted(first_lines)

    def _check_scheme(self, first_lines: dict[str, str]) -> None:
        """Raises UserError for tags of no scheme, with the line of the first at fault."""
        try:
            scores.tag_scheme(first_lines, self.scheme)
        except UserError:
            # Whether a tag fits depends on the others, so they are added one by one until it fails.
            tags = list(first_lines)
            for count, tag in enumerate(tags, 1):
                try:
                    scores.tag_scheme(tags[:count], self.scheme)
                except UserError as error:
                    raise UserError(f"{first_lines[tag]}: {tag}: {error}") from None

    @cached_property
    def _tag_scheme(self) -> scores.TagScheme:
        try:
            return scores.tag_scheme(self.names, self.scheme)
        except UserError as error:
            raise UserError(f"config.task.labels: {error}") from None

    def examples(self, records):
        _ = self._tag_scheme  # raises its error before training
        tag_ids = {name: index for index, name in enumerate(self.names)}
        sentences = []
        for record in records:
            words, tags = record.values
            if unknown := [index for index, tag in enumerate(tags) if tag not in tag_ids]:
                known = ", ".join(self.names[:20])
                raise UserError(
                    f"{_line(record, unknown[0])}: unknown tag {tags[unknown[0]]!r}; "
                    f"the tags are: {known}"
                )
            sentences.append((words, [tag_ids[tag] for tag in tags]))
        return self._parts(sentences)

    def _parts(self, sentences) -> list[_Part]:
        """Returns the parts of all sentences, each of which is (words, tags)."""
        words = [word for words, _ in sentences for word in self._spaced(words)]
        pieces = iter(self.tokenizer.encode(words))
        return [
            part
            for number, (words, tags) in enumerate(sentences)
            for part in self._parts_of(number, words, tags, pieces)
        ]

    def _spaced(self, words) -> list[str]:
        """Returns the words with the spaces before them.

        A word in the middle of a text has other pieces than one at its start, in tokenizers whose
        pieces include the space.
        """
        return [words[0], *(f" {word}" for word in words[1:])]

    def _parts_of(self, number, words, tags, pieces: Iterator[list[int]]) -> Iterator[_Part]:
        """Yields the parts of one sentence; `pieces` yields the ids of each word."""
        max_tokens = self.length - self.special_tokens.count(1)
        ids, positions, start = [], [], 0
        for index in range(len(words)):
            # A word may have no pieces, such as one of characters that normalization removes, but
            # each word needs a position for its tag.
            word_ids = next(pieces)[:max_tokens] or [self._unknown]
            if len(ids) + len(word_ids) > max_tokens:
                yield _Part(number, ids, positions, words[start:index], tags[start:index])
                ids, positions, start = [], [], index
            positions.append(len(self.special_tokens.begin) + len(ids))
            ids = ids + word_ids
        yield _Part(number, ids, positions, words[start:], tags[start:])

    @property
    def _unknown(self) -> int:
        unknown = self.tokenizer.unk_id
        # Byte-level tokenizers have no unknown token, and here any token will do.
        return self.tokenizer.eos_id if unknown is None else unknown

    def row(self, example):
        row = self.encoder.row(self.tokenizer, example.ids, length=self.length)
        labels, is_word = np.zeros((2, self.length), np.int32)
        labels[example.positions] = example.tags
        is_word[example.positions] = 1
        return row | {"labels": labels, "is_word": is_word}

    def num_tokens(self, example):
        return len(example.ids) + self.special_tokens.count(1)

    def shapes(self, length):
        return self.encoder.shapes(length) | dict.fromkeys(("labels", "is_word"), (length,))

    @property
    def num_outputs(self):
        return len(self.names)

    def counted(self, batch):
        return batch["is_word"]

    def objective(self, outputs, batch):
        is_word = batch["is_word"]
        count = is_word.sum(dtype=jnp.int32)
        is_right = (outputs.argmax(axis=-1) == batch["labels"]) * is_word
        correct = jnp.sum(is_right, dtype=jnp.float32)
        loss = jnp.sum(label_nll(outputs, batch["labels"]) * is_word)
        return loss, count, {"accuracy": (correct, count)}

    def _predicted(self, example, outputs) -> list[str]:
        """Returns the likeliest tag of each word."""
        return [self.names[tag] for tag in outputs[0][example.positions].argmax(axis=-1)]

    def scores(self, examples, outputs):
        # The parts of a sentence are joined, because an entity may continue in the next part.
        gold, predicted = {}, {}
        for example, output in zip(examples, outputs):
            tags = [self.names[tag] for tag in example.tags]
            gold.setdefault(example.sentence, []).extend(tags)
            predicted.setdefault(example.sentence, []).extend(self._predicted(example, output))
        both = list(gold.values()), list(predicted.values())
        entity_scores = scores.entity_f1(*both, self._tag_scheme)
        pairs = [pair for number in gold for pair in zip(gold[number], predicted[number])]
        accuracy = sum(tag == prediction for tag, prediction in pairs) / len(pairs)
        return entity_scores | {"accuracy": accuracy}

    def prediction(self, examples, outputs):
        words, tags, probabilities = [], [], []
        for part, output in zip(examples, outputs):
            words += part.words
            tags += self._predicted(part, output)
            likeliest = scipy.special.softmax(output[0][part.positions], axis=-1).max(axis=-1)
            probabilities += likeliest.tolist()
        text = " ".join(f"{word}/{tag}" for word, tag in zip(words, tags))
        return text, {"words": words, "tags": tags, "probabilities": probabilities}

    def unlabelled(self, lines):
        """Returns the parts of each line, which is a sentence with spaces between its words."""
        sentences = [line.split() for _, line in lines]
        # The tags of lines without labels are never read.
        parts = self._parts([(words, [0] * len(words)) for words in sentences])
        by_sentence = itertools.groupby(parts, key=lambda part: part.sentence)
        parts_of_lines = [list(group) for _, group in by_sentence]
        return [Unlabelled(parts, len(parts) > 1) for parts in parts_of_lines]


def _line(record: tables.Record, index: int) -> str:
    """Returns the file and line of a word of a sentence, of which each word has a line."""
    path, _, first_line = record.where.rpartition(":")
    return f"{path}:{int(first_line) + index}"
