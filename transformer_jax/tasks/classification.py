"""Classifying a text or a pair of texts, and giving them a number (Devlin et al. 2018, figure 4a
and b; Radford et al. 2018, figure 1).
"""

import collections
import contextlib
import dataclasses
from functools import cached_property

import jax.numpy as jnp
import numpy as np
import scipy.special
import scipy.stats

from transformer_jax.config import UserError
from transformer_jax.data.sources import tables
from transformer_jax.finetuning.base import ROW, FineTuning
from transformer_jax.finetuning.encoder import fitted
from transformer_jax.finetuning.predictions import Asked
from transformer_jax.layers.heads import Head
from transformer_jax.losses import label_nll
from transformer_jax.pictures.progress import say
from transformer_jax.scores import predictions as scores


@dataclasses.dataclass
class Classification(FineTuning):
    """Columns are names in a table's header, keys of JSON lines or TFDS features; or numbers from 1
    in a table without a header.
    """

    text: str = "1"  # column of the text
    pair: str = ""  # column of the second text, if there is one
    label: str = "2"  # column of the label
    # all labels, in the head's order; (): those of the training examples, sorted
    labels: tuple = ()
    regression: bool = False  # labels are numbers, to be approached by the squared error
    # leave out, and count, rows of a wrong number of columns or without a text; else they are
    # refused
    skip_malformed: bool = False
    # the order of the texts means nothing: both are read and their vectors added (Radford et al.
    # 2018, section 3.3)
    symmetric: bool = False

    def __post_init__(self):
        super().__post_init__()
        if self.symmetric and not self.pair:
            raise UserError("config.task.symmetric needs config.task.pair, a second text")
        if self.label in (self.text, self.pair):
            raise UserError(
                f"config.task.label={self.label}: that column is a text; name the column of the labels"
            )
        self.rows_of_example = 1 + self.symmetric

    @property
    def two_texts(self) -> bool:
        return bool(self.pair)

    def read(self, split):
        return tables.table(
            self.config.data,
            split,
            [self.text, *([self.pair] if self.pair else []), self.label],
            self.skip_malformed,
        )

    @cached_property
    def names(self) -> list[str]:
        """The labels in the head's order; none where there are numbers."""
        if self.regression:
            return []
        if self.labels:
            return [str(label) for label in self.labels]
        count = collections.Counter(record.values[-1] for record in self.read("train"))
        names, first = sorted(count), next(iter(count), None)
        if self.label.isdecimal() and count[first] == 1 and len(names) > 2:
            say(
                f"the label of the first row, {first!r}, is that of no other: if it is a header, name the columns in config.task.text and config.task.label"
            )
        if len(names) < 2:
            raise UserError(
                f"config.task.label={self.label}: {f'only one label, {names[0]!r},' if names else 'no label'} in the training examples"
            )
        return names

    def examples(self, records):
        records, whole = [], list(records)
        for record in whole:
            if all(text.strip() for text in record.values[:-1]):
                records.append(record)
            elif not self.skip_malformed:
                raise UserError(f"{record.where}: an empty text")
        if len(records) < len(whole):
            say(f"{len(whole) - len(records):,} rows without a text are left out")
        if whole and not records:
            raise UserError(f"{whole[0].where}: an empty text, and none in the other rows")
        labels = [self._number(record) for record in records]
        first, second, _ = self._encoded([record.values[:-1] for record in records])
        return list(zip(first, second, labels))

    def count(self, split):
        return len(self._examples(split))  # without what was left out

    def _number(self, record) -> float | int:
        label = record.values[-1]
        if self.regression:
            with contextlib.suppress(ValueError):
                if abs(value := float(label)) < 2.0**127:  # as float32; no nan
                    return value
            raise UserError(f"{record.where}: the label {label!r} is no number")
        if label not in self._index:
            raise UserError(
                f"{record.where}: unknown label {label!r}; there are: {', '.join(self.names[:20])}"
            )
        return self._index[label]

    @cached_property
    def _index(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names)}

    def _encoded(self, texts):
        """(ids of the first texts, of the second or None) cut to fit, and which were longer."""
        first, *second = (self.tokenizer.encode(list(side)) for side in zip(*texts))
        if not second:
            most = self.length - 2
            cut, long = [ids[:most] for ids in first], [len(ids) > most for ids in first]
            return cut, [None] * len(first), long
        most, pairs = self.length - 3, list(zip(first, second[0]))
        first, second = zip(*(fitted(*both, most) for both in pairs))
        return first, second, [len(a) + len(b) > most for a, b in pairs]

    def row(self, example):
        first, second, label = example
        orders = [(first, second), (second, first)] if self.symmetric else [(first, second)]
        made = [self.encoder.row(self.tokenizer, *texts, self.length) for texts in orders]
        found = (
            {name: np.stack([row[name] for row in made]) for name in ROW}
            if self.symmetric
            else made[0]
        )
        return found | (
            {"value": np.float32(label)} if self.regression else {"label": np.int32(label)}
        )

    def filled(self, example):
        first, second, _ = example
        return len(first) + 2 if second is None else len(first) + len(second) + 3

    def shapes(self, length):
        row = (2, length) if self.symmetric else (length,)
        return dict.fromkeys(ROW, row) | {"value" if self.regression else "label": ()}

    @cached_property
    def _num_outputs(self) -> int:
        return 1 if self.regression else len(self.names)

    def head(self):
        return Head(self._num_outputs, self.head_dropout, self.encoder.bidirectional)

    def counted(self, batch):
        filled = super().counted(batch)
        return filled[..., 0] if self.symmetric else filled

    def objective(self, outputs, batch):
        outputs, there = self._added(outputs), self.counted(batch)
        count = there.sum(dtype=jnp.int32)
        if self.regression:
            return jnp.sum(jnp.square(outputs[:, 0] - batch["value"]) * there), count, {}
        right = jnp.sum((outputs.argmax(axis=-1) == batch["label"]) & there, dtype=jnp.float32)
        return (
            jnp.sum(label_nll(outputs, batch["label"]) * there),
            count,
            {"accuracy": (right, count)},
        )

    def _added(self, outputs):
        """The head is linear: the outputs of both orders add up as their vectors would."""
        return outputs.reshape(-1, self.rows_of_example, outputs.shape[-1]).sum(axis=1)

    def details(self, examples, outputs):
        """F1 of each label, and the confusion matrix: a row for each true label."""
        if self.regression:
            return {}
        labels, found = self._labels(examples), np.stack(outputs).sum(axis=1).argmax(axis=-1)
        f1 = {name: scores.f1_of_class(labels, found, i) for i, name in enumerate(self.names)}
        counts = scores.confusion(labels, found, len(self.names)).tolist()
        return {"f1_by_class": f1, "confusion": {"labels": self.names, "counts": counts}}

    def _labels(self, examples) -> np.ndarray:
        return np.array([example[-1] for example in examples])

    def scores(self, examples, outputs):
        outputs, labels = np.stack(outputs).sum(axis=1), self._labels(examples)
        if self.regression:
            if min(len(np.unique(labels)), len(np.unique(outputs))) < 2:  # nothing varies
                return {"pearson": 0.0, "spearman": 0.0}
            return {
                "pearson": float(scipy.stats.pearsonr(labels, outputs[:, 0])[0]),
                "spearman": float(scipy.stats.spearmanr(labels, outputs[:, 0])[0]),
            }
        found = outputs.argmax(axis=-1)
        count = len(self.names)
        return {
            "accuracy": scores.accuracy(labels, found),
            "f1": scores.f1(labels, found, count),
            "macro_f1": scores.macro_f1(labels, found, range(count)),
            "matthews": scores.matthews(labels, found),
        }

    def shown(self, examples, outputs):
        outputs = outputs[0].sum(axis=0)
        if self.regression:
            return f"{outputs[0]:.4f}", {"value": float(outputs[0])}
        label = self.names[int(outputs.argmax())]
        return label, {
            "label": label,
            "probabilities": dict(zip(self.names, map(float, scipy.special.softmax(outputs)))),
        }

    def asked(self, lines):
        """A text a line; pairs are separated by a tab."""
        texts = [tuple(line.split("\t")) for _, line in lines]
        wanted = 2 if self.pair else 1
        for (number, _), parts in zip(lines, texts):
            whole = all(part.strip() for part in parts)
            if len(parts) != wanted or not whole:
                raise UserError(
                    f"line {number}: {wanted} text{'s, separated by a tab,' * (wanted == 2)} asked for, not {len(parts) if whole else 'an empty one'}"
                )
        if not texts:
            return []
        encoded = zip(*self._encoded(texts))
        return [Asked([(first, second, 0)], long) for first, second, long in encoded]

    @property
    def unread(self):
        return {"value": None} if self.regression else {"label": None, "probabilities": None}
