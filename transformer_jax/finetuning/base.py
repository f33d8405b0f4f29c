"""Shared by the fine-tuning tasks: encoder and head, batches, scores and predictions."""

import abc
import dataclasses
import types
from collections.abc import Iterable, Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from transformer_jax.config import (
    Fraction,
    NonNegativeFloat,
    PositiveInt,
    UserError,
    build_model,
    named_class,
)
from transformer_jax.contracts.task import Context, EvaluationProgram, Loss, Task
from transformer_jax.data import arguments, rows, tokenizers
from transformer_jax.data.arguments import LongLines
from transformer_jax.data.rows import Row
from transformer_jax.distributed import hosts
from transformer_jax.distributed.sharding import Placement, gathered, split_rows
from transformer_jax.finetuning import predictions
from transformer_jax.finetuning.encoder import Encoder, SpecialTokens
from transformer_jax.finetuning.predictions import (
    Prediction,
    Reader,
    Unlabelled,
    examples_of,
    prediction_of,
)
from transformer_jax.inference.batching import in_order
from transformer_jax.pictures.attention_maps import Attended
from transformer_jax.pictures.progress import say, track

# ------------------------------------------------------ the methods that a fine-tuning task defines

# A language model that is fine-tuned learns three new tokens: start, delimiter and extract
# (Radford et al. 2018, section 3.3).
_NUM_CAUSAL_TOKENS = 3


class Definition(abc.ABC):
    """The methods that a subclass of FineTuning defines.

    Attributes:
      summarises: whether the head reads one vector per row instead of one per token.
      source_only: whether only the encoder of an encoder-decoder is used.
      two_texts: whether a row holds two texts.
      adds_special_tokens: whether a causal model's rows have special tokens around the texts.
      rows_of_example: the number of rows of an example.
      empty_details: the details of a prediction for an empty line.
      long_lines: the ways to treat a line that is too long, the default first.
    """

    takes_model = True
    fine_tunes = True
    evaluates_rows = False  # the loss is measured with the scores
    summarises = True
    source_only = False
    two_texts = False
    adds_special_tokens = True
    rows_of_example = 1
    empty_details = {}
    long_lines = ("truncate", "skip", "refuse")

    @property
    def num_global(self) -> int:
        """The number of first tokens of a row with global attention, if the model supports it.

        By default, this is [CLS] if the head reads it.
        """
        return int(self.summarises)

    @classmethod
    def new_tokens(cls, config, earlier) -> int:
        """Returns the number of special tokens that a causal model's rows need and it lacks.

        A run with a head has them already.
        """
        kind = named_class("model", config.model.name).kind
        needs_tokens = kind == "causal" and cls.adds_special_tokens and not earlier.has_head
        return _NUM_CAUSAL_TOKENS if needs_tokens else 0

    @abc.abstractmethod
    def read(self, split: str):
        """Returns the records of a split, which are re-iterable and have a fingerprint().

        Returns None if the run has no such split.
        """

    @abc.abstractmethod
    def examples(self, records) -> list:
        """Returns the examples: texts as token ids, labels as numbers.

        Raises UserError with file and line for an invalid record.
        """

    def count(self, split: str) -> int:
        """Returns the number of labeled examples of a split."""
        return sum(1 for _ in self.read(split))

    @abc.abstractmethod
    def row(self, example) -> Row:
        """Returns the arrays of an example, padded to `config.task.length`."""

    @abc.abstractmethod
    def num_tokens(self, example) -> int:
        """Returns the number of tokens of an example's longest row, without padding."""

    @abc.abstractmethod
    def shapes(self, length: int) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of an example's arrays, for rows of `length` tokens."""

    @abc.abstractmethod
    def head(self):
        """Returns the Linen module that reads the encoder's hidden states."""

    @abc.abstractmethod
    def objective(self, outputs, batch) -> tuple[jax.Array, jax.Array, dict]:
        """Returns (summed loss, its count as int32, further metrics)."""

    @abc.abstractmethod
    def scores(self, examples, outputs) -> dict[str, float]:
        """Returns the scores of a split, given the head's outputs, one array per example."""

    def details(self, examples, outputs) -> dict[str, dict]:
        """Returns further JSON results of `evaluate`. The arguments are as in `scores`."""
        return {}

    @abc.abstractmethod
    def prediction(self, examples: list, outputs: list[np.ndarray]) -> tuple[str, dict]:
        """Returns the prediction for a line, given its examples: a text, and details for JSON."""

    @abc.abstractmethod
    def unlabelled(self, lines: list[tuple[int, str]]) -> list[Unlabelled]:
        """Returns the examples of numbered lines, without labels.

        Raises UserError for a line of another form.
        """


