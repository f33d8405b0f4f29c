"""Code that the fine-tuning tasks share: encoder and head, batches, scores, predictions."""

import dataclasses
import types
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from transformer_jax.config import UserError, build_model
from transformer_jax.data import arguments, rows, tokenizers
from transformer_jax.data.long_lines import LongLines
from transformer_jax.finetuning import checks, lengths
from transformer_jax.finetuning.definition import Definition
from transformer_jax.finetuning.encoder import Encoder
from transformer_jax.finetuning.marks import Marks
from transformer_jax.finetuning.outputs import Outputs
from transformer_jax.finetuning.predictions import (
    Prediction,
    Reader,
    examples_of,
    prediction_of,
)
from transformer_jax.pictures.attended import Attended
from transformer_jax.pictures.progress import say
from transformer_jax.tasks.task import Context, Loss, Task


@dataclasses.dataclass
class FineTuning(Definition, Task):
    """A task on a pre-trained model. See tasks/task.py for the contract.

    `tokenizer_folder` is the folder of the run's tokenizer, or of the earlier run's.
    """

    config: ConfigDict
    tokenizer_folder: Path | None
    length: int = 128  # tokens of a row, at most
    # updates whose examples are sorted by length together, so that batches hold less padding
    group_by_length: int = 1
    head_dropout: float = 0.1  # dropout before the head
    # weight of the language model's loss beside the task's, for GPT (Radford et al. 2018, equation
    # 5: 0.5)
    lm_weight: float = 0.0
    frozen: bool = False  # train only the head

    heads = ("head",)

    def __post_init__(self):
        self.model = build_model(self.config)
        self.encoder = Encoder(self.model, self.source_only, self.num_global, self.marks_texts)
        checks.check(self)
        self.lengths = lengths.of_mesh(self.config.mesh, self.length)
        self.num_row_shapes = len(self.lengths)
        self._examples_of_split = {}
        self.coefficients = {"task": 1.0}
        if self.lm_weight:
            self.coefficients["lm"] = self.lm_weight

    # data

    @cached_property
    def tokenizer(self):
        if self.tokenizer_folder is None and not self.config.data.tokenizer_files:
            raise UserError(
                "config.init_from is missing: the run, or the converted checkpoint, to fine-tune. "
                "With config.train.pretrained=false only its tokenizer and shape are used"
            )
        if self.source_only:
            return tokenizers.source_of_run(self.tokenizer_folder, self.config.data, self.model)
        # No tokenizer is trained, so there is no text for it.
        tokenizer = tokenizers.of_run(
            self.tokenizer_folder, self.config.data, lambda: (), self.model.vocab_size
        )
        return self.model.reader(tokenizer)

    @cached_property
    def marks(self) -> Marks:
        """The special tokens of a row."""
        return self.encoder.marks(self.tokenizer)

    def _examples(self, split: str) -> list | None:
        """Returns the examples of a split, encoded once; None where the run has no such split."""
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
        drawn = rows.train_rows([train], self.config)
        batches = lengths.Batches(drawn, train, self.group_by_length)
        return types.SimpleNamespace(train=batches, eval={})

    def in_buckets(self, examples: list) -> lengths.Examples:
        """Returns the examples with the lengths to which their rows may be cut."""
        num_tokens = np.array([self.num_tokens(example) for example in examples])
        return lengths.Examples(examples, self.row, num_tokens, self.lengths, self.shapes)

    def rows(self):
        return self._rows

    def fingerprint(self) -> dict:
        return {
            "train": self.read("train").fingerprint(),
            "tokenizer": self.tokenizer.fingerprint(),
        }

    # training

    def batch_spec(self, row_shape: int):
        spec = {}
        for name, shape in self.shapes(self.lengths[row_shape]).items():
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
        """The width of the vectors that the head reads."""
        return self.model.d_model

    def summary(self, params, hidden, batch) -> jax.Array:
        """Returns the vector of each row that the head reads, from its states (rows, L, M)."""
        return self.encoder.summary(params, hidden, batch)

    def weights(self, batch):
        weights = {"task": self.counted(batch).sum().astype(jnp.float32)}
        if self.lm_weight:
            weights["lm"] = (batch["segment_ids"][..., 1:] > 0).sum().astype(jnp.float32)
        return weights

    def counted(self, batch) -> jax.Array:
        """Returns an array that is not 0 where the task's loss has a term.

        By default an example has one term, at its first row.
        """
        return batch["segment_ids"][..., 0] > 0

    def outputs(self, params, batch, context: Context):
        """Returns (the head's outputs (rows, ...), the hidden states (rows, L, M)).

        The arrays of the batch are (..., L); all axes but the last count rows.
        """
        batch = self._flat(batch)
        head_key, encoder_key = jax.random.split(context.rng) if context.train else (None, None)
        hidden = self.encoder.hidden(params, batch, encoder_key, context.train and not self.frozen)
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
        """Returns the arrays of the rows (..., L) as (rows, L), with units of any shape."""
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
            "filled": (filled.sum(dtype=jnp.int32), jnp.int32(filled.size)),
        }
        return Loss(terms, counted)

    def group(self, path):
        return None if self.frozen and path[0] != "head" else super().group(path)

    def evaluations(self):
        return {} if self._examples("valid") is None else {"valid": self._validation_scores}

    def evaluation_programs(self, params):
        return {"scores": self._outputs.program(params)}

    def flops(self, row_shape: int = 0) -> float:
        # A backward pass costs two forward passes; a frozen encoder has none.
        passes = 1 if self.frozen else 3
        row = self.encoder.flops(self.lengths[row_shape], self.lm_weight > 0)
        return passes * row * self.rows_of_example

    def positions(self, row_shape: int = 0) -> int:
        return self.lengths[row_shape] * self.rows_of_example

    # evaluation and use

    def evaluate(self, params, split: str) -> dict:
        """Returns the mean loss and the scores of a split.

        Raises UserError where the run has no such split.
        """
        arguments.held_out(self.read, split, "files")
        examples, outputs, scores = self._evaluated(params, split)
        return scores | self.details(examples, outputs) | {"examples": self.count(split)}

    def _validation_scores(self, params) -> dict[str, float]:
        return self._evaluated(params, "valid")[2]

    def _evaluated(self, params, split: str) -> tuple[list, list[np.ndarray], dict[str, float]]:
        """Returns (the examples of a split, the head's outputs of each, loss and scores)."""
        examples = self._examples(split)
        sums = np.zeros(2)
        outputs = list(self._outputs(params, examples, f"evaluating {split} (batches)", sums))
        loss = float(sums[0] / max(sums[1], 1))
        return examples, outputs, {"loss": loss, **self.scores(examples, outputs)}

    @cached_property
    def _outputs(self) -> Outputs:
        return Outputs(self)

    def predict(
        self, params, lines: Iterable[str], *, long: str | None = None
    ) -> Iterator[Prediction]:
        """Yields a prediction for each line, in order. `unlabelled` defines the form of a line.

        An empty line has an empty prediction. `long` decides about a line longer than
        `config.task.length`. "truncate" cuts it as in training; it is the default where a line has
        one label. "split" reads it in parts; it is the default of tagging and of span, which
        searches the whole context for an answer. "skip" leaves its prediction empty, "refuse"
        raises UserError. A warning names the numbers of these lines. Raises UserError for a line of
        another form.
        """
        return self._predictions(params, lines, self, long)

    def _predictions(
        self, params, lines: Iterable[str], reader: Reader, long: str | None
    ) -> Iterator[Prediction]:
        """Yields the prediction that `reader` makes of each line."""
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
        """Returns the fine-tuned model's attention between a text's words; with `pieces`, tokens.

        Two texts are separated by a tab. Raises UserError for a text longer than
        `config.model.max_length`.
        """
        texts = self.tokenizer.encode(text.split("\t")[:2])
        return self.encoder.attention(params, self.tokenizer, texts, pieces)
