"""Knowledge distillation: a small encoder learns from a trained one (Sanh et al. 2019)."""

import dataclasses
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from ml_collections import ConfigDict

from transformer_jax.config import NonNegativeFloat, PositiveFloat, UserError, build_model
from transformer_jax.contracts.model import Inputs
from transformer_jax.contracts.task import Context, Loss
from transformer_jax.distributed import sharding
from transformer_jax.losses import num_chunks
from transformer_jax.tasks.masked_lm import MaskedLM


@dataclasses.dataclass
class Distillation(MaskedLM):
    """Masked tokens, soft targets, and the teacher's last hidden states (Sanh et al. 2019, sec. 3).

    The student is `config.model`. The teacher is frozen, and its parameters are the subtree
    "teacher".
    """

    # weight of the next-sentence loss; 0: rows are single texts, not pairs
    next_sentence: float = 0.0
    # a run, or a converted checkpoint, of an encoder that fills masks
    teacher: str = ""
    # keys of the teacher's config.model, ((key, value), ...); the run in config.task.teacher gives
    # its own
    teacher_model: tuple = ()
    # weight of the divergence from the teacher's distributions
    soft_targets: NonNegativeFloat = 5.0
    masked_tokens: NonNegativeFloat = 2.0  # weight of the loss of masked tokens
    # weight of the cosine distance between the last hidden states of both models; 0 allows a
    # student of another width
    cosine: NonNegativeFloat = 1.0
    temperature: PositiveFloat = 2.0  # temperature of both distributions
    # position embeddings keep their initial values, as in the published code
    frozen_positions: bool = False

    other_runs = ("teacher",)

    def __post_init__(self):
        super().__post_init__()
        if not self.teacher_model:
            raise UserError(
                "config.task.teacher is missing: the workdir of a run, or of a converted "
                "checkpoint, that config.model learns from"
            )
        self._teacher = build_model(ConfigDict({"model": dict(self.teacher_model)}))
        self._check()
        self.coefficients["mlm"] = self.masked_tokens
        if self.soft_targets:
            self.coefficients["soft_targets"] = self.soft_targets
        if self.cosine:
            self.coefficients["cosine"] = self.cosine

    def _check(self) -> None:
        """Raises UserError for a teacher that does not fit the student, and for wrong weights."""
        student, teacher = self.model, self._teacher
        if "fill" not in teacher.can:
            raise UserError(
                f"config.task.teacher={self.teacher}: its model {type(teacher).__name__} does not "
                "fill masks"
            )
        if student.vocab_size != teacher.vocab_size:
            raise UserError(
                f"config.model.vocab_size={student.vocab_size}: must be the teacher's "
                f"{teacher.vocab_size}"
            )
        if self.cosine and student.d_model != teacher.d_model:
            raise UserError(
                f"config.model.d_model={student.d_model}: must be the teacher's {teacher.d_model}, "
                "or set config.task.cosine=0"
            )
        if not (self.soft_targets or self.masked_tokens or self.cosine):
            raise UserError(
                "config.task: soft_targets, masked_tokens and cosine are all 0, so nothing is "
                "learned; set one above 0"
            )
        try:
            self.texts.check(teacher)
        except UserError as error:
            raise UserError(f"config.task.teacher={self.teacher}: for its model, {error}") from None

    def init(self, rng):
        def used(model, tokens):
            return model.logits(model.hidden(Inputs(tokens)))

        student_key, teacher_key = jax.random.split(rng)
        tokens = jnp.zeros((1, 8), jnp.int32)
        teacher = self._teacher.init(teacher_key, tokens, method=used)["params"]
        return {**super().init(student_key), "teacher": teacher}

    def group(self, path):
        is_frozen = path[0] == "teacher" or (self.frozen_positions and path[0] == "position_embed")
        return None if is_frozen else super().group(path)

    def weights(self, batch):
        num_tokens = (batch["segment_ids"] > 0).sum().astype(jnp.float32)
        # In the order of the coefficients. The order of a set differs between processes, which
        # would then compile different programs.
        terms = [name for name in self.coefficients if name in ("soft_targets", "cosine")]
        return super().weights(batch) | dict.fromkeys(terms, num_tokens)

    def loss(self, params, batch, context: Context) -> Loss:
        hidden = self.states(self.model, params, batch, context)
        loss = self.loss_of_states(params, batch, hidden)
        teacher = jax.lax.stop_gradient(params["teacher"])
        # The teacher has no dropout, so that its targets depend on the rows alone. `Context()` is
        # that of an evaluation.
        teacher_hidden = self.states(self._teacher, teacher, batch, Context())
        filled = (batch["segment_ids"] > 0).astype(jnp.float32)  # (B, L)
        terms = {}
        if self.soft_targets:
            outputs = Output.of(self.model, params, hidden)
            targets = Output.of(self._teacher, teacher, teacher_hidden)
            terms["soft_targets"] = divergence(outputs, targets, filled, self.temperature)
        if self.cosine:
            terms["cosine"] = jnp.sum((1 - _cosine(hidden, teacher_hidden)) * filled)
        count = filled.sum().astype(jnp.int32)
        measured = {f"{name}_loss": (term, count) for name, term in terms.items()}
        return Loss(loss.terms | terms, loss.metrics | measured)

    def flops(self, row_shape: int = 0) -> float:
        _, length, num_predictions = self.phases[row_shape]
        every_position = length if self.soft_targets else 0
        # The factor 3, because a backward pass costs two forward passes. The frozen teacher has
        # none.
        student = 3 * self.model.flops(length, num_predictions + every_position)
        return student + self._teacher.flops(length, every_position)


