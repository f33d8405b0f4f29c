"""BERT's pre-training: masked tokens and, unless rows are single texts, the next sentence."""

import dataclasses
import itertools
import math
import types
from functools import cached_property, partial

import jax.numpy as jnp
import numpy as np

from transformer_jax.config import UserError, build_model
from transformer_jax.data import arguments, masking, rows, sentence_pairs, tokenizers, windows
from transformer_jax.data.sources import documents
from transformer_jax.inference.encoder import EncoderUse
from transformer_jax.losses import cross_entropy, label_nll
from transformer_jax.tasks.base import BaseTask
from transformer_jax.tasks.task import Context, Loss

# The fewest rows of an evaluation. A smaller text is read several times, each time with other pairs
# and masks.
_MIN_EVAL_ROWS = 2_000


@dataclasses.dataclass
class MaskedLM(EncoderUse, BaseTask):
    """The objectives of Devlin et al. 2018, section 3.1."""

    # phases of the run, in order: (share of config.train.num_steps, tokens of a row, most
    # predictions of a row)
    phases: tuple = ((1.0, 128, 20),)
    # weight of the next-sentence loss; 0: rows are windows of the text, not pairs (Liu et al. 2019)
    next_sentence: float = 1.0
    whole_words: bool = False  # mask all pieces of a word or none

    def __post_init__(self):
        self.model = build_model(self.config)
        self.coefficients = {"mlm": 1.0}
        if self.next_sentence:
            self.coefficients["nsp"] = self.next_sentence
        self.num_row_shapes = len(self.phases)
        self._check_next_sentence()
        self._check_phases()
        if self.config.train.first_batch:
            raise UserError(
                f"config.train.first_batch={self.config.train.first_batch}: the batch of masked "
                "language modelling does not grow; set it to 0"
            )

    def _check_next_sentence(self) -> None:
        if self.next_sentence < 0:
            raise UserError(f"config.task.next_sentence={self.next_sentence}: must be at least 0")
        if self.next_sentence and self.model.num_token_types < 2:
            raise UserError(
                f"config.model.num_token_types={self.model.num_token_types}: pairs of texts need "
                "2; config.task.next_sentence=0 trains on single texts"
            )

    def _check_phases(self) -> None:
        for phase in self.phases or [()]:
            if not self._is_phase(phase):
                raise UserError(
                    f"config.task.phases: {phase} is not (share of the updates, length from 8 to "
                    f"config.model.max_length={self.model.max_length}, most predictions), "
                    "as in ((1.0,128,20),)"
                )
        if abs(sum(share for share, _, _ in self.phases) - 1) > 1e-6:
            raise UserError(
                f"config.task.phases={self.phases}: the shares of the updates must add up to 1"
            )

    def _is_phase(self, phase) -> bool:
        kinds = [type(value) for value in phase] if isinstance(phase, tuple) else []
        if kinds not in ([int, int, int], [float, int, int]):
            return False
        share, length, num_predictions = phase
        fits = 8 <= length <= self.model.max_length
        return fits and 0 < share <= 1 and 1 <= num_predictions <= length

    # data

    @cached_property
    def tokenizer(self) -> tokenizers.Tokenizer:
        tokenizer = tokenizers.of_run(
            self.tokenizer_folder, self.config.data, self._training_data, self.model.vocab_size
        )
        tokenizer.required("cls", "sep", "mask", user="masked language modelling")
        return tokenizer

    def _training_data(self):
        return self._text("train")

    def _text(self, split: str):
        text = documents.of_split(self.config.data, split)
        if text is None and split == "train":
            raise UserError("config.data.train_files is missing: the training text")
        return text

    def _tokenised(self, split: str):
        make = sentence_pairs.tokenised if self.next_sentence else windows.tokenised
        return make(self._text(split), self.config.data, self.tokenizer, split)

    def _component(self, stored, split: str, phase: int):
        """Returns the rows of a tokenised split in a phase.

        Each split has its own random numbers.
        """
        _, length, num_predictions = self.phases[phase]
        tokenizer, seed = self.tokenizer, self.config.data.seed
        mask = masking.Masking(
            tokenizer.mask_id,
            tokenizer.special,
            tokenizer.continues,
            num_predictions,
            self.whole_words,
        )
        key = (seed, phase, ("train", "valid", "test").index(split))
        if self.next_sentence:
            return sentence_pairs.SentencePairs(stored, length, mask, key)
        return sentence_pairs.MaskedWindows(
            stored, length, mask, key, (tokenizer.cls_id, tokenizer.sep_id)
        )

    @property
    def phase_steps(self) -> list[int]:
        """The number of updates of each phase."""
        shares = itertools.accumulate(share for share, _, _ in self.phases)
        ends = [round(share * self.config.train.num_steps) for share in shares]
        return [end - begin for begin, end in zip([0, *ends], ends)]

    @cached_property
    def _rows(self) -> types.SimpleNamespace:
        stored = self._tokenised("train")
        phases = []
        for phase, num_steps in enumerate(self.phase_steps):
            component = self._component(stored, "train", phase)
            is_last = phase == len(self.phases) - 1
            batch = self.config.train.batch
            phases.append(rows.Phase([component], batch, None if is_last else num_steps))
        return types.SimpleNamespace(
            train=rows.TrainRows(phases, self.config.data.seed),
            eval={"valid": self._evaluation_rows("valid")} if self._text("valid") else {},
        )

    def _evaluation_rows(self, split: str) -> rows.EvalRows:
        component = self._component(self._tokenised(split), split, len(self.phases) - 1)
        return rows.EvalRows(component, math.ceil(_MIN_EVAL_ROWS / len(component)))

    # training

    def batch_spec(self, row_shape: int):
        _, length, num_predictions = self.phases[row_shape]
        shapes = dict.fromkeys(("tokens", "token_types", "segment_ids"), (length,))
        masked = ("masked_positions", "masked_labels", "masked_weights")
        shapes |= dict.fromkeys(masked, (num_predictions,))
        if self.next_sentence:
            shapes["follows"] = ()
        return self.int32_spec(shapes)

    def init(self, rng):
        return self.model.init(rng, jnp.zeros((1, 8), jnp.int32))["params"]

    def weights(self, batch):
        weights = {"mlm": batch["masked_weights"].sum().astype(jnp.float32)}
        if self.next_sentence:
            num_rows = batch["segment_ids"].max(axis=-1).sum()  # without rows of padding
            weights["nsp"] = num_rows.astype(jnp.float32)
        return weights

    def loss(self, params, batch, context: Context) -> Loss:
        apply = partial(self.model.apply, {"params": params})
        hidden = apply(
            batch["tokens"],
            token_types=batch["token_types"],
            segment_ids=batch["segment_ids"],
            train=context.train,
            method="hidden",
            rngs={"dropout": context.rng} if context.train else None,
        )
        # Logits are computed at the masked positions only.
        masked = jnp.take_along_axis(hidden, batch["masked_positions"][..., None], axis=1)
        filled = batch["segment_ids"] > 0
        mlm, _, correct = cross_entropy(
            apply(masked, method="transformed"),
            *apply(method="output"),
            batch["masked_labels"],
            batch["masked_weights"].astype(jnp.float32),
        )
        count = batch["masked_weights"].sum(dtype=jnp.int32)
        terms = {"mlm": mlm}
        metrics = {
            "loss": (mlm, count),
            "accuracy": (correct, count),
            "filled": (filled.sum(dtype=jnp.int32), jnp.int32(filled.size)),
        }
        if self.next_sentence:
            logits = apply(hidden, method="next_logits")
            is_row = filled[:, 0]
            label = 1 - batch["follows"]
            nsp = jnp.sum(label_nll(logits, label) * is_row)
            num_rows = is_row.sum(dtype=jnp.int32)
            correct = jnp.sum((logits.argmax(axis=-1) == label) & is_row, dtype=jnp.float32)
            terms["nsp"] = nsp
            metrics |= {"nsp_loss": (nsp, num_rows), "nsp_accuracy": (correct, num_rows)}
        return Loss(terms, metrics)

    def group(self, path):
        is_unused = not self.next_sentence and path[0] in ("pooler", "nsp")
        return None if is_unused else ""

    def flops(self, row_shape: int = 0) -> float:
        _, length, num_predictions = self.phases[row_shape]
        # A backward pass costs two forward passes.
        return 3 * self.model.flops(length, num_predictions)

    def positions(self, row_shape: int = 0) -> int:
        return self.phases[row_shape][1]

    # evaluation

    def evaluate(self, params, split: str) -> dict:
        """Returns the losses and accuracies of both objectives for a split.

        The rows are those of the last phase. A split of fewer than 2,000 rows is read several
        times, with other pairs and masks. "most_frequent" is the accuracy of always predicting the
        most frequent label. Raises UserError where the run has no such split.
        """
        arguments.held_out(self._text, split, "files")
        evaluated = self._evaluation_rows(split)
        label_counts = np.zeros(self.model.vocab_size, np.int64)

        def count_labels(batch) -> None:
            labels = batch["masked_labels"][batch["masked_weights"] > 0]
            label_counts[:] += np.bincount(labels, minlength=len(label_counts))

        means = self.mean_metrics(params, evaluated, observe=count_labels)
        means.pop("filled")
        return {
            **means,
            **self.derived(split, means),
            "most_frequent": float(label_counts.max() / label_counts.sum()),
            "rows": len(evaluated),
            "masked": int(label_counts.sum()),
        }
