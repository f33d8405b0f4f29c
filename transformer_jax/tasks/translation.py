"""Translation: rows of packed pairs, and the label-smoothed cross-entropy."""

import dataclasses
from functools import cached_property, partial

import jax
import jax.numpy as jnp

from transformer_jax.config import UserError, build_model
from transformer_jax.data import arguments, tokenizers
from transformer_jax.data.pair_rows import PairRows
from transformer_jax.inference import lowering
from transformer_jax.inference.sequence_to_sequence import SequenceToSequenceUse
from transformer_jax.losses import cross_entropy
from transformer_jax.scores import bleu
from transformer_jax.tasks.base import TextTask, check_row_length
from transformer_jax.tasks.task import Context, EvaluationProgram, Loss


@dataclasses.dataclass
class Translation(SequenceToSequenceUse, TextTask):
    """The objective of Vaswani et al. 2017, section 5."""

    source_length: int = 256  # source tokens of a packed row
    target_length: int = 256  # target tokens of a packed row
    label_smoothing: float = 0.1  # probability that the loss spreads over all tokens
    bleu_lines: int = 200  # validation sentences translated at each evaluation; 0: none

    def __post_init__(self):
        self.model = build_model(self.config)
        self.coefficients = {"loss": 1.0}
        check_row_length("source_length", self.source_length, self.model)
        check_row_length("target_length", self.target_length, self.model)
        if self.bleu_lines < 0:
            raise UserError(f"config.task.bleu_lines={self.bleu_lines}: must be at least 0")
        if self.model.window - self.config.decode.max_extra < 2:
            raise UserError(
                f"config.decode.max_extra={self.config.decode.max_extra}: must be at most "
                f"config.model.max_length - 2 = {self.model.max_length - 2}"
            )

    @property
    def texts(self) -> PairRows:
        return PairRows(self.config, self.source_length, self.target_length)

    @cached_property
    def tokenizer(self) -> tokenizers.Pair:
        sizes = self.model.source_vocab_size, self.model.vocab_size
        if self.tokenizer_folder:
            pair = tokenizers.Pair.load(self.tokenizer_folder)
            tokenizers.check_pair(pair, *sizes)
            return pair
        return tokenizers.train_pair(self.texts.training_text(), self.config.data, *sizes)

    # training

    def batch_spec(self, row_shape: int = 0) -> dict[str, jax.ShapeDtypeStruct]:
        source = ("source", "source_positions", "source_segment_ids")
        target = ("target", "target_positions", "target_segment_ids", "labels")
        shapes = dict.fromkeys(source, (self.source_length,))
        return self.int32_spec(shapes | dict.fromkeys(target, (self.target_length,)))

    def init(self, rng):
        tokens = jnp.zeros((1, 2), jnp.int32)
        return self.model.init(rng, tokens, tokens)["params"]

    def weights(self, batch):
        return {"loss": jnp.sum(batch["target_segment_ids"] > 0).astype(jnp.float32)}

    def loss(self, params, batch, context: Context) -> Loss:
        variables = {"params": params}
        hidden = self.model.apply(
            variables,
            batch["source"],
            batch["target"],
            source_positions=batch["source_positions"],
            source_segment_ids=batch["source_segment_ids"],
            target_positions=batch["target_positions"],
            target_segment_ids=batch["target_segment_ids"],
            train=context.train,
            method="hidden",
            rngs={"dropout": context.rng} if context.train else None,
        )
        table, bias = self.model.apply(variables, method="output")
        filled = batch["target_segment_ids"] > 0
        weights = filled.astype(jnp.float32)
        loss, nll, correct = cross_entropy(
            hidden,
            table,
            bias,
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
        if context.train:  # without smoothing, as the loss of an evaluation
            metrics["nll"] = (nll, count)
        return Loss({"loss": loss}, metrics)

    def evaluations(self):
        valid = self.texts.text("valid")
        if valid is None or not self.bleu_lines:
            return {}
        return {"valid": partial(self._score, valid, self.bleu_lines)}

    def evaluation_programs(self, params):
        """Returns those of a beam search over sentences as long as a row."""
        if not self.bleu_lines:
            return {}
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

    # evaluation

    def evaluate(self, params, split: str) -> dict:
        """Returns BLEU, chrF and the measure of the paper for a split, with their signatures.

        Raises UserError where the run has no such split.
        """
        pairs = arguments.held_out(self.texts.text, split, "source", "target")
        outputs, references = self.translated_pairs(params, pairs)
        signatures = bleu.signatures(outputs, references, pairs.target_language)
        return bleu.scores(outputs, references) | signatures

    def _score(self, pairs, count, params) -> dict[str, float]:
        return bleu.scores(*self.translated_pairs(params, pairs, count))