# -------------------------------------------- the outputs of a task's head for examples, in batches

# The number of batches whose examples are sorted by length together. Sorting all examples would
# save a little more padding, but the first outputs would then come only after the last batch.
_SORTED_BATCHES = 64


@dataclasses.dataclass(frozen=True)
class Outputs:
    """Computes the outputs of a task's head, `config.decode.batch` examples at a time.

    The examples of a batch are split over the devices.
    """

    task: Any

    def __call__(
        self, params, examples: list, title: str, sums: np.ndarray | None = None
    ) -> Iterator[np.ndarray]:
        """Yields the outputs (rows per example, ...) of each example, in order.

        Adds the summed loss and its count to `sums` (2,).
        """
        return in_order(self._numbered(params, examples, title, sums))

    def _numbered(self, params, examples, title, sums) -> Iterator[tuple[int, np.ndarray]]:
        if not examples:
            return
        placement = Placement.of(params, self.task.config.mesh)
        batch_size = placement.rows(self.task.config.decode.batch)
        num_batches = -(-len(examples) // batch_size)
        batches = self.task.in_buckets(examples).batches(batch_size, _SORTED_BATCHES)
        for numbers, batch in track(batches, title, num_batches):
            computed = hosts.run(self._compiled, placement, params, batch)
            outputs, *loss_and_count = jax.device_get(computed)
            if sums is not None:
                sums += loss_and_count
            yield from zip(numbers.tolist(), outputs)

    def program(self, params) -> EvaluationProgram:
        """Returns the program for a batch of the longest examples, lowered for shapes `params`."""
        placement = Placement.of(params, self.task.config.mesh)
        batch_size = self.task.config.decode.batch
        rows = placement.rows(batch_size)
        # Bucket 0 has the longest rows, which need the most memory.
        batch = {
            name: jax.ShapeDtypeStruct((rows, *spec.shape[1:]), spec.dtype)
            for name, spec in self.task.batch_spec(0).items()
        }
        remedy = f"--config.decode.batch={max(batch_size // 2, 1)}: fewer examples at a time"
        return EvaluationProgram(self._compiled.lower(placement, params, batch), (), remedy)

    @cached_property
    def _compiled(self):
        """The function of (placement, params, batch) to (outputs (examples, ...), loss, count)."""

        @partial(jax.jit, static_argnums=0)
        def outputs_and_loss(placement, params, batch):
            with placement.use():
                batch = split_rows(batch)
                outputs, _ = self.task.outputs(params, batch, Context())
                total, count, _ = self.task.objective(outputs, batch)
                # Outputs have a row axis for each example, because it may have several rows, such
                # as one for each choice of a question.
                num_examples = len(batch["segment_ids"])
                outputs = outputs.reshape(num_examples, -1, *outputs.shape[1:])
                return gathered((outputs, total, count))

        return outputs_and_loss


# ---------------------------------------------------------- the base class of the fine-tuning tasks


@dataclasses.dataclass
class FineTuning(Definition, Task):
    """A task on a pre-trained model. See contracts/task.py for the contract.

    `tokenizer_folder` is the folder of the run's tokenizer, or of the earlier run's.
    """

    config: ConfigDict
    tokenizer_folder: Path | None
    length: int = 128  # tokens of a row, at most
    # updates whose examples are sorted by length together, so that batches hold less padding
    group_by_length: PositiveInt = 1
    head_dropout: Fraction = 0.1  # dropout before the head
    # weight of an auxiliary language modeling loss, for GPT (Radford et al. 2018, equation 5: 0.5)
    lm_weight: NonNegativeFloat = 0.0
    frozen: bool = False  # train only the head

    heads = ("head",)

    def __post_init__(self):
        self.model = build_model(self.config)
        self.encoder = Encoder(
            self.model, self.source_only, self.num_global, self.adds_special_tokens
        )
        _check(self)
        self.lengths = predictions.lengths_on_mesh(self.config.mesh, self.length)
        self.num_row_shapes = len(self.lengths)
        self._examples_of_split = {}
        self.coefficients = {"task": 1.0}
        if self.lm_weight:
            self.coefficients["lm"] = self.lm_weight

    # ----------------------------------------------------------------------------------------- data

    @cached_property
    def tokenizer(self):
        if self.tokenizer_folder is None and not self.config.data.tokenizer_files:
            raise UserError(
                "config.init_from is missing: the run, or the converted checkpoint, to fine-tune. "
                "With config.train.pretrained=false only its tokenizer and shape are used"
            )
        if self.source_only:
            # Only the source's tokenizer is used, because the decoder and its vocabulary are left
            # out.
            return tokenizers.source_of_run(self.tokenizer_folder, self.config.data, self.model)
        # The tokenizer is never trained here, so the training text is empty.
        tokenizer = tokenizers.run_tokenizer(
            self.tokenizer_folder, self.config.data, lambda: (), self.model.vocab_size
        )
        return self.model.reader(tokenizer)

    @cached_property
    def special_tokens(self) -> SpecialTokens:
        """The special tokens around the texts of a row."""
        return self.encoder.special_tokens(self.tokenizer)

    def _examples(self, split: str) -> list | None:
        """Returns the examples of a split, encoded once; None if the run has no such split."""
        if split not in self._examples_of_split:
            self._examples_of_split[split] = self._encoded_examples(split)
        return self._examples_of_split[split]

    def _encoded_examples(self, split: str) -> list | None:
        records = self.read(split)
        if records is None:
            return None
        if next(iter(records), None) is None:
            raise UserError(f"config.data.{split}_files: no example in it")
        examples = self.examples(records)
        say(f"{split}: {len(examples):,} examples")
        return examples

    @cached_property
    def _rows(self) -> types.SimpleNamespace:
        self._examples("valid")  # raises its errors before training
        train = self.in_buckets(self._examples("train"))
        drawn = rows.train_rows([train], self.config.train, self.config.data.seed)
        batches = predictions.Batches(drawn, train, self.group_by_length)
        return types.SimpleNamespace(train=batches, eval={})

    def in_buckets(self, examples: list) -> predictions.Examples:
        """Returns the examples with the bucket lengths to which their rows may be cut."""
        num_tokens = np.array([self.num_tokens(example) for example in examples])
        return predictions.Examples(examples, self.row, num_tokens, self.lengths, self.shapes)

    def rows(self):
        return self._rows

    def fingerprint(self) -> dict:
        return {
            "train": self.read("train").fingerprint(),
            "tokenizer": self.tokenizer.fingerprint(),
        }

    # ------------------------------------------------------------------------------------- training

    def batch_spec(self, row_shape: int):
        spec = {}
        for name, shape in self.shapes(self.lengths[row_shape]).items():
            # Only the target of a regression, "value", is a float: all others are ids, positions or
            # classes.
            dtype = jnp.float32 if name == "value" else jnp.int32
            spec[name] = jax.ShapeDtypeStruct((self.config.train.batch, *shape), dtype)
        return spec

    def init(self, rng):
        head_key, encoder_key = jax.random.split(rng)
        vector = jnp.zeros((1, 8, self.summary_width))
        return {
            **self.encoder.init(encoder_key, self.summarises, self.lm_weight > 0),
            "head": self.head().init(head_key, vector)["params"],
        }

    @property
    def summary_width(self) -> int:
        """The width of the vector that the head reads."""
        return self.model.d_model

    def summary(self, params, hidden, batch) -> jax.Array:
        """Returns the vector of each row that the head reads, given hidden states (rows, L, M)."""
        return self.encoder.summary(params, hidden, batch)

    def weights(self, batch):
        weights = {"task": self.counted(batch).sum().astype(jnp.float32)}
        if self.lm_weight:
            weights["lm"] = (batch["segment_ids"][..., 1:] > 0).sum().astype(jnp.float32)
        return weights

    def counted(self, batch) -> jax.Array:
        """Returns an array that is not 0 where the task's loss has a term.

        By default, each row that is not padding has one term.
        """
        return batch["segment_ids"][..., 0] > 0

    def outputs(self, params, batch, context: Context):
        """Returns (the head's outputs (rows, ...), the hidden states (rows, L, M)).

        The arrays of the batch are (..., L), and all axes but the last are flattened to rows.
        """
        batch = self._flat(batch)
        # Two keys, so that the head's dropout masks differ from the encoder's.
        head_key, encoder_key = jax.random.split(context.rng) if context.train else (None, None)
        # A frozen encoder has no dropout either, because its hidden states are fixed features.
        hidden = self.encoder.hidden(params, batch, encoder_key, context.train and not self.frozen)
        # Otherwise the backward pass through the frozen encoder would be compiled and computed.
        hidden = jax.lax.stop_gradient(hidden) if self.frozen else hidden
        vector = self.summary(params, hidden, batch) if self.summarises else hidden
        outputs = self.head().apply(
            {"params": params["head"]},
            vector,
            train=context.train,
            rngs={"dropout": head_key} if context.train else None,
        )
        return outputs, hidden

    def _flat(self, batch) -> dict[str, jax.Array]:
        """Returns the arrays (..., L) reshaped to (rows, L), also for units that are arrays."""
        shapes = self.encoder.shapes(batch["segment_ids"].shape[-1])
        return {name: batch[name].reshape(-1, *shape) for name, shape in shapes.items()}

    def loss(self, params, batch, context: Context) -> Loss:
        outputs, hidden = self.outputs(params, batch, context)
        total, count, metrics = self.objective(outputs, batch)
        filled = batch["segment_ids"] > 0
        terms = {"task": total}
        if self.lm_weight:
            terms["lm"] = self.encoder.next_tokens(params, hidden, self._flat(batch))
            metrics |= {"lm_loss": (terms["lm"], filled[..., 1:].sum(dtype=jnp.int32))}
        counted = {
            "loss": (total, count),
            **metrics,
            # Counts are integers, because float32 does not hold all whole numbers beyond 2**24.
            "filled": (filled.sum(dtype=jnp.int32), jnp.int32(filled.size)),
        }
        return Loss(terms, counted)

    def group(self, path):
        # Without a group, because parameters with one are trained and have optimizer state.
        return None if self.frozen and path[0] != "head" else super().group(path)

    def evaluations(self):
        return {} if self._examples("valid") is None else {"valid": self._validation_scores}

    def evaluation_programs(self, params):
        return {"scores": self._outputs.program(params)}

    def flops(self, row_shape: int = 0) -> float:
        # A backward pass costs two forward passes, and a frozen encoder has none, because no
        # gradient reaches it.
        passes = 1 if self.frozen else 3
        row = self.encoder.flops(self.lengths[row_shape], self.lm_weight > 0)
        return passes * row * self.rows_of_example

    def positions(self, row_shape: int = 0) -> int:
        return self.lengths[row_shape] * self.rows_of_example

    # --------------------------------------------------------------------------- evaluation and use

    def evaluate(self, params, split: str) -> dict:
        """Returns the mean loss and the scores of a split.

        Raises UserError if the run has no such split.
        """
        arguments.held_out(self.read, split, "files")
        examples, outputs, scores = self._evaluated(params, split)
        return scores | self.details(examples, outputs) | {"examples": self.count(split)}

    def _validation_scores(self, params) -> dict[str, float]:
        return self._evaluated(params, "valid")[2]

    def _evaluated(self, params, split: str) -> tuple[list, list[np.ndarray], dict[str, float]]:
        """Returns (the examples of a split, the head's outputs for each, loss and scores)."""
        examples = self._examples(split)
        sums = np.zeros(2)
        outputs = list(self._outputs(params, examples, f"evaluating {split} (batches)", sums))
        # At least 1, because the count is 0 if no example has a target.
        loss = float(sums[0] / max(sums[1], 1))
        return examples, outputs, {"loss": loss, **self.scores(examples, outputs)}

    @cached_property
    def _outputs(self) -> Outputs:
        return Outputs(self)

    def predict(
        self, params, lines: Iterable[str], *, long: str | None = None
    ) -> Iterator[Prediction]:
        """Yields a prediction for each line, in order. `unlabelled` defines the form of a line.

        An empty line has an empty prediction. `long` says what to do with a line longer than
        `config.task.length`. "truncate" cuts it as in training, and is the default if a line has
        one label. "split" reads it in parts, and is the default for tagging and for span, which
        searches the whole context for an answer. "skip" leaves its prediction empty, and "refuse"
        raises UserError. A warning lists the numbers of these lines. Raises UserError for a line of
        another form.
        """
        return self._predictions(params, lines, self, long)

    def _predictions(
        self, params, lines: Iterable[str], reader: Reader, long: str | None
    ) -> Iterator[Prediction]:
        """Yields the prediction of `reader` for each line."""
        limit = f"config.task.length={self.length} tokens"
        treatment = LongLines(long or self.long_lines[0], self.long_lines, limit)
        lines = examples_of(arguments.as_texts(lines), reader.unlabelled, treatment)
        examples = [example for line in lines for example in line]
        outputs = self._outputs(params, examples, "predicting (batches)")
        return (prediction_of(line, outputs, reader) for line in lines)

    @property
    def attentions(self) -> tuple[str, ...]:
        """The kinds of attention that `attention` returns."""
        return (self.encoder.stack,) if self.encoder.stack in self.model.attentions else ()

    def attention(self, params, text: str, *, pieces: bool = False) -> Attended:
        """Returns the fine-tuned model's attention between the words of a text.

        With `pieces`, it is between tokens. Two texts are separated by a tab. Raises UserError for
        a text longer than `config.model.max_length`.
        """
        texts = self.tokenizer.encode(text.split("\t")[:2])
        return self.encoder.attention(params, self.tokenizer, texts, pieces)


def _check(task) -> None:
    """Raises UserError for keys of `config.task` that do not fit the model or each other."""
    _check_rows(task)
    _check_objective(task)


def _check_rows(task) -> None:
    model = task.model
    has_decoder = model.kind == "sequence_to_sequence" and not task.source_only
    if has_decoder and model.source_vocab_size is not None:
        raise UserError(
            f"config.model.source_vocab_size={model.source_vocab_size}: an encoder-decoder is "
            "fine-tuned on texts that both of its sides read, with one vocabulary"
        )
    has_types = "token_types" in model.can
    if task.two_texts and has_types and model.num_token_types < 2:
        raise UserError(
            f"config.model.num_token_types={model.num_token_types}: two texts in a row need 2"
        )
    if not 8 <= task.length <= model.window:
        raise UserError(
            f"config.task.length={task.length}: must be from 8 to "
            f"config.model.max_length={model.max_length}"
        )


def _check_objective(task) -> None:
    key = f"config.task.lm_weight={task.lm_weight}"
    if task.lm_weight and task.model.kind != "causal":
        raise UserError(f"{key}: {task.config.model.name} is not a language model; set it to 0")
    if task.lm_weight and task.frozen:
        raise UserError(f"{key}: a frozen model does not learn; set it to 0")
