"""The objective of encoder-decoders: the cross-entropy of a target, given its source."""

import dataclasses

import jax
import jax.numpy as jnp

from transformer_jax.config import UserError, build_model
from transformer_jax.inference import lowering
from transformer_jax.inference.sequence_to_sequence import SequenceToSequenceUse
from transformer_jax.tasks.base import TextTask, check_row_length
from transformer_jax.tasks.task import Context, EvaluationProgram, Loss


@dataclasses.dataclass
class PairTask(SequenceToSequenceUse, TextTask):
    """A task whose rows hold sources and targets, as those of `data.packed_pairs.PackedPairs`."""

    source_length: int = 256  # source tokens of a row
    target_length: int = 256  # target tokens of a row
    label_smoothing: float = 0.1  # probability that the loss spreads over all tokens

    def __post_init__(self):
        self.model = build_model(self.config)
        self.check_model()
        self.coefficients = {"loss": 1.0}
        check_row_length("source_length", self.source_length, self.model)
        check_row_length("target_length", self.target_length, self.model)

    def check_model(self) -> None:
        """Raises UserError for a model that the task does not train."""
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
        weights = (batch["target_segment_ids"] > 0).astype(jnp.float32)
        return self.loss_of(params, hidden, batch | {"weights": weights}, context)

    def loss_of(self, params, hidden: jax.Array, batch, context: Context) -> Loss:
        """Returns the loss of states (B, N, M) with these "labels" and "weights" (B, N)."""
        variables = {"params": params}
        filled = batch["target_segment_ids"] > 0
        weights = batch["weights"]
        loss, nll, correct = self.model.apply(variables, method="output").cross_entropy(
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
        if context.train:  # without smoothing, as the loss of an evaluation
            metrics["nll"] = (nll, count)
        return Loss({"loss": loss}, metrics)

    def search_programs(self, params) -> dict[str, EvaluationProgram]:
        """Returns the programs of a beam search over sources as long as a row."""
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
