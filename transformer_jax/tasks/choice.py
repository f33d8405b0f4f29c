"""Choosing one of several continuations (Devlin et al. 2018, section 4.4; Radford et al. 2018,
figure 1).
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
import scipy.special

from transformer_jax.config import UserError
from transformer_jax.data.sources import tables
from transformer_jax.finetuning.base import ROW, FineTuning
from transformer_jax.finetuning.encoder import fitted
from transformer_jax.finetuning.predictions import Asked
from transformer_jax.layers.heads import Head
from transformer_jax.losses import label_nll
from transformer_jax.scores import predictions as scores


@dataclasses.dataclass
class Choice(FineTuning):
    """Each row holds an example's context with each of its choices; the head gives each a number,
    softmax makes them probabilities.
    """

    context: tuple = ("1",)  # columns that are joined to the context
    beginning: str = ""  # column each choice begins with (SWAG), if there is one
    choices: tuple = ("2", "3", "4", "5")  # columns
    label: str = "6"  # column of the right choice's number
    first: int = 0  # the number of the first choice

    two_texts = True
    unread = {"choice": None, "probabilities": None}

    def __post_init__(self):
        super().__post_init__()
        if len(self.choices) < 2:
            raise UserError(f"config.task.choices={self.choices}: at least two columns")
        self.context, self.choices = tuple(map(str, self.context)), tuple(map(str, self.choices))
        if self.label in (*self.context, self.beginning, *self.choices):
            raise UserError(
                f"config.task.label={self.label}: that column is a text; name the column of the right choice's number"
            )
        self.rows_of_example = len(self.choices)

    def read(self, split):
        between = [self.beginning] if self.beginning else []
        return tables.table(
            self.config.data, split, [*self.context, *between, *self.choices, self.label]
        )

    def examples(self, records):
        texts, labels, count = [], [], len(self.choices)
        for record in records:
            *parts, label = record.values
            if (
                not label.strip().isdecimal()
                or len(label) > 9
                or not 0 <= int(label) - self.first < count
            ):
                raise UserError(
                    f"{record.where}: label {label!r}: a number from {self.first} to {self.first + count - 1} is asked for"
                )
            if not all(choice.strip() for choice in parts[-count:]):
                raise UserError(f"{record.where}: an empty choice")
            if not any(part.strip() for part in parts[: len(self.context)]):
                raise UserError(f"{record.where}: an empty context")
            texts.append(
                self._joined(" ".join(parts[: len(self.context)]), *parts[len(self.context) :])
            )
            labels.append(int(label) - self.first)
        return [example for example, _ in self._encoded(texts, labels)]

    def _joined(self, context: str, *parts: str) -> tuple[str, ...]:
        """The context and its choices, each behind what all begin with, if there is such a part."""
        beginning, choices = (f"{parts[0]} ", parts[1:]) if self.beginning else ("", parts)
        return context, *(beginning + choice for choice in choices)

    def _encoded(self, texts, labels):
        """For each text an example, cut to fit, and whether it was longer."""
        sides, most = [self.tokenizer.encode(list(side)) for side in zip(*texts)], self.length - 3
        for context, *choices, label in zip(*sides, labels):
            long = len(context) + max(map(len, choices)) > most
            yield ([fitted(context, choice, most) for choice in choices], label), long

    def row(self, example):
        pairs, label = example
        made = [self.encoder.row(self.tokenizer, *pair, self.length) for pair in pairs]
        return {name: np.stack([row[name] for row in made]) for name in ROW} | {
            "label": np.int32(label)
        }

    def filled(self, example):
        return max(len(context) + len(choice) + 3 for context, choice in example[0])

    def shapes(self, length):
        return {name: (len(self.choices), length) for name in ROW} | {"label": ()}

    def head(self):
        return Head(1, self.head_dropout, self.encoder.bidirectional)

    def counted(self, batch):
        return super().counted(batch)[..., 0]

    def objective(self, outputs, batch):
        logits, there = outputs.reshape(-1, len(self.choices)), self.counted(batch)
        count = there.sum(dtype=jnp.int32)
        right = jnp.sum((logits.argmax(axis=-1) == batch["label"]) & there, dtype=jnp.float32)
        return (
            jnp.sum(label_nll(logits, batch["label"]) * there),
            count,
            {"accuracy": (right, count)},
        )

    def scores(self, examples, outputs):
        return {
            "accuracy": scores.accuracy(
                [label for _, label in examples], np.stack(outputs)[..., 0].argmax(axis=-1)
            )
        }

    def shown(self, examples, outputs):
        logits = outputs[0][:, 0]
        number = int(logits.argmax()) + self.first
        return str(number), {
            "choice": number,
            "probabilities": [float(p) for p in scipy.special.softmax(logits)],
        }

    def asked(self, lines):
        """A context, what all choices begin with where the task has such a column, and the choices,
        separated by tabs.
        """
        texts = [line.split("\t") for _, line in lines]
        before, wanted = ("a context, a beginning", 2) if self.beginning else ("a context", 1)
        for (number, _), parts in zip(lines, texts):
            if len(parts) != wanted + len(self.choices) or not all(
                part.strip() for part in (parts[0], *parts[-len(self.choices) :])
            ):
                raise UserError(
                    f"line {number}: {before} and {len(self.choices)} choices are asked for, separated by tabs"
                )
        encoded = self._encoded([self._joined(*parts) for parts in texts], [0] * len(texts))
        return [Asked([example], long) for example, long in encoded]
