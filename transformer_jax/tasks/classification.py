"""Classification and regression of a text or a pair of texts (Devlin et al. 2018, figures 4a and
4b; Radford et al. 2018, figure 1).
"""

import collections
import contextlib
import dataclasses
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Literal

import jax.numpy as jnp
import numpy as np
import scipy.special

from transformer_jax.config import UserError
from transformer_jax.data import arguments
from transformer_jax.data.sources import tables
from transformer_jax.finetuning.features import FeatureBased
from transformer_jax.finetuning.predictions import Prediction, Unlabelled, ZeroShot, texts_of_line
from transformer_jax.inference.batching import fitted
from transformer_jax.layers.embeddings import ConcatenationHead
from transformer_jax.losses import label_nll
from transformer_jax.pictures.progress import say
from transformer_jax.scores import predictions as scores


@dataclasses.dataclass
class Classification(FeatureBased):
    """A label, or a number, for each text or pair of texts.

    A column is a name in a table's header, a key of JSON lines, or a TFDS feature. In a table
    without a header, it is a number from 1. A text may also be a template of several columns, such
    as "Question: {question} Answer: {answer}".
    """

    text: str = "1"  # column or template of the text
    pair: str = ""  # column or template of the second text; "": none
    label: str = "2"  # column of the label
    # all labels, in the order of the head; (): the labels of the training examples, sorted
    labels: tuple = ()
    regression: bool = False  # labels are numbers, learned by the squared error
    # skip and count rows with a wrong number of columns or without a text; false: they are errors
    skip_malformed: bool = False
    # the order of the two texts has no meaning: both orders are read and their vectors added
    # (Radford et al. 2018, section 3.3)
    symmetric: bool = False
    # linear: on the summary vector of a row; concatenation: a layer of 50 rectified units on the
    # summary and the maximum and mean of all hidden states (Howard & Ruder 2018, section 3.3)
    head_kind: Literal["linear", "concatenation"] = "linear"

    def __post_init__(self):
        super().__post_init__()
        if self.symmetric and not self.pair:
            raise UserError("config.task.symmetric needs config.task.pair, a second text")
        if self.symmetric and self.model.kind == "sequence_to_sequence" and not self.features:
            raise UserError(
                "config.task.symmetric=True: needs a linear head; the head of "
                f"{self.config.model.name} is not linear"
            )
        if self.symmetric and self.head_kind != "linear":
            raise UserError(
                f"config.task.symmetric=True: needs a linear head; config.task.head_kind="
                f"{self.head_kind!r} is not linear"
            )
        if self.features and self.head_kind != "linear":
            raise UserError(
                f"config.task.head_kind={self.head_kind!r}: not with config.task.features; drop one"
            )
        # The answer would be in the input, and the scores perfect.
        if self.label in tables.named_columns([self.text, self.pair]):
            raise UserError(
                f"config.task.label={self.label}: that column is a text; name the column of the "
                "labels"
            )
        self.rows_of_example = 1 + self.symmetric

    @property
    def two_texts(self) -> bool:
        return bool(self.pair)

    def read(self, split):
        texts = (self.text, self.pair) if self.pair else (self.text,)
        names = tables.named_columns(texts)
        classes = "" if self.regression else self.label
        columns = [*names, self.label]
        found = tables.open_inference(
            self.config.data, split, columns, self.skip_malformed, classes
        )
        return found if found is None or names == [*texts] else tables.Joined(found, texts)

    @cached_property
    def names(self) -> list[str]:
        """The labels in the order of the head's outputs; none for regression."""
        if self.regression:
            return []
        if self.labels:
            return [str(label) for label in self.labels]
        counts = collections.Counter()
        for record in self.read("train"):
            if not record.values[-1].strip():
                raise UserError(f"{record.where}: an empty label")
            counts[record.values[-1]] += 1
        # Sorted, so that the head's outputs do not depend on the order of the rows.
        names = sorted(counts)
        first = next(iter(counts), None)
        # The header of a table whose columns are given by numbers would silently become a class.
        if self.label.isdecimal() and counts[first] == 1 and len(names) > 2:
            say(
                f"the first row is the only one with the label {first!r}: if it is a header, name "
                "the columns in config.task.text and config.task.label"
            )
        if len(names) < 2:
            problem = f"only one label, {names[0]!r}," if names else "no label"
            raise UserError(f"config.task.label={self.label}: {problem} in the training examples")
        return names

    def examples(self, records):
        all_records = list(records)
        records = []
        for record in all_records:
            if all(text.strip() for text in record.values[:-1]):
                records.append(record)
            elif not self.skip_malformed:
                raise UserError(f"{record.where}: an empty text")
        if num_skipped := len(all_records) - len(records):
            say(f"{num_skipped:,} rows without a text are left out")
        # If no row has a text, the column is wrong rather than the rows.
        if all_records and not records:
            raise UserError(f"{all_records[0].where}: an empty text, as in all other rows")
        labels = [self._target(record) for record in records]
        first, second, _ = self._encoded([record.values[:-1] for record in records])
        return list(zip(first, second, labels))

    def count(self, split):
        return len(self._examples(split))  # without the rows that are skipped

    def _target(self, record) -> float | int:
        """Returns the target of the head: the index of a label, or the label itself."""
        label = record.values[-1]
        if self.regression:
            with contextlib.suppress(ValueError):
                if abs(value := float(label)) < 2.0**127:  # within float32, and not NaN
                    return value
            raise UserError(f"{record.where}: the label {label!r} is not a number")
        if label not in self._label_ids:
            known = ", ".join(self.names[:20])
            raise UserError(
                f"{record.where}: unknown label {label!r}; the labels are: {known} "
                "(config.task.labels names them)"
            )
        return self._label_ids[label]

    @cached_property
    def _label_ids(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self.names)}

    def _encoded(self, texts):
        """Returns (ids of the first texts, ids of the second texts or None, which were too long).

        The ids are cut to fit.
        """
        first, *second = (self.tokenizer.encode(list(side)) for side in zip(*texts))
        if not second:
            max_tokens = self.length - self.special_tokens.count(1)
            is_long = [len(ids) > max_tokens for ids in first]
            return [ids[:max_tokens] for ids in first], [None] * len(first), is_long
        max_tokens = self.length - self.special_tokens.count(2)
        pairs = list(zip(first, second[0]))
        first, second = zip(*(fitted(*pair, max_tokens) for pair in pairs))
        return first, second, [len(a) + len(b) > max_tokens for a, b in pairs]

    def row(self, example):
        first, second, label = example
        if self.symmetric:
            orders = (first, second), (second, first)
            rows = [
                self.encoder.row(self.tokenizer, *texts, length=self.length) for texts in orders
            ]
            row = {name: np.stack([row[name] for row in rows]) for name in self.encoder.arrays}
        else:
            row = self.encoder.row(self.tokenizer, first, second, length=self.length)
        target = {"value": np.float32(label)} if self.regression else {"label": np.int32(label)}
        return row | target

    def num_tokens(self, example):
        first, second, _ = example
        texts = [first] if second is None else [first, second]
        return sum(map(len, texts)) + self.special_tokens.count(len(texts))

    def shapes(self, length):
        orders = (2,) if self.symmetric else ()
        rows = {name: (*orders, *shape) for name, shape in self.encoder.shapes(length).items()}
        return rows | {"value" if self.regression else "label": ()}

    @property
    def num_outputs(self):
        return 1 if self.regression else len(self.names)

    def head(self):
        if self.head_kind == "concatenation":
            return ConcatenationHead(self.num_outputs, self.head_dropout)
        return super().head()

    @property
    def summary_width(self):
        return super().summary_width * (3 if self.head_kind == "concatenation" else 1)

    def summary(self, params, hidden, batch):
        if self.head_kind == "concatenation":
            return self.encoder.concatenated(params, hidden, batch)
        return super().summary(params, hidden, batch)

    def counted(self, batch):
        is_row = super().counted(batch)
        # Both orders of an example have one label, and so one term of the loss.
        return is_row[..., 0] if self.symmetric else is_row

    def objective(self, outputs, batch):
        outputs = self._added(outputs)
        is_example = self.counted(batch)
        count = is_example.sum(dtype=jnp.int32)
        if self.regression:
            errors = jnp.square(outputs[:, 0] - batch["value"])
            return jnp.sum(errors * is_example), count, {}
        is_right = (outputs.argmax(axis=-1) == batch["label"]) & is_example
        correct = jnp.sum(is_right, dtype=jnp.float32)
        loss = jnp.sum(label_nll(outputs, batch["label"]) * is_example)
        return loss, count, {"accuracy": (correct, count)}

    def _added(self, outputs):
        """Returns the outputs summed over an example's rows.

        The head is linear, so this is the same as adding the rows' vectors before the head.
        """
        return outputs.reshape(-1, self.rows_of_example, outputs.shape[-1]).sum(axis=1)

    def details(self, examples, outputs):
        """Returns the F1 of each label, and the confusion matrix with one row per true label."""
        if self.regression:
            return {}
        labels = _labels(examples)
        predicted = np.stack(outputs).sum(axis=1).argmax(axis=-1)
        f1 = {name: scores.f1_of_class(labels, predicted, i) for i, name in enumerate(self.names)}
        counts = scores.confusion(labels, predicted, len(self.names)).tolist()
        return {"f1_by_class": f1, "confusion": {"labels": self.names, "counts": counts}}

    def scores(self, examples, outputs):
        outputs = np.stack(outputs).sum(axis=1)
        labels = _labels(examples)
        if self.regression:
            # A correlation is undefined without variance: scipy would return NaN, which JSON lacks.
            if min(len(np.unique(labels)), len(np.unique(outputs))) < 2:
                return {"pearson": 0.0, "spearman": 0.0}
            # This is imported here, because the import is slow and classes do not need it.
            from scipy import stats

            return {
                "pearson": float(stats.pearsonr(labels, outputs[:, 0])[0]),
                "spearman": float(stats.spearmanr(labels, outputs[:, 0])[0]),
            }
        predicted = outputs.argmax(axis=-1)
        num_labels = len(self.names)
        return {
            "accuracy": scores.accuracy(labels, predicted),
            "f1": scores.f1(labels, predicted, num_labels),
            "macro_f1": scores.macro_f1(labels, predicted, range(num_labels)),
            "matthews": scores.matthews(labels, predicted),
        }

    def text_statistics(self, params, split: str) -> list[tuple]:
        """Returns the accuracy as a measure, with whether each example (N, 1) is right.

        Raises UserError for a regression, whose scores are no sums over examples.
        """
        if self.regression:
            raise UserError("a regression has no score of one text at a time")
        arguments.held_out(self.read, split, "files")
        examples, outputs, _ = self._evaluated(params, split)
        predicted = np.stack(outputs).sum(axis=1).argmax(axis=-1)
        is_right = (_labels(examples) == predicted).astype(np.float64)
        return [(scores.Share("accuracy"), is_right[:, None])]

    def prediction(self, examples, outputs):
        outputs = outputs[0].sum(axis=0)
        if self.regression:
            return f"{outputs[0]:.4f}", {"value": float(outputs[0])}
        label = self.names[int(outputs.argmax())]
        probabilities = map(float, scipy.special.softmax(outputs))
        return label, {"label": label, "probabilities": dict(zip(self.names, probabilities))}

    def unlabelled(self, lines):
        """Returns the example of each line: a text, or two texts separated by a tab."""
        count = 2 if self.pair else 1
        texts = [texts_of_line(number, line, count) for number, line in lines]
        if not texts:
            return []
        encoded = zip(*self._encoded(texts))
        # The label 0 is never read, but the arrays of a row have an element for it.
        return [Unlabelled([(first, second, 0)], is_long) for first, second, is_long in encoded]

    def classify(
        self,
        params,
        texts: Iterable[str],
        labels: Iterable[str],
        *,
        hypothesis_template: str = "This example is {}.",
        multi_label: bool = False,
        long: str | None = None,
    ) -> Iterator[Prediction]:
        """Yields a zero-shot prediction for each text: one of `labels`, which need no training.

        With `multi_label`, each label is true or false independently of the others. For `long`, see
        `predict`. Raises UserError unless the run classifies pairs and has a class "entailment".
        """
        reader = ZeroShot(self, labels, hypothesis_template, multi_label)
        return self._predictions(params, texts, reader, long)

    @property
    def empty_details(self):
        return {"value": None} if self.regression else {"label": None, "probabilities": None}


def _labels(examples) -> np.ndarray:
    return np.array([label for *_, label in examples])
