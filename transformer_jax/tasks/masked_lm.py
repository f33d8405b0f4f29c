"""BERT's pre-training: masked tokens and, unless rows are single texts, the next sentence."""

import dataclasses
import types
from functools import cached_property, partial

import jax.numpy as jnp
import numpy as np

from transformer_jax.config import UserError, build_model
from transformer_jax.data import arguments, tokenizers
from transformer_jax.data.masked_rows import MaskedRows
from transformer_jax.inference.encoder import EncoderUse
from transformer_jax.losses import cross_entropy, label_nll
from transformer_jax.tasks.base import BaseTask
from transformer_jax.tasks.task import Context, Loss


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
        fits = 8 <= length <= self.model.window
        return fits and 0 < share <= 1 and 1 <= num_predictions <= length

    # data

    @cached_property
    def tokenizer(self) -> tokenizers.Tokenizer:
        tokenizer = tokenizers.of_run(
            self.tokenizer_folder, self.config.data, self._training_text, self.model.vocab_size
        )
        tokenizer.required("cls", "sep", "mask", user="masked language modelling")
        return tokenizer

    def _training_text(self):
        return self._texts.text("train")

    @property
    def _texts(self) -> MaskedRows:
        pairs = self.next_sentence > 0
        return MaskedRows(self.config, self.phases, pairs, self.whole_words)

    @property
    def phase_steps(self) -> list[int]:
        """The number of updates of each phase."""
        return self._texts.phase_steps

    @cached_property
    def _rows(self) -> types.SimpleNamespace:
        train = self._texts.train(self.tokenizer)
        has_valid = self._texts.text("valid") is not None
        evaluated = {"valid": self._texts.evaluation(self.tokenizer, "valid")} if has_valid else {}
        return types.SimpleNamespace(train=train, eval=evaluated)

    def rows(self):
        return self._rows

    def fingerprint(self) -> dict:
        return {
            "train": self._training_text().fingerprint(),
            "tokenizer": self.tokenizer.fingerprint(),
        }

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
        arguments.held_out(self._texts.text, split, "files")
        evaluated = self._texts.evaluation(self.tokenizer, split)
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
