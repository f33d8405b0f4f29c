"""Batches of rows of similar lengths, predictions for lines, and zero-shot classification."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import scipy.special

from transformer_jax.config import UserError
from transformer_jax.data import arguments
from transformer_jax.data.arguments import LongLines
from transformer_jax.data.rows import Row, TrainRows
from transformer_jax.distributed import sharding

# ----------------------------------------------------------------------------------- length buckets

# The rows of a batch are cut to the bucket that fits the longest example, so that less padding is
# computed. There are few buckets, because the program is compiled for each of them.

# Rows of more than two tiles are cut to whole tiles, because the fused attention kernels need them.
_TILE = 128
# Shorter rows are cut to multiples of 1 / _PARTS of their length, so that there are at most _PARTS
# programs.
_PARTS = 8


def buckets(length: int) -> tuple[int, ...]:
    """Returns the lengths to which rows of `length` tokens may be cut, in descending order."""
    step = _TILE if length > 2 * _TILE else -(-length // _PARTS)
    return (length, *range((length - 1) // step * step, 0, -step))


def lengths_on_mesh(mesh: Any, length: int) -> tuple[int, ...]:
    """Returns the `buckets` of rows on a mesh, `config.mesh`.

    If the mesh splits rows along their length, the full length is the only bucket, because it is
    the only one known to be divisible.
    """
    rows_are_split = any(mesh[axis] != 1 for axis in sharding.rules(mesh)["length"])
    return (length,) if rows_are_split else buckets(length)


@dataclasses.dataclass(frozen=True)
class Examples:
    """Examples whose rows are made on demand. A batch of rows is cut to the bucket that fits it."""

    examples: Sequence[Any]
    make_row: Callable[[Any], Row]  # returns a row of lengths[0] tokens
    num_tokens: np.ndarray  # (examples,), without padding
    lengths: tuple[int, ...]  # of the buckets, in descending order
    shapes: Callable[[int], dict[str, tuple[int, ...]]]  # of a row's arrays, given its length

    def __len__(self) -> int:
        return len(self.examples)

    def rows(self, numbers: Sequence[tuple[int, int]]) -> list[Row]:
        """Returns the uncut rows of (index of an example, epoch), as a component does."""
        return [self.make_row(self.examples[number]) for number, _ in numbers]

    def bucket(self, numbers: Sequence[int]) -> int:
        """Returns the index of the shortest of `lengths` in which these examples fit."""
        longest = max(self.num_tokens[number] for number in numbers)
        return max(bucket for bucket, length in enumerate(self.lengths) if length >= longest)

    def stack(self, numbers: Sequence[int], bucket: int) -> Row:
        """Returns the rows of these examples, arrays (len(numbers), ...)."""
        rows = [self.make_row(self.examples[number]) for number in numbers]
        cuts = {
            name: (slice(None), *map(slice, shape))
            for name, shape in self.shapes(self.lengths[bucket]).items()
        }
        return {name: np.stack([row[name] for row in rows])[cuts[name]] for name in rows[0]}

    def batches(self, size: int, window: int) -> Iterator[tuple[np.ndarray, Row]]:
        """Yields (indices of the examples, rows) for batches of all examples.

        The examples of `window` batches are sorted by length together. The last batch is padded
        with rows of zeros.
        """
        for start in range(0, len(self), size * window):
            num_tokens = self.num_tokens[start : start + size * window]
            # Stable, so that examples of equal length keep their order.
            order = start + np.argsort(num_tokens, kind="stable")
            for first in range(0, len(order), size):
                numbers = order[first : first + size]
                rows = self.stack(numbers, self.bucket(numbers))
                missing = size - len(numbers)
                yield numbers, {name: _extended(rows[name], missing) for name in rows}


def _extended(array: np.ndarray, num_rows: int) -> np.ndarray:
    """Returns the array with `num_rows` rows of zeros appended."""
    return np.pad(array, [(0, num_rows), *[(0, 0)] * (array.ndim - 1)])


@dataclasses.dataclass(frozen=True, eq=False)
class Batches:
    """The training batches. `drawn` decides which examples an update has.

    The examples of `group` updates are sorted by length together, and the batches are then
    shuffled, so that the length of a batch says nothing about its position in training.
    """

    drawn: TrainRows  # its single component is as long as `examples`
    examples: Examples
    group: int

    def size(self, step: int) -> int:
        return self.drawn.size(step)

    def until(self, step: int) -> float:
        return self.drawn.until(step)

    def row_shape(self, step: int) -> int:
        """Returns the bucket of the rows of update `step`."""
        return self.examples.bucket(self._numbers(step))

    def batch(self, step: int, indices: Sequence[int]) -> Row:
        numbers = self._numbers(step)
        chosen = [numbers[index] for index in indices]
        # The whole batch has one bucket, so that all hosts compile the same shape.
        return self.examples.stack(chosen, self.examples.bucket(numbers))

    def _numbers(self, step: int) -> np.ndarray:
        return self._group(step // self.group)[step % self.group]

    @functools.cached_property
    def _group(self) -> Callable[[int], list[np.ndarray]]:
        """The function of a group to the examples of each of its updates. It has a small cache."""
        # Steps come in order, so that a few groups are enough. A cache of the method itself would
        # be shared by all objects and keep them alive.
        return functools.lru_cache(maxsize=4)(self._sorted)

    def _sorted(self, group: int) -> list[np.ndarray]:
        steps = range(group * self.group, (group + 1) * self.group)
        drawn = [self._drawn(step) for step in steps]
        if self.group == 1:
            return drawn
        numbers = np.concatenate(drawn)
        # Stable, because all hosts, and a run that is resumed, must get the same batches.
        numbers = numbers[np.argsort(self.examples.num_tokens[numbers], kind="stable")]
        # A function of seed and group, because batches are made anew when a run is resumed.
        order = np.random.default_rng((self.drawn.seed, group)).permutation(self.group)
        # Updates differ in size while the batch grows, so a part has the size of its own update.
        parts = np.split(numbers, np.cumsum([len(drawn[index]) for index in order])[:-1])
        return [part for _, part in sorted(zip(order, parts), key=lambda pair: pair[0])]

    def _drawn(self, step: int) -> np.ndarray:
        indices = range(self.size(step))
        return np.array([number for _, number, _ in self.drawn.numbers(step, indices)])


# -------------------------------------------------------------------- predictions for lines of text


class Unlabelled(NamedTuple):
    """A line of text without a label."""

    examples: list
    long: bool  # whether the line is longer than a row


class Prediction(NamedTuple):
    text: str  # a label, tags, an answer or a number
    details: dict  # for JSON: the prediction with its probabilities


class Reader(Protocol):
    """Parses lines and makes predictions: a fine-tuning task, or another use of one."""

    empty_details: dict  # the details of a prediction for an empty line

    def unlabelled(self, lines: list[tuple[int, str]]) -> list[Unlabelled]: ...
    def prediction(self, examples: list, outputs: list[np.ndarray]) -> tuple[str, dict]: ...


def texts_of_line(number: int, line: str, count: int) -> tuple[str, ...]:
    """Returns the `count` texts of a line, one text or two that are separated by a tab.

    Raises UserError, whose message names the number of the line, for a line of another form.
    """
    form = "2 texts, separated by a tab" if count == 2 else "1 text"
    texts = tuple(line.split("\t"))
    if not all(text.strip() for text in texts):
        raise UserError(f"line {number}: must hold {form}; one is empty")
    if len(texts) != count:
        raise UserError(f"line {number}: must hold {form}, not {len(texts)}")
    return texts


def examples_of(lines: Iterable[str], unlabelled: Callable, treatment: LongLines) -> list[list]:
    """Returns the examples of each line. An empty or skipped line has none.

    `unlabelled(numbered lines)` returns an Unlabelled for each line that is not empty.
    """
    numbered = list(enumerate(lines, 1))
    filled = [(number, line) for number, line in numbered if line.strip()]
    examples = {}
    with treatment:
        for (number, _), line in zip(filled, unlabelled(filled)):
            if line.long:
                treatment.add(number)
            if not (line.long and treatment.way == "skip"):
                examples[number] = line.examples
    return [examples.get(number, []) for number, _ in numbered]


def prediction_of(examples: list, outputs: Iterator[np.ndarray], reader: Reader) -> Prediction:
    """Returns the prediction for a line, given its examples. Takes the next outputs."""
    if not examples:
        return Prediction("", {"text": "", **reader.empty_details})
    return Prediction(*reader.prediction(examples, [next(outputs) for _ in examples]))


# ---------------------------- zero-shot classification by entailment (Yin et al. 2019, section 4.2)

# The text is the premise, and each label gives a hypothesis, such as "This example is about
# music.". A classifier of pairs that was trained on entailment can then choose between labels that
# it has never seen.

# With several labels per text, those above this probability are predicted, because each of them is
# then likelier than its opposite.
_THRESHOLD = 0.5


class ZeroShot:
    """Zero-shot classification: predictions for lines with `labels` that were not trained on.

    The label of a line is the one with the largest entailment logit, and its probability is a
    softmax over the labels. With `multi_label`, or for a single label, each label has a softmax of
    its own, over contradiction and entailment. A classifier of two classes uses its other class
    instead of contradiction. Raises UserError for a classifier or labels with which this is
    impossible.
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
        self._max_tokens = task.length - task.special_tokens.count(2)
        texts = [template.replace("{}", label) for label in labels]
        self._hypotheses = task.tokenizer.encode(texts)
        for text, ids in zip(texts, self._hypotheses):
            if len(ids) >= self._max_tokens:
                raise UserError(
                    f"the hypothesis {text[:60]!r} has {len(ids)} tokens: must have at most "
                    f"{self._max_tokens - 1}, by config.task.length={task.length}"
                )

    def unlabelled(self, lines: list[tuple[int, str]]) -> list[Unlabelled]:
        """Returns an example for each label of each line. Only the premise is cut."""
        premises = self._task.tokenizer.encode([line for _, line in lines]) if lines else []
        # Only the premise is cut, because without its whole hypothesis a label has no meaning.
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

        Labels of equal probability keep the order in which they were given.
        """
        # The rows of an example, such as both orders of its texts, add up their logits.
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

    Raises UserError if `names` lacks one of them.
    """
    entailment = _class(names, "entail")
    if not multi_label:
        return [entailment]
    return [entailment, 1 - entailment if len(names) == 2 else _class(names, "contradict")]


def _class(names: list[str], prefix: str) -> int:
    """Returns the index of the class whose name starts with `prefix`, in any case."""
    for index, name in enumerate(names):
        if name.lower().startswith(prefix):
            return index
    raise UserError(
        f"config.task.labels={tuple(names)}: none begins with {prefix!r}, as a classifier of "
        "inference needs; take a run whose labels are named so (the id2label of a checkpoint)"
    )
