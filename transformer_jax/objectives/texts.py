"""Base classes of the tasks on texts and on records: batches, evaluation loop, and losses."""

import abc
import dataclasses
import math
import types
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from transformer_jax import losses
from transformer_jax.config import Fraction, UserError, build_model, build_source
from transformer_jax.contracts.model import Inputs
from transformer_jax.contracts.task import (
    Context,
    EvalRows,
    EvaluationProgram,
    Loss,
    Task,
    TrainRows,
)
from transformer_jax.data import arguments, rows, store, tokenizers
from transformer_jax.data.masking import MaskedRows
from transformer_jax.distributed import hosts
from transformer_jax.distributed.sharding import Placement, gathered, split_rows
from transformer_jax.inference.causal import CausalUse
from transformer_jax.inference.encoder import EncoderUse
from transformer_jax.inference.translating import SequenceToSequenceUse
from transformer_jax.layers import parameters
from transformer_jax.pictures.progress import track

# --------------------------------------------------------------------------------------------------
# The base classes of tasks: batches, the evaluation loop, and checks of lengths.


class Texts(Protocol):
    """The texts that `config.data` names, and the rows made of them."""

    def text(self, split: str) -> Any:
        """Returns the text of a split; None if there is no such split."""

    def training_text(self) -> Any:
        """Returns all training text, on which a tokenizer may be trained."""

    def fingerprint(self) -> dict:
        """Returns a JSON-compatible description of the content of the training text."""

    def train(self, tokenizer) -> TrainRows: ...
    def evaluation(self, tokenizer, split: str) -> EvalRows: ...


