"""Code that the pre-training tasks share: batches, the evaluation loop, checks of lengths."""

import abc
import dataclasses
import math
import types
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from transformer_jax import metrics
from transformer_jax.config import UserError, build_source
from transformer_jax.data import arguments, rows, store, tokenizers
from transformer_jax.distributed import hosts
from transformer_jax.distributed.placement import Placement, gathered, split_rows
from transformer_jax.pictures.progress import track
from transformer_jax.tasks.task import Context, EvalRows, Task, TrainRows


class Texts(Protocol):
    """The texts that `config.data` names, and rows of them."""

    def text(self, split: str) -> Any:
        """Returns the text of a split; None where there is none."""

    def training_text(self) -> Any:
        """Returns all training text, of which a tokenizer is trained."""

    def fingerprint(self) -> dict:
        """Returns a description of the content of the training text, for JSON."""

    def train(self, tokenizer) -> TrainRows: ...
    def evaluation(self, tokenizer, split: str) -> EvalRows: ...


@dataclasses.dataclass
class BaseTask(Task):
    """A task with one model and one tokenizer. See tasks/task.py for the contract.

    `tokenizer_folder` is the folder of a run's tokenizer. Where it is None, the tokenizer is read
    or trained as `config.data` says.
    """

    config: ConfigDict
    tokenizer_folder: Path | None

    def int32_spec(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns the shapes of a training batch of int32 arrays, from the shapes of a row."""
        batch = self.config.train.batch
        return {
            name: jax.ShapeDtypeStruct((batch, *shape), jnp.int32) for name, shape in shapes.items()
        }

    def derived(self, name: str, means: Mapping[str, float]) -> dict[str, float]:
        return {"perplexity": perplexity(means["loss"])}

    def mean_metrics(
        self, params, rows, observe: Callable[[dict[str, np.ndarray]], None] | None = None
    ) -> dict[str, float]:
        """Returns the mean of each of the loss's metrics over evaluation rows.

        `observe` is called with each batch. The devices share the rows of a batch. A task with a
        carry reads the rows one by one, as one stream.
        """
        step = jax.jit(self._measured, static_argnums=0)
        placement = Placement.of(params, self.config.mesh)
        batch_size = placement.rows(self.config.decode.batch)
        carry = jax.device_get(self.initial_carry(1))
        if carry is not None:
            placement, batch_size = placement.dividing(batch=1, lookup=1), 1
        num_batches = rows.num_batches(batch_size)
        sums = []
        for number in track(range(num_batches), "evaluating (batches)", num_batches):
            batch = rows.batch(number, range(batch_size), batch_size)
            if observe is not None:
                observe(batch)
            measured, carry = hosts.run(step, placement, params, batch, carry)
            sums.append(jax.device_get(measured))
        return metrics.means(jax.tree.map(_sum, *sums))

    def _measured(self, placement: Placement, params, batch, carry):
        with placement.use():
            loss = self.loss(params, split_rows(batch), Context(carry=carry))
            return gathered((loss.metrics, loss.carry))


@dataclasses.dataclass
class TextTask(BaseTask):
    """A task that reads the texts of `config.data`. A subclass defines `texts`."""

    @property
    @abc.abstractmethod
    def texts(self) -> Texts:
        """The texts of the run, and the rows of their splits."""

    @cached_property
    def tokenizer(self):
        """The tokenizer of the run, read or trained."""
        return tokenizers.of_run(
            self.tokenizer_folder,
            self.config.data,
            self.texts.training_text,
            self.model.vocab_size,
        )

    @cached_property
    def _rows(self) -> types.SimpleNamespace:
        train = self.texts.train(self.tokenizer)
        has_valid = self.texts.text("valid") is not None
        evaluated = {"valid": self.texts.evaluation(self.tokenizer, "valid")} if has_valid else {}
        return types.SimpleNamespace(train=train, eval=evaluated)

    def rows(self):
        return self._rows

    def fingerprint(self) -> dict:
        return self.texts.fingerprint() | {"tokenizer": self.tokenizer.fingerprint()}


@dataclasses.dataclass
class SourceTask(BaseTask):
    """A task that reads the records of `config.source`. A subclass defines `component`."""

    reads_source = True
    tokenizer = None

    @abc.abstractmethod
    def component(self, records: store.Records) -> rows.Component:
        """Returns the rows of the records of a split."""

    def of_split(self, split: str) -> rows.Component | None:
        """Returns the rows of a split, "train", "valid" or "test"; None for no such split.

        By default, the rows of all splits are made alike.
        """
        records = self.source.records(split)
        return None if records is None else self.component(records)

    @cached_property
    def source(self):
        return build_source(self.config)

    @cached_property
    def _rows(self) -> types.SimpleNamespace:
        train = rows.train_rows([self.of_split("train")], self.config)
        valid = self.of_split("valid")
        evaluated = {} if valid is None else {"valid": rows.EvalRows(valid)}
        return types.SimpleNamespace(train=train, eval=evaluated)

    def rows(self):
        return self._rows

    def fingerprint(self) -> dict:
        return {"train": self.source.fingerprint("train"), "tokenizer": None}

    def evaluate(self, params, split: str) -> dict:
        """Returns the mean metrics of a split. Raises UserError where the run has no such split."""
        component = arguments.held_out(self.of_split, split, "files")
        means = self.mean_metrics(params, rows.EvalRows(component))
        means.pop("filled")
        return means | self.derived(split, means) | {"records": len(component)}


def check_row_length(key: str, length: int, model: Any, least: int = 2) -> None:
    """Raises UserError where rows of `length` tokens, set by config.task.<key>, do not suit a
    model.
    """
    if not least <= length <= model.window:
        raise UserError(
            f"config.task.{key}={length}: must be from {least} to "
            f"config.model.max_length={model.max_length}"
        )


def perplexity(loss: float) -> float:
    """Returns exp(loss), finite for any loss."""
    return math.exp(min(loss, 700.0))


def perplexities(loss: float, meta: dict) -> dict[str, float]:
    """Returns the perplexity and the bits per byte and character, from the mean loss of a text.

    `meta` holds the counts of the text's store. The loss counts all tokens, including the ends of
    documents.
    """
    bits = loss * meta["tokens"] / math.log(2)
    return {
        "perplexity": perplexity(loss),
        "bits_per_byte": bits / meta["bytes"],
        "bits_per_character": bits / meta["characters"],
    }


def _sum(*batches: np.ndarray) -> np.float64:
    return np.sum(batches, dtype=np.float64)
