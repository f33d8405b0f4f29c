"""Multiple choice (Devlin et al. 2018, section 4.4; Radford et al. 2018, figure 1)."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import scipy.special

from transformer_jax.config import UserError
from transformer_jax.data.sources import tables
from transformer_jax.finetuning.base import FineTuning
from transformer_jax.finetuning.predictions import Unlabelled
from transformer_jax.inference.batching import fitted
from transformer_jax.losses import label_nll
from transformer_jax.scores import predictions as scores


@dataclasses.dataclass
class Choice(FineTuning):
    """An example has one row for each choice, which holds the context and the choice.

    The head gives each row a logit, and the probabilities are a softmax over an example's rows.
    """

    context: tuple = ("1",)  # columns that are joined to form the context
    beginning: str = ""  # column with the first words of all choices, as in SWAG; "": none
    choices: tuple = ("2", "3", "4", "5")  # columns of the choices
    label: str = "6"  # column of the number of the right choice
    first: int = 0  # number of the first choice

    two_texts = True
    empty_details = {"choice": None, "probabilities": None}

    def __post_init__(self):
        super().__post_init__()
        if len(self.choices) < 2:
            raise UserError(f"config.task.choices={self.choices}: must name at least two columns")
        self.context = tuple(map(str, self.context))
        self.choices = tuple(map(str, self.choices))
        if self.label in (*self.context, self.beginning, *self.choices):
            raise UserError(
                f"config.task.label={self.label}: that column is a text; name the column of the "
                "number of the right choice"
            )
        self.rows_of_example = len(self.choices)

    def read(self, split):
        beginning = [self.beginning] if self.beginning else []
        columns = [*self.context, *beginning, *self.choices, self.label]
        return tables.open_table(self.config.data, split, columns, classes=self.label)

    def examples(self, records):
        texts, labels = [], []
        for record in records:
            *parts, label = record.values
            labels.append(self._number(label, record.where))
            if not all(choice.strip() for choice in parts[-len(self.choices) :]):
                raise UserError(f"{record.where}: an empty choice")
            context = parts[: len(self.context)]
            if not any(part.strip() for part in context):
                raise UserError(f"{record.where}: an empty context")
            texts.append(self._joined(" ".join(context), *parts[len(self.context) :]))
        return [example for example, _ in self._encoded(texts, labels)]

    def _number(self, label: str, where: str) -> int:
        """Returns the number of a choice from 0."""
        # At most 9 digits, because `int` refuses strings of thousands of digits with an error of
        # its own.
        is_number = label.strip().isdecimal() and len(label) <= 9
        if not is_number or not 0 <= int(label) - self.first < len(self.choices):
            last = self.first + len(self.choices) - 1
            raise UserError(
                f"{where}: label {label!r}: must be a number from {self.first} to {last}"
            )
        return int(label) - self.first

    def _joined(self, context: str, *parts: str) -> tuple[str, ...]:
        """Returns (context, choices ...). The beginning, if any, is prepended to each choice."""
        if not self.beginning:
            return context, *parts
        beginning, *choices = parts
        return context, *(f"{beginning} {choice}" for choice in choices)

    def _encoded(self, texts, labels):
        """Yields (an example, cut to fit; whether it was too long) for each context and choices."""
        max_tokens = self.length - self.special_tokens.count(2)
        sides = [self.tokenizer.encode(list(side)) for side in zip(*texts)]
        for context, *choices, label in zip(*sides, labels):
            is_long = len(context) + max(map(len, choices)) > max_tokens
            yield ([fitted(context, choice, max_tokens) for choice in choices], label), is_long

    def row(self, example):
        pairs, label = example
        rows = [self.encoder.row(self.tokenizer, *pair, length=self.length) for pair in pairs]
        arrays = {name: np.stack([row[name] for row in rows]) for name in self.encoder.arrays}
        return arrays | {"label": np.int32(label)}

    def num_tokens(self, example):
        # The rows of an example are one array, so the longest decides the bucket of all.
        longest = max(len(context) + len(choice) for context, choice in example[0])
        return longest + self.special_tokens.count(2)

    def shapes(self, length):
        rows = self.encoder.shapes(length)
        shapes = {name: (len(self.choices), *shape) for name, shape in rows.items()}
        return shapes | {"label": ()}

    def head(self):
        return self.encoder.head(1, self.head_dropout)

    def counted(self, batch):
        # An example counts once, whatever its number of choices, because the loss is one softmax
        # over them.
        return super().counted(batch)[..., 0]

    def objective(self, outputs, batch):
        logits = outputs.reshape(-1, len(self.choices))
        is_example = self.counted(batch)
        count = is_example.sum(dtype=jnp.int32)
        is_right = (logits.argmax(axis=-1) == batch["label"]) & is_example
        correct = jnp.sum(is_right, dtype=jnp.float32)
        loss = jnp.sum(label_nll(logits, batch["label"]) * is_example)
        return loss, count, {"accuracy": (correct, count)}

    def scores(self, examples, outputs):
        labels = [label for _, label in examples]
        return {"accuracy": scores.accuracy(labels, np.stack(outputs)[..., 0].argmax(axis=-1))}

    def prediction(self, examples, outputs):
        logits = outputs[0][:, 0]
        number = int(logits.argmax()) + self.first
        probabilities = scipy.special.softmax(logits)
        return str(number), {"choice": number, "probabilities": list(map(float, probabilities))}

    def unlabelled(self, lines):
        """Returns the example of each line.

        A line is a context, the beginning of all choices if the task has such a column, and the
        choices, separated by tabs.
        """
        texts = [line.split("\t") for _, line in lines]
        count = len(self.choices)
        form = "a context, a beginning" if self.beginning else "a context"
        num_parts = (2 if self.beginning else 1) + count
        for (number, _), parts in zip(lines, texts):
            needed = (parts[0], *parts[-count:])
            if len(parts) != num_parts or not all(part.strip() for part in needed):
                raise UserError(
                    f"line {number}: must hold {form} and {count} choices, separated by tabs"
                )
        encoded = self._encoded([self._joined(*parts) for parts in texts], [0] * len(texts))
        return [Unlabelled([example], is_long) for example, is_long in encoded]