@dataclasses.dataclass
class BaseTask(Task):
    """A task with one model and one tokenizer. See contracts/task.py for the contract.

    `tokenizer_folder` is the folder of a run's tokenizer. If it is None, the tokenizer is read or
    trained as `config.data` says.
    """

    config: ConfigDict
    tokenizer_folder: Path | None

    def int32_spec(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns the shapes of a training batch of int32 arrays, given the shapes of one row."""
        batch = self.config.train.batch
        return {
            name: jax.ShapeDtypeStruct((batch, *shape), jnp.int32) for name, shape in shapes.items()
        }

    def derived(self, name: str, means: Mapping[str, float]) -> dict[str, float]:
        return {"perplexity": perplexity(means["loss"])}

    def mean_metrics(
        self, params, rows, observe: Callable[[dict[str, np.ndarray]], None] | None = None
    ) -> dict[str, float]:
        """Returns the mean of each metric of the loss over the evaluation rows.

        The rows of a batch are split over the devices. `observe` is called with each batch. A task
        with a carry reads the rows one by one, as a single stream.
        """
        # The placement is static, because it decides the shardings in the traced program.
        step = jax.jit(self._measured, static_argnums=0)
        placement = Placement.of(params, self.config.mesh)
        batch_size = placement.rows(self.config.decode.batch)
        carry = jax.device_get(self.initial_carry(1))
        if carry is not None:
            # A stream is sequential, so its batches hold one row, which can't be split.
            placement, batch_size = placement.dividing(batch=1, lookup=1), 1
        num_batches = rows.num_batches(batch_size)
        sums = []
        for number in track(range(num_batches), "evaluating (batches)", num_batches):
            batch = rows.batch(number, range(batch_size), batch_size)
            if observe is not None:
                observe(batch)
            measured, carry = hosts.run(step, placement, params, batch, carry)
            # The sums of batches are added on the host in float64, because float32 would round the
            # sums of a large split.
            sums.append(jax.device_get(measured))
        return losses.mean_metrics(jax.tree.map(_sum, *sums))

    def _measured(self, placement: Placement, params, batch, carry):
        with placement.use():
            loss = self.loss(params, split_rows(batch), Context(carry=carry))
            # Replicated, so that `device_get` gives all processes the same values.
            return gathered((loss.metrics, loss.carry))


@dataclasses.dataclass
class TextTask(BaseTask):
    """A task that reads the texts of `config.data`. A subclass defines `texts`."""

    @property
    @abc.abstractmethod
    def texts(self) -> Texts:
        """The texts of the run, and the rows of its splits."""

    @cached_property
    def tokenizer(self):
        """The tokenizer of the run, either read from files or trained."""
        return tokenizers.run_tokenizer(
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

    def words_read(self, step: int) -> float:
        if not hasattr(self.texts, "words"):
            return super().words_read(step)
        words = self._words
        epochs = self.rows().train.epochs_before(step)
        return sum(count * passes for count, passes in zip(words, epochs, strict=True))

    @cached_property
    def _words(self) -> list[int]:
        return self.texts.words()

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

    def split_rows(self, split: str) -> rows.Component | None:
        """Returns the rows of a split, "train", "valid" or "test"; None for no such split.

        By default, the rows of all splits are made in the same way.
        """
        records = self.source.records(split)
        return None if records is None else self.component(records)

    @cached_property
    def source(self):
        return build_source(self.config)

    @cached_property
    def _rows(self) -> types.SimpleNamespace:
        train = rows.train_rows(
            [self.split_rows("train")], self.config.train, self.config.data.seed
        )
        valid = self.split_rows("valid")
        evaluated = {} if valid is None else {"valid": rows.EvalRows(valid)}
        return types.SimpleNamespace(train=train, eval=evaluated)

    def rows(self):
        return self._rows

    def fingerprint(self) -> dict:
        return {"train": self.source.fingerprint("train"), "tokenizer": None}

    def evaluate(self, params, split: str) -> dict:
        """Returns the mean metrics of a split. Raises UserError if the run has no such split."""
        component = arguments.held_out(self.split_rows, split, "files")
        means = self.mean_metrics(params, rows.EvalRows(component))
        means.pop("filled")  # the share of padding says nothing about the model
        return means | self.derived(split, means) | {"records": len(component)}


def check_row_length(key: str, length: int, model: Any, least: int = 2) -> None:
    """Raises UserError if a model can't read rows of `length` tokens, the value of
    config.task.<key>.
    """
    if not least <= length <= model.window:
        raise UserError(
            f"config.task.{key}={length}: must be from {least} to "
            f"config.model.max_length={model.max_length}"
        )


def perplexity(loss: float) -> float:
    """Returns exp(loss), clipped so that it is finite for any loss."""
    # exp of more than 709 overflows, and Python then raises an error.
    return math.exp(min(loss, 700.0))


def perplexities(loss: float, meta: dict) -> dict[str, float]:
    """Returns the perplexity and the bits per byte and per character, given a text's mean loss.

    `meta` holds the counts of the text's store. The mean is over all tokens, including those that
    end documents. Bits per byte and per character can be compared across tokenizers, perplexities
    can't.
    """
    bits = loss * meta["tokens"] / math.log(2)
    return {
        "perplexity": perplexity(loss),
        "bits_per_byte": bits / meta["bytes"],
        "bits_per_character": bits / meta["characters"],
    }


def _sum(*batches: np.ndarray) -> np.float64:
    return np.sum(batches, dtype=np.float64)


def states(model: Any, params, inputs: Inputs, context: Context, **options) -> Any:
    """Returns the hidden states of rows (B, L, M), with dropout in training.

    `options` are those of `apply`, such as `mutable`.
    """
    return model.apply(
        {"params": params},
        inputs,
        train=context.train,
        method="hidden",
        rngs={"dropout": context.rng} if context.train else None,
        **options,
    )


def states_with_losses(
    model: Any, params, inputs: Inputs, context: Context
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Returns (the hidden states of rows, the model's `layer_losses`).

    A loss is a sum over the rows, and a mean over the layers. There are none without training.
    """
    hidden, kept = states(model, params, inputs, context, mutable=["losses"])
    losses = parameters.sown_losses(kept)
    return hidden, {name: loss / model.num_layers for name, loss in losses.items()}


def carried_states(model: Any, params, batch, context: Context) -> tuple[jax.Array, Any]:
    """Returns (the hidden states of rows that continue streams, the carry after these rows)."""
    return model.apply(
        {"params": params},
        batch["tokens"],
        context.carry,
        restarts=batch["restarts"],
        train=context.train,
        method="advance",
        rngs={"dropout": context.rng} if context.train else None,
    )


# --------------------------------------------------------------------------------------------------
# Tasks that continue to train the language model of an earlier run, on files of their own. They
# keep its tokenizer, because another one would give its embeddings to other tokens.


class Records(Protocol):
    """Re-iterable records read from files."""

    def __iter__(self) -> Iterable[Any]: ...
    def fingerprint(self) -> dict: ...


@dataclasses.dataclass
class Continued(CausalUse, BaseTask):
    """A task that trains the model of the run in `config.init_from`, with that run's tokenizer."""

    takes_model = True
    begins_with_run = True

    @abc.abstractmethod
    def read(self, split: str) -> Records | None:
        """Returns the records of a split; None if `config.data` names none."""

    @property
    def has_tokenizer(self) -> bool:
        """Whether the tokenizer is known. A run that is only planned does not need one."""
        return self.tokenizer_folder is not None or bool(self.config.data.tokenizer_files)

    @cached_property
    def tokenizer(self):
        if not self.has_tokenizer:
            raise UserError("config.init_from is missing: the workdir of the run to train further")
        # The tokenizer is never trained here, so the training text is empty.
        return tokenizers.run_tokenizer(
            self.tokenizer_folder, self.config.data, lambda: (), self.model.vocab_size
        )

    def fingerprint(self) -> dict:
        return {
            "train": self.read("train").fingerprint(),
            "tokenizer": self.tokenizer.fingerprint(),
        }

    def derived(self, name, means):
        return {}


# --------------------------------------------------------------------------------------------------
# Next-token prediction, the loss that the tasks of causal models share. Losses take the hidden
# states and the output layer, because the logits would be the largest array of a step.


@dataclasses.dataclass
class NextTokens(CausalUse, TextTask):
    """The weighted cross-entropy of the labels. A subclass defines `texts`.

    A batch has "tokens", "labels" and "weights", int32 (B, L), and optionally "positions" and
    "segment_ids".
    """

    length: int = 1024  # tokens of a row

    def __post_init__(self):
        self.model = build_model(self.config)
        if self.model.kind != "causal":
            raise UserError(
                f"config.model.name={self.config.model.name!r}: config.task.name="
                f"{self.config.task.name!r} is for causal models, such as gpt and decoder"
            )
        self.coefficients = {"loss": 1.0} | self.model.layer_losses
        check_row_length("length", self.length, self.model)

    def init(self, rng):
        return self.model.init(rng, jnp.zeros((1, self.length), jnp.int32))["params"]

    def weights(self, batch):
        # The batch may be divided into microbatches.
        rows = jnp.float32(math.prod(batch["weights"].shape[:-1]))
        own = {"loss": batch["weights"].sum().astype(jnp.float32)}
        return own | dict.fromkeys(self.model.layer_losses, rows)

    def loss(self, params, batch, context: Context) -> Loss:
        hidden, carry, layer_losses = self.states(params, batch, context)
        output = self.model.apply({"params": params}, method="scaled_output")
        weights = batch["weights"].astype(jnp.float32)
        loss, _, correct = output.cross_entropy(hidden, batch["labels"], weights)
        # An integer, because float32 would round counts above 2^24.
        count = batch["weights"].sum(dtype=jnp.int32)
        metrics = {
            "loss": (loss, count),
            "accuracy": (correct, count),
            "filled": (self.filled(batch), jnp.int32(batch["weights"].size)),
        }
        rows = jnp.int32(len(batch["weights"]))
        metrics |= {name: (value, rows) for name, value in layer_losses.items()}
        return Loss({"loss": loss} | layer_losses, metrics, carry)

    def states(self, params, batch, context: Context):
        """Returns (hidden states (B, L, M), carry, the model's `layer_losses`)."""
        inputs = Inputs(
            batch["tokens"],
            positions=batch.get("positions"),
            segment_ids=batch.get("segment_ids"),
        )
        hidden, layer_losses = states_with_losses(self.model, params, inputs, context)
        return hidden, None, layer_losses

    def filled(self, batch) -> jax.Array:
        """Returns the number of positions that are not padding: by default those with a weight."""
        return batch["weights"].sum(dtype=jnp.int32)

    def flops(self, row_shape: int = 0) -> float:
        return 3 * self.model.flops(self.length)  # a backward pass costs two forward passes

    def positions(self, row_shape: int = 0) -> int:
        return self.length


# --------------------------------------------------------------------------------------------------
# Masked language modeling: the phases of a run, and the loss of the masked tokens. Phases exist
# because most updates can use short rows, whose attention is cheaper (Devlin et al. 2018, appendix
# A.2).

# The arrays of a batch with one entry for each masked token. Arrays with one for each position
# would mostly hold positions without a loss.
MASKED = ("masked_positions", "masked_labels", "masked_weights")


def masked_loss(model: Any, params, batch, hidden: jax.Array) -> Loss:
    """Returns the cross-entropy of the masked tokens, given the rows' hidden states (B, L, M).

    Its only term is "mlm".
    """
    apply = partial(model.apply, {"params": params})
    # The masked positions are gathered before the output layer, because the projection to the
    # vocabulary would otherwise be computed at all positions, most of which have no loss.
    masked = jnp.take_along_axis(hidden, batch["masked_positions"][..., None], axis=1)
    filled = batch["segment_ids"] > 0
    mlm, _, correct = apply(method="scaled_output").cross_entropy(
        apply(masked, method="transformed"),
        batch["masked_labels"],
        batch["masked_weights"].astype(jnp.float32),
    )
    count = batch["masked_weights"].sum(dtype=jnp.int32)
    metrics = {
        "loss": (mlm, count),
        "accuracy": (correct, count),
        "filled": (filled.sum(dtype=jnp.int32), jnp.int32(filled.size)),
    }
    return Loss({"mlm": mlm}, metrics)


class MaskedTextTask(EncoderUse, TextTask):
    """A masked-token task. A subclass defines `phases` and `texts`, as `MaskedLM` does."""

    phases: tuple
    texts: MaskedRows

    masked = MASKED

    @cached_property
    def tokenizer(self) -> tokenizers.Tokenizer:
        tokenizer = super().tokenizer
        tokenizer.required("cls", "sep", "mask", user="masked language modeling")
        return tokenizer

    @property
    def phase_steps(self) -> list[int]:
        """The number of updates of each phase."""
        return self.texts.phase_steps

    def batch_spec(self, row_shape: int):
        _, length, num_predictions = self.phases[row_shape]
        shapes = dict.fromkeys(("tokens", "token_types", "segment_ids"), (length,))
        shapes |= dict.fromkeys(self.masked, (num_predictions,))
        if self.texts.pairs:
            shapes["follows"] = ()
        return self.int32_spec(shapes)

    def positions(self, row_shape: int = 0) -> int:
        return self.phases[row_shape][1]


# --------------------------------------------------------------------------------------------------
# The objective of encoder-decoders: the cross-entropy of a target given its source. Rows are
# packed, so the segment ids tell which target belongs to which source.


@dataclasses.dataclass
class PairTask(SequenceToSequenceUse, TextTask):
    """A task whose rows hold sources and targets, as in `data.packing.PackedPairs`."""

    source_length: int = 256  # source tokens of a row
    target_length: int = 256  # target tokens of a row
    label_smoothing: Fraction = 0.1  # probability that the loss spreads over all tokens

    def __post_init__(self):
        self.model = build_model(self.config)
        self.check_model()
        self.coefficients = {"loss": 1.0}
        check_row_length("source_length", self.source_length, self.model)
        check_row_length("target_length", self.target_length, self.model)

    def check_model(self) -> None:
        """Raises UserError for a model that the task can't train."""
        if self.model.kind != "sequence_to_sequence":
            raise UserError(
                f"config.model.name={self.config.model.name!r}: config.task.name="
                f"{self.config.task.name!r} is for encoder-decoders, such as encoder_decoder"
            )

    def batch_spec(self, row_shape: int = 0) -> dict[str, jax.ShapeDtypeStruct]:
        source = ("source", "source_positions", "source_segment_ids")
        target = ("target", "target_positions", "target_segment_ids", "labels")
        shapes = dict.fromkeys(source, (self.source_length,))
        return self.int32_spec(shapes | dict.fromkeys(target, (self.target_length,)))

    def init(self, rng):
        # No parameter's shape depends on the length of this row.
        tokens = jnp.zeros((1, 2), jnp.int32)
        return self.model.init(rng, tokens, tokens)["params"]

    def weights(self, batch):
        # The mean is over target tokens, not over pairs, and padding has segment id 0.
        return {"loss": jnp.sum(batch["target_segment_ids"] > 0).astype(jnp.float32)}

    def loss(self, params, batch, context: Context) -> Loss:
        source, target = (
            Inputs(
                batch[side],
                positions=batch[f"{side}_positions"],
                segment_ids=batch[f"{side}_segment_ids"],
            )
            for side in ("source", "target")
        )
        hidden = self.model.apply(
            {"params": params},
            source,
            target,
            train=context.train,
            method="hidden",
            rngs={"dropout": context.rng} if context.train else None,
        )
        weights = (batch["target_segment_ids"] > 0).astype(jnp.float32)
        return self.loss_of(params, hidden, batch | {"weights": weights}, context)

    def loss_of(self, params, hidden: jax.Array, batch, context: Context) -> Loss:
        """Returns the loss of hidden states (B, N, M) with the batch's "labels" and "weights"
        (B, N).
        """
        variables = {"params": params}
        filled = batch["target_segment_ids"] > 0
        weights = batch["weights"]
        loss, nll, correct = self.model.apply(variables, method="scaled_output").cross_entropy(
            self.model.apply(variables, hidden, method="transformed"),
            batch["labels"],
            weights,
            label_smoothing=self.label_smoothing if context.train else 0.0,
        )
        count = weights.sum()
        metrics = {
            "loss": (loss, count),
            "accuracy": (correct, count),
            "filled": (filled.sum(dtype=jnp.int32), jnp.int32(filled.size)),
        }
        if context.train:
            # Without label smoothing, so that it can be compared with the loss of an evaluation.
            metrics["nll"] = (nll, count)
        return Loss({"loss": loss}, metrics)

    def search_programs(self, params) -> dict[str, EvaluationProgram]:
        """Returns the programs of a beam search over sources that fill a row."""
        from transformer_jax.inference import lowering  # which only a plan of a run needs

        batch = self.config.decode.batch
        remedy = f"--config.decode.batch={max(batch // 2, 1)}: fewer sentences at a time"
        programs = lowering.beam_search(self.model, params, self.config, self.source_length)
        return {
            f"beam search, {name}": EvaluationProgram(*program, remedy)
            for name, program in programs.items()
        }

    def flops(self, row_shape: int = 0) -> float:
        # A backward pass costs two forward passes.
        return 3 * self.model.flops(self.source_length, self.target_length)

    def positions(self, row_shape: int = 0) -> int:
        return self.target_length