def _cosine(x: Float[Array, "B L M"], y: Float[Array, "B L M"]) -> Float[Array, "B L"]:
    """Returns the cosine similarities of the hidden states of two models (B, L) float32."""
    # In bfloat16, a sum of squares over the width would lose most of its digits.
    x, y = x.astype(jnp.float32), y.astype(jnp.float32)
    squares = jnp.sum(x * x, axis=-1) * jnp.sum(y * y, axis=-1)
    # The epsilon keeps the result and its gradient finite for a vector of zeros.
    return jnp.sum(x * y, axis=-1) * jax.lax.rsqrt(squares + 1e-16)


class Output(NamedTuple):
    """The inputs of a model's output projection, and the projection."""

    states: Float[Array, "B L E"]
    table: Float[Array, "V E"]
    bias: Float[Array, " V"] | None

    @classmethod
    def of(cls, model, params, hidden: Float[Array, "B L M"]) -> "Output":
        """Returns the output of a model, given its last hidden states."""
        apply = partial(model.apply, {"params": params})
        states = apply(hidden, method="transformed")
        # The rows that pad the vocabulary are dropped: the two tables may be padded differently.
        return cls(states, *apply(method="scaled_output").first(model.vocab_size))

    def log_softmax(self, states: Float[Array, "B C E"], temperature: float):
        """Returns the log-probabilities (B, C, V) float32 of a chunk of the states."""
        matrix = self.table.astype(states.dtype)
        # Products of bfloat16 are summed and kept in float32, because the divergence is a
        # difference of logarithms.
        logits = jnp.einsum("bce,ve->bcv", states, matrix, preferred_element_type=jnp.float32)
        logits = logits if self.bias is None else logits + self.bias
        # The logits are the largest array here, so they stay split over the vocabulary.
        logits = sharding.constrain(logits, "batch", None, "vocab")
        return jax.nn.log_softmax(logits / temperature)


def divergence(
    student: Output, teacher: Output, weights: Float[Array, "B L"], temperature: float
) -> Float[Array, ""]:
    """Returns the weighted sum over positions of T^2 KL(teacher || student), with temperature T.

    The factor T^2 makes the size of the gradients independent of T (Hinton et al. 2015, section 2).
    The logits are materialized only for a chunk of the length at a time, and the backward pass
    computes them again.
    """

    def on_chunk(total, chunk):
        student_states, teacher_states, weights = chunk
        log_q = student.log_softmax(student_states, temperature)
        log_p = teacher.log_softmax(teacher_states, temperature)
        # With p = exp(log p), p log p is 0 where p underflows, and not 0 * -inf = NaN.
        divergences = jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1)  # (B, C)
        return total + jnp.sum(divergences * weights), None

    batch, length = weights.shape
    # The factor 2 is for the logits of two models, which are in memory together.
    chunks = num_chunks(batch, length, 2 * len(student.table))
    size = -(-length // chunks)

    # (B, L, ...) -> (chunks, B, C, ...). The padding of the last chunk has weight 0.
    def split(x):
        padding = [(0, 0), (0, chunks * size - length), *[(0, 0)] * (x.ndim - 2)]
        x = jnp.pad(x, padding).reshape(batch, chunks, size, *x.shape[2:])
        return jnp.moveaxis(x, 1, 0)

    arrays = tuple(map(split, (student.states, teacher.states, weights)))
    total, _ = jax.lax.scan(jax.checkpoint(on_chunk), jnp.zeros(()), arrays)
    return temperature**2 * total
