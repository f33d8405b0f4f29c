"""Pre-training on sound: telling the masked frames of an utterance apart (Baevski et al. 2020)."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.config import PositiveFloat, PositiveInt, Share, UserError
from transformer_jax.contracts.model import Inputs
from transformer_jax.contracts.task import Context, Loss
from transformer_jax.data.speech import MaskedRows, Masking
from transformer_jax.families.wav2vec2 import Predictions
from transformer_jax.objectives.speech import SpeechTask

_EPSILON = 1e-7  # beside a probability, in its logarithm
_EXCLUDED = -1e9  # the logit of a distractor that equals the true code


@dataclasses.dataclass
class MaskedSpeech(SpeechTask):
    """The contrastive and the diversity loss of wav2vec 2.0 (section 3).

    The state of a masked frame tells its quantized features from those of other masked frames of
    its utterance. A row is a crop, drawn anew in each epoch. The usage of the codes is that of a
    microbatch, as it is that of one device in the published code.

    "loss" and "accuracy" are those of the contrastive loss, and "codes_used" is the perplexity of
    the codes, summed over the codebooks.
    """

    # The usage of the codes is no sum over rows.
    sums_over_rows = False

    masked: Share = 0.65  # total length of the masked spans over that of a row; they overlap
    span: PositiveInt = 10  # frames of a masked span
    distractors: PositiveInt = 100  # other masked frames beside each true one
    similarity_temperature: PositiveFloat = 0.1  # by which similarities are divided
    diversity_weight: float = 0.1  # weight of the loss of the codes' diversity
    power_weight: float = 0.0  # weight of the mean square of the features
    temperature: PositiveFloat = 2.0  # of the Gumbel softmax, at first
    least_temperature: PositiveFloat = 0.5  # below which the temperature does not fall
    temperature_decay: Share = 0.999995  # factor of the temperature from update to update

    def __post_init__(self):
        super().__post_init__()
        self.coefficients = {"contrastive": 1.0, "diversity": self.diversity_weight}
        if self.power_weight:
            self.coefficients["power"] = self.power_weight
        if self.span >= self.frames:
            raise UserError(
                f"config.task.span={self.span}: must be below the {self.frames} frames of a row of "
                f"config.task.seconds={self.seconds}"
            )

    # At least two spans, as in the published code.
    @property
    def masking(self) -> Masking:
        return Masking(self.masked, self.span, least=2)

    def component(self, records):
        return MaskedRows(
            records,
            seed=self.config.data.seed,
            samples=self.samples,
            windows=self.model.windows,
            masking=self.masking,
            num_distractors=self.distractors,
        )

    def batch_spec(self, row_shape: int):
        most = self.masking.most(self.frames)
        shapes = {"masked": (self.frames,), "distractors": (most, self.distractors)}
        return self.spec_of_rows(shapes | dict.fromkeys(("places", "weights"), (most,)))

    def init(self, rng):
        sound, places = jnp.zeros((1, self.samples)), jnp.zeros((1, 2), jnp.int32)
        return self.model.init(rng, sound, places, method="predictions")["params"]

    def weights(self, batch):
        count = batch["weights"].sum().astype(jnp.float32)
        return dict.fromkeys(self.coefficients, count)

    def loss(self, params, batch, context: Context) -> Loss:
        predicted = self._predicted(params, batch, context)
        logits = _logits(predicted, batch["distractors"], self.similarity_temperature)
        weights = batch["weights"].astype(jnp.float32)
        losses = jax.nn.logsumexp(logits, axis=-1) - logits[..., 0]
        right = (logits[..., 1:] < logits[..., :1]).all(axis=-1)
        count = batch["weights"].sum(dtype=jnp.int32)
        used = _perplexity(predicted.quantized.probabilities, weights)
        codes = self.model.codebooks * self.model.codes
        terms = {
            "contrastive": jnp.sum(losses * weights),
            "diversity": (codes - used) / codes * weights.sum(),
            "power": predicted.power * weights.sum(),
        }
        metrics = {
            "loss": (terms["contrastive"], count),
            "accuracy": (jnp.sum(right * weights), count),
            "codes_used": (used * weights.sum(), count),
            "filled": self.num_filled(batch),
        }
        return Loss({name: terms[name] for name in self.coefficients}, metrics)

    def _predicted(self, params, batch, context: Context) -> Predictions:
        options, temperature = {}, 1.0
        if context.train:
            dropout, gumbel = jax.random.split(context.rng)
            options = {"rngs": {"dropout": dropout, "gumbel": gumbel}}
            fallen = self.temperature * self.temperature_decay ** context.step.astype(jnp.float32)
            temperature = jnp.maximum(fallen, self.least_temperature)
        return self.model.apply(
            {"params": params},
            Inputs(sound=batch["sound"], lengths=batch["length"], masked=batch["masked"]),
            batch["places"],
            temperature=temperature,
            train=context.train,
            method="predictions",
            **options,
        )

    def flops(self, row_shape: int = 0) -> float:
        # A backward pass costs two forward passes.
        return 3 * self.model.flops(self.samples, self.masking.most(self.frames))


def _logits(
    predicted: Predictions, distractors: Int[Array, "B P K"], temperature: float
) -> Float[Array, "B P N"]:
    """Returns the logits of the true codes and of K distractors (B, P, K + 1) (equation 3).

    A distractor with the codes of the true frame is no alternative.
    """
    similar = jnp.einsum("bpe,bqe->bpq", _unit(predicted.contexts), _unit(predicted.targets))
    similar = similar / temperature
    entries = predicted.quantized.entries
    same: Bool[Array, "B P P"] = (entries[:, :, None] == entries[:, None]).all(axis=-1)
    true = jnp.diagonal(similar, axis1=1, axis2=2)[..., None]
    others = jnp.take_along_axis(jnp.where(same, _EXCLUDED, similar), distractors, axis=2)
    return jnp.concatenate([true, others], axis=-1)


def _unit(x: Float[Array, "B P E"]) -> Float[Array, "B P E"]:
    """Returns vectors of length 1. Those that are almost 0 stay so."""
    square = jnp.square(x).sum(axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.maximum(square, 1e-16))


def _perplexity(
    probabilities: Float[Array, "B P G V"], weights: Float[Array, "B P"]
) -> Float[Array, ""]:
    """Returns the perplexity of the mean distribution of each codebook, summed (equation 4)."""
    mean = jnp.einsum("bpgv,bp->gv", probabilities, weights) / jnp.maximum(weights.sum(), 1)
    entropy = -jnp.sum(mean * jnp.log(mean + _EPSILON), axis=-1)
    return jnp.exp(entropy).sum()
