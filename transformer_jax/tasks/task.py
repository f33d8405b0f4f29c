"""What the training loop knows of a task: which rows, which loss, which evaluations. It knows no
model and no data.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np
from ml_collections import ConfigDict

from transformer_jax.metrics import Metrics

Params = Any  # a tree of arrays
Batch = dict[str, jax.Array]
Evaluation = Callable[[Params], dict[str, float]]  # plain floats by name: bleu, perplexity, f1, ...


class TrainRows(Protocol):
    def phase(self, step: int) -> tuple[int, int]:
        """(phase that update `step` belongs to, updates of it before `step`)."""

    def size(self, step: int) -> int:
        """Rows of update `step`."""

    def batch(self, step: int, places: Sequence[int]) -> dict[str, np.ndarray]:
        """Rows number `places` of the batch of update `step`."""


class EvalRows(Protocol):
    def num_batches(self, batch: int) -> int: ...

    def batch(self, step: int, places: Sequence[int], batch: int) -> dict[str, np.ndarray]:
        """Rows number `places` of the step-th batch of `batch` rows; beyond the last row, rows of
        weight 0.
        """


class Rows(Protocol):
    train: TrainRows
    eval: Mapping[str, EvalRows]  # by name, e.g. "valid"


class Task(Protocol):
    """A training objective over a model. Everything it computes is a pure function of its
    arguments.
    """

    config: ConfigDict
    coefficients: dict[str, float]  # of the loss terms
    # parts of a run, or kinds of its batches, that differ in the shape of their rows; the first of
    # a task that does not plan them has the longest
    num_phases: int
    model: Any  # the Linen module
    tokenizer: Any  # has save(folder) and fingerprint()

    def fingerprint(self) -> dict:
        """What data and tokenizer are, by content; JSON-able, with a key "tokenizer"."""

    def batch_spec(self, phase: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes of the batch of a phase, (rows, ...). Opens no file."""

    def init(self, rng: jax.Array) -> Params:
        """Initial parameters, boxed with their logical axes."""

    def rows(self) -> Rows:
        """The data; built the first time it is asked for."""

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Each loss term's denominator, summed over the batch it is given (the whole global one)."""

    def loss(
        self, params: Params, batch: Batch, rng: jax.Array, *, train: bool
    ) -> tuple[dict[str, jax.Array], Metrics]:
        """{term: sum over the batch} and metrics; among them "filled": (target positions that are
        no padding, all).
        """

    def trainable(self, path: tuple[str, ...]) -> bool:
        """Whether the optimizer changes the parameter at this path."""

    def derived(self, name: str, means: Mapping[str, float]) -> dict[str, float]:
        """What follows from the mean metrics of the evaluation set `name`, such as perplexity."""

    def evaluations(self) -> Mapping[str, Evaluation]:
        """What is measured beside the loss while training, by the name of the evaluation set."""

    def evaluate(self, params: Params, split: str) -> dict[str, float | str]:
        """All that is measured of a split ("valid", "test") of a finished run."""

    def flops(self, phase: int) -> float:
        """Of an update over one row: forward and backward, padding included."""

    def positions(self, phase: int) -> int:
        """Target positions of a row, padding included."""
