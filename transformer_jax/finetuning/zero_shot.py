"""Zero-shot classification by textual inference (Yin et al. 2019, section 4.2).

The text is a premise, and each label makes a hypothesis, such as "This example is about music.". A
classifier of pairs that knows entailment decides between labels that it was not trained on.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import scipy.special

from transformer_jax.config import UserError
from transformer_jax.data import arguments
from transformer_jax.finetuning.predictions import Unlabelled

# With several labels for a text, those above this probability are predicted.
_THRESHOLD = 0.5


class ZeroShot:
    """The examples and the predictions of lines, for `labels` outside the training.

    The label of a line has the largest softmax of the entailment logits over all labels. With
    `multi_label`, or for a single label, each label has a softmax of its own, over contradiction
    and entailment. A classifier of two classes has its other class in place of contradiction.
    Raises UserError for a classifier or labels with which this is impossible.
    """

    def __init__(self, task: Any, labels: Iterable[str], template: str, multi_label: bool):
        if not task.two_texts:
            raise UserError(
                "config.task.pair is missing: inference needs a premise and a hypothesis; a "
                "checkpoint is converted with --config.task.pair=2 --config.task.label=3"
            )
        labels = list(arguments.as_texts(labels))
        if not all(label.strip() for label in labels) or len({*labels}) < max(len(labels), 1):
            raise UserError(f"labels={labels}: must be different texts, at least one")
        if "{}" not in template:
            raise UserError(f"hypothesis_template={template!r}: must hold {{}} for the label")
        self.labels = labels
        self.multi_label = multi_label or len(labels) == 1
        self._task = task
        self._classes = _classes(task.names, self.multi_label)
        self._max_tokens = task.length - task.marks.count(2)  # of a premise and its hypothesis
        texts = [template.replace("{}", label) for label in labels]
        self._hypotheses = task.tokenizer.encode(texts)
        for text, ids in zip(texts, self._hypotheses):
            if len(ids) >= self._max_tokens:
                raise UserError(
                    f"the hypothesis {text[:60]!r} has {len(ids)} tokens: must have at most "
                    f"{self._max_tokens - 1}, by config.task.length={task.length}"
                )

    def unlabelled(self, lines: list[tuple[int, str]]) -> list[Unlabelled]:
        """Returns an example for each label of each line. The premise alone is cut."""
        premises = self._task.tokenizer.encode([line for _, line in lines]) if lines else []
        rooms = [self._max_tokens - len(ids) for ids in self._hypotheses]
        return [
            Unlabelled(
                [(ids[:room], other, 0) for room, other in zip(rooms, self._hypotheses)],
                len(ids) > min(rooms),
            )
            for ids in premises
        ]

    def prediction(self, examples: list, outputs: list[np.ndarray]) -> tuple[str, dict]:
        """Returns the label, or labels separated by commas, and all probabilities, largest first.

        Labels of equal probability stand in the order in which they were given.
        """
        logits = np.stack(outputs).sum(axis=1)[:, self._classes]
        axis = 1 if self.multi_label else 0
        probabilities = scipy.special.softmax(logits, axis=axis)[:, 0].tolist()
        ranked = sorted(zip(self.labels, probabilities), key=lambda pair: -pair[1])
        if not self.multi_label:
            label = ranked[0][0]
            return label, {"label": label, "probabilities": dict(ranked)}
        labels = [label for label, probability in ranked if probability > _THRESHOLD]
        return ",".join(labels), {"labels": labels, "probabilities": dict(ranked)}

    @property
    def empty_details(self) -> dict:
        """The details of a prediction for an empty line."""
        return {"labels" if self.multi_label else "label": None, "probabilities": None}


def _classes(names: list[str], multi_label: bool) -> list[int]:
    """Returns the classes whose logits are read: entailment, and with `multi_label` its opposite.

    Raises UserError where `names` lack one of them.
    """
    entailment = _class(names, "entail")
    if not multi_label:
        return [entailment]
    return [entailment, 1 - entailment if len(names) == 2 else _class(names, "contradict")]


def _class(names: list[str], beginning: str) -> int:
    """Returns the number of the class whose name begins so, in any case."""
    for number, name in enumerate(names):
        if name.lower().startswith(beginning):
            return number
    raise UserError(
        f"config.task.labels={tuple(names)}: none begins with {beginning!r}, as a classifier of "
        "inference needs; take a run whose labels are named so (the id2label of a checkpoint)"
    )
