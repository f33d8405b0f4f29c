"""What the fine-tuning tasks share: an encoder under a head of its own, labelled examples, and
going over them for scores and predictions.
"""

import dataclasses
import inspect
import types
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from transformer_jax.config import UserError, build_model
from transformer_jax.data import rows, tokenizers
from transformer_jax.data.long_lines import LongLines
from transformer_jax.data.sources import pairs as sources
from transformer_jax.distributed import sharding
from transformer_jax.finetuning import lengths
from transformer_jax.finetuning.encoder import Encoder
from transformer_jax.finetuning.predictions import Asked, Prediction, examples_of
from transformer_jax.pictures.attended import Attended, between
from transformer_jax.pictures.progress import say, track

ROW = ("tokens", "token_types", "segment_ids")
# batches whose examples are sorted by length together, where the order in which they are computed
# does not matter
_WINDOW = 64


@dataclasses.dataclass
class FineTuning:
    """See tasks/task.py for the methods' contracts. A subclass says what its examples, rows, head,
    objective and scores are.

    `tokenizer_folder`: where the run, or the one it begins with, has left its tokenizer.
    """

    config: ConfigDict
    tokenizer_folder: Path | None
    length: int = 128  # tokens of a row at most
    # updates whose examples are sorted by length together: batches of like lengths hold less
    # padding
    group_by_length: int = 1
    head_dropout: float = 0.1  # before the head
    # GPT: of the language model's objective beside the task's (Radford et al. 2018, equation 5:
    # 0.5)
    lm_weight: float = 0.0
    frozen: bool = False  # train the head alone

    summarises = True  # whether the head reads one vector a row; else one a token
    two_texts = False  # whether a row holds two texts
    unread = {}  # the details of a prediction for an empty line
    long_lines = ("truncate", "skip", "refuse")  # ways to treat too long a line; first the default

    def __post_init__(self):
        self.model = build_model(self.config)
        if "tokens" not in inspect.signature(type(self.model).hidden).parameters:
            raise UserError(
                f"config.model.name={self.config.model.name!r}: fine-tuning is for bert and gpt"
            )
        self.encoder = Encoder(self.model)
        if self.two_texts and getattr(self.model, "num_token_types", 2) < 2:
            raise UserError(
                f"config.model.num_token_types={self.model.num_token_types}: two texts "
                "in a row need 2"
            )
        if self.lm_weight and self.encoder.bidirectional:
            raise UserError(
                f"config.task.lm_weight={self.lm_weight}: {self.config.model.name} is no language model"
            )
        if self.lm_weight and self.frozen:
            raise UserError(
                f"config.task.lm_weight={self.lm_weight}: a frozen model learns nothing by it"
            )
        if self.lm_weight < 0 or not 0 <= self.head_dropout < 1:
            raise UserError(
                f"config.task.lm_weight={self.lm_weight}, head_dropout={self.head_dropout}: at least 0, the latter below 1"
            )
        if not 8 <= self.length <= self.model.max_length:
            raise UserError(
                f"config.task.length={self.length}: must be from 8 to config.model.max_length={self.model.max_length}"
            )
        if self.group_by_length < 1:
            raise UserError(
                f"config.task.group_by_length={self.group_by_length}: must be at least 1"
            )
        # only whole rows are sure to be divided by it
        split = any(
            self.config.mesh[axis] != 1 for axis in sharding.rules(self.config.mesh)["length"]
        )
        self.lengths = (self.length,) if split else lengths.shorter(self.length)
        self.num_phases = len(self.lengths)
        self._known = {}
        self.coefficients = {"task": 1.0} | ({"lm": self.lm_weight} if self.lm_weight else {})

    # what a subclass says

    def read(self, split: str):
        """The split's records, re-iterable, with a fingerprint(); None if there is no such split."""
        raise NotImplementedError

    def examples(self, records) -> list:
        """What rows are made from: texts encoded, labels as numbers. Raises UserError with file and
        line.
        """
        raise NotImplementedError

    def row(self, example) -> rows.Row:
        raise NotImplementedError

    def filled(self, example) -> int:
        """Tokens of its longest row that are no padding."""
        raise NotImplementedError

    def shapes(self, length: int) -> dict[str, tuple[int, ...]]:
        """Of the arrays of a row of `length` tokens."""
        raise NotImplementedError

    def head(self):
        """The Linen module on the encoder."""
        raise NotImplementedError

    def objective(self, outputs, batch) -> tuple[jax.Array, jax.Array, dict]:
        """(summed loss, its count as int32, metrics beside the loss)."""
        raise NotImplementedError

    def scores(self, examples, outputs) -> dict[str, float]:
        """Of a split's examples, from the head's outputs, arrays (examples, ...)."""
        raise NotImplementedError

    def details(self, examples, outputs) -> dict[str, dict]:
        """What `evaluate` gives beside the scores, JSON-able; from the same arguments."""
        return {}

    def shown(self, examples: list, outputs: list[np.ndarray]) -> tuple[str, dict]:
        """A prediction as a line of text and as an object for JSON, from a line's examples."""
        raise NotImplementedError

    def asked(self, lines: list[tuple[int, str]]) -> list[Asked]:
        """Examples without labels, from numbered lines. Raises UserError for a wrong line."""
        raise NotImplementedError

    # data

    @cached_property
    def tokenizer(self):
        if self.tokenizer_folder is None and not self.config.data.tokenizer_files:
            raise UserError(
                "config.init_from is missing: the run (or converted checkpoint) to fine-tune; with --config.train.pretrained=false its tokenizer and shape alone are used"
            )
        return tokenizers.of_run(
            self.tokenizer_folder, self.config.data, lambda: (), self.model.vocab_size
        )

    def _examples(self, split: str) -> list | None:
        if split not in self._known:
            records = self.read(split)
            if records is not None and next(iter(records), None) is None:
                raise UserError(f"config.data.{split}_files: no example in it")
            self._known[split] = found = None if records is None else self.examples(records)
            if found is not None:
                say(f"{split}: {len(found):,} examples")
        return self._known[split]

    @cached_property
    def _rows(self) -> types.SimpleNamespace:
        self._examples("valid")  # what is wrong with them is said before training
        train = self._made(self._examples("train"))
        return types.SimpleNamespace(
            train=lengths.Batches(
                rows.train_rows([train], self.config), train, self.group_by_length
            ),
            eval={},
        )

    def _made(self, examples) -> lengths.Examples:
        return lengths.Examples(
            examples,
            self.row,
            np.array([self.filled(example) for example in examples]),
            self.lengths,
        )

    def rows(self):
        return self._rows

    def fingerprint(self) -> dict:
        """What the run's data and tokenizer are, by content."""
        return {
            "train": self.read("train").fingerprint(),
            "tokenizer": self.tokenizer.fingerprint(),
        }

    # training

    def batch_spec(self, phase: int):
        shapes = self.shapes(self.lengths[phase])
        return {
            name: jax.ShapeDtypeStruct(
                (self.config.train.batch, *shape), jnp.float32 if name == "value" else jnp.int32
            )
            for name, shape in shapes.items()
        }

    def init(self, rng):
        ours, theirs = jax.random.split(rng)
        vector = jnp.zeros((1, 8, self.model.d_model))
        return {
            **self.encoder.init(theirs, self.summarises),
            "head": self.head().init(ours, vector)["params"],
        }

    def weights(self, batch):
        count = lambda x: x.sum().astype(jnp.float32)
        return {"task": count(self.counted(batch))} | (
            {"lm": count(batch["segment_ids"][..., 1:] > 0)} if self.lm_weight else {}
        )

    def counted(self, batch) -> jax.Array:
        """Non-zero where the task's loss has a term: by default once an example, from its first
        row.
        """
        return batch["segment_ids"][..., 0] > 0

    def outputs(self, params, batch, rng, train: bool):
        """(the head's outputs (rows, ...), hidden states (rows, L, M)) of arrays (..., L), all
        leading axes being rows.
        """
        batch = {name: batch[name].reshape(-1, batch[name].shape[-1]) for name in ROW}
        ours, theirs = jax.random.split(rng) if train else (None, None)
        hidden = self.encoder.hidden(params, batch, theirs, train and not self.frozen)
        hidden = jax.lax.stop_gradient(hidden) if self.frozen else hidden
        vector = self.encoder.summary(params, hidden, batch) if self.summarises else hidden
        return self.head().apply(
            {"params": params["head"]},
            vector,
            train=train,
            rngs={"dropout": ours} if train else None,
        ), hidden

    def loss(self, params, batch, rng, *, train):
        found, hidden = self.outputs(params, batch, rng, train)
        total, count, measured = self.objective(found, batch)
        filled = batch["segment_ids"] > 0
        sums = {"task": total}
        if self.lm_weight:
            sums["lm"] = self.encoder.next_tokens(
                params,
                hidden,
                {name: batch[name].reshape(-1, batch[name].shape[-1]) for name in ROW},
            )
            measured |= {"lm_loss": (sums["lm"], filled[..., 1:].sum(dtype=jnp.int32))}
        return sums, {
            "loss": (total, count),
            **measured,
            "filled": (filled.sum(dtype=jnp.int32), jnp.int32(filled.size)),
        }

    def trainable(self, path) -> bool:
        return path[0] == "head" or not self.frozen

    def derived(self, name, means):
        return {}

    def evaluations(self):
        return (
            {}
            if self._examples("valid") is None
            else {"valid": lambda params: self._measured(params, "valid")}
        )

    def flops(self, phase: int = 0) -> float:
        # nothing is back-propagated to a frozen encoder
        return (
            (1 if self.frozen else 3)
            * self.encoder.flops(self.lengths[phase], self.lm_weight > 0)
            * self.rows_of_example
        )

    rows_of_example = 1

    def positions(self, phase: int = 0) -> int:
        return self.lengths[phase] * self.rows_of_example

    # use

    def evaluate(self, params, split: str) -> dict:
        """Loss and scores over a whole split. Raises UserError where the run's data has no such
        split.
        """
        sources.check_evaluated(split)
        if self.read(split) is None:
            raise UserError(
                f"--set={split}: this run names no such examples; give --config.data.{split}_files"
            )
        examples, outputs, loss = self._outputs(params, split)
        found = {"loss": loss, **self.scores(examples, outputs), **self.details(examples, outputs)}
        return {**found, "examples": self.count(split)}

    def count(self, split: str) -> int:
        """Labelled examples of a split."""
        return sum(1 for _ in self.read(split))

    def _measured(self, params, split: str) -> dict[str, float]:
        examples, outputs, loss = self._outputs(params, split)
        return {"loss": loss, **self.scores(examples, outputs)}

    def _outputs(self, params, split: str) -> tuple[list, list[np.ndarray], float]:
        """(a split's examples, the head's outputs of each, the mean loss)."""
        examples, sums = self._examples(split), np.zeros(2)
        outputs = list(self._over(params, examples, f"evaluating {split} (batches)", sums))
        return examples, outputs, float(sums[0] / max(sums[1], 1))

    def predict(
        self, params, lines: Iterable[str], *, long: str | None = None
    ) -> Iterator[Prediction]:
        """A prediction for each line, in order; `asked` says what a line holds.

        An empty line has an empty prediction. `long` decides about a line that is longer than
        `config.task.length`. "truncate" cuts it as in training: the default where a line has one
        label. "split" tags it in parts: the default of tagging. "skip" leaves its prediction empty,
        "refuse" raises UserError. A warning names the numbers of these lines. An answer is looked
        for in all of its context, however long. Raises UserError for a line of another form.
        """
        limit = f"config.task.length={self.length} tokens"
        treatment = LongLines(long or self.long_lines[0], self.long_lines, limit)
        lines = examples_of(sources.several(lines), self.asked, treatment)
        examples = [example for line in lines for example in line]
        outputs = self._over(params, examples, "predicting (batches)") if examples else iter(())
        return (self._prediction(line, outputs) for line in lines)

    def _prediction(self, examples: list, outputs: Iterator[np.ndarray]) -> Prediction:
        """From a line's examples and as many of the outputs that follow."""
        if not examples:
            return Prediction("", {"text": "", **self.unread})
        return Prediction(*self.shown(examples, [next(outputs) for _ in examples]))

    @property
    def attentions(self) -> tuple[str, ...]:
        """Kinds of attention that can be looked at."""
        return ("encoder",) if self.encoder.bidirectional else ("decoder",)

    def attention(self, params, text: str, *, pieces: bool = False) -> Attended:
        """What each word of a text, or each of its `pieces`, attends to in the fine-tuned model;
        two texts are separated by a tab.

        Raises UserError for what is longer than `config.model.max_length`.
        """
        ids = self.tokenizer.encode(text.split("\t")[:2])
        row = self.encoder.row(
            self.tokenizer,
            ids[0],
            ids[1] if len(ids) > 1 else None,
            sum(map(len, ids)) + len(ids) + 1,
        )
        if len(row["tokens"]) > self.model.max_length:
            raise UserError(
                f"{len(row['tokens'])} tokens, at most config.model.max_length={self.model.max_length} can be read"
            )
        side = self.encoder.shown(self.tokenizer, ids, pieces)
        return between(self.encoder.attention(params, row), side, side)

    def _over(self, params, examples, label, sums=None) -> Iterator[np.ndarray]:
        """The head's outputs (rows of an example, ...) of each, in order; the summed loss and its
        count are added to `sums` (2,).
        """
        batch, done, following = self.config.decode.batch, {}, 0
        for numbers, stacked in track(
            self._made(examples).batches(batch, _WINDOW), label, -(-len(examples) // batch)
        ):
            found, *counted = jax.device_get(self._scored(params, stacked))
            if sums is not None:
                sums += counted
            done |= zip(numbers.tolist(), found)
            while following in done:
                yield done.pop(following)
                following += 1

    @cached_property
    def _scored(self):
        def scored(params, batch):
            found, _ = self.outputs(params, batch, None, train=False)
            total, count, _ = self.objective(found, batch)
            # (examples, rows of each, ...)
            return found.reshape(len(batch["segment_ids"]), -1, *found.shape[1:]), total, count

        return jax.jit(scored)
