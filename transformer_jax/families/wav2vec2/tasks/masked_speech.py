"""Speech pre-training with a contrastive loss over masked frames (Baevski et al. 2020)."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.config import PositiveFloat, PositiveInt, Share, UserError
from transformer_jax.contracts.model import Inputs
from transformer_jax.contracts.task import Context, Loss
from transformer_jax.data.speech import MaskedRows, Masking
from transformer_jax.families.wav2vec2 import Predictions
from transformer_jax.families.wav2vec2.speech import SpeechTask

_EPSILON = 1e-7  # keeps the logarithm of an unused code finite
_EXCLUDED = -1e9  # the logit of a distractor that equals the true code: its exp is 0


@dataclasses.dataclass
class MaskedSpeech(SpeechTask):
    """The contrastive loss and the diversity loss of wav2vec 2.0 (section 3).

    The hidden state of a masked frame identifies the quantized features of this frame among those
    of other masked frames of the utterance, the distractors. A row is a crop that is drawn anew in
    each epoch. The usage of codes is measured in a microbatch, where the published code measures it
    on one device.

    "loss" and "accuracy" belong to the contrastive loss, and "codes_used" is the perplexity of the
    codes, summed over the codebooks.
    """

    # The diversity loss is not a sum over rows: it is an entropy of the whole microbatch.
    sums_over_rows = False

    masked: Share = 0.65  # total length of the masked spans, which overlap, as a share of a row
    span: PositiveInt = 10  # frames of a masked span
    distractors: PositiveInt = 100  # distractors of each masked frame
    similarity_temperature: PositiveFloat = 0.1  # divisor of the similarities
    diversity_weight: float = 0.1  # weight of the diversity loss
    power_weight: float = 0.0  # weight of the mean square of the features
    temperature: PositiveFloat = 2.0  # initial temperature of the Gumbel softmax
    least_temperature: PositiveFloat = 0.5  # lower limit of the temperature
    temperature_decay: Share = 0.999995  # factor of the temperature per update

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

    @property
    def masking(self) -> Masking:
        # At least two spans, as in the published code.
        return Masking(self.masked, self.span, least=2)

    def component(self, records):
        return MaskedRows(
            records,
            seed=self.config.data.seed,
            samples=self.samples,
            windows=self.model.windows,
            masking=self.masking,
            num_distractors=self.distractors,
            normalize=self.model.normalize,
        )

    def batch_spec(self, row_shape: int):
        most = self.masking.most(self.frames)
        shapes = {"masked": (self.frames,), "distractors": (most, self.distractors)}
        return self.spec_of_rows(shapes | dict.fromkeys(("masked_positions", "weights"), (most,)))

    def init(self, rng):
        sound, positions = jnp.zeros((1, self.samples)), jnp.zeros((1, 2), jnp.int32)
        return self.model.init(rng, sound, positions, method="predictions")["params"]

    def weights(self, batch):
        count = batch["weights"].sum().astype(jnp.float32)
        return dict.fromkeys(self.coefficients, count)

    def loss(self, params, batch, context: Context) -> Loss:
        predicted = self._predicted(params, batch, context)
        logits = _logits(predicted, batch["distractors"], self.similarity_temperature)
        weights = batch["weights"].astype(jnp.float32)
        losses = jax.nn.logsumexp(logits, axis=-1) - logits[..., 0]
        # A tie is not right: a model whose similarities are all equal would else have accuracy 1.
        right = (logits[..., 1:] < logits[..., :1]).all(axis=-1)
        count = batch["weights"].sum(dtype=jnp.int32)
        used = _perplexity(predicted.quantized.probabilities, weights)
        codes = self.model.codebooks * self.model.codes
        # The diversity and the power are means over the microbatch. They are multiplied by its
        # number of masked frames, because every term is later divided by the number in the batch.
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
            annealed = self.temperature * self.temperature_decay ** context.step.astype(jnp.float32)
            temperature = jnp.maximum(annealed, self.least_temperature)
        return self.model.apply(
            {"params": params},
            Inputs(sound=batch["sound"], lengths=batch["length"], masked=batch["masked"]),
            batch["masked_positions"],
            temperature=temperature,
            train=context.train,
            method="predictions",
            **options,
        )

    def flops(self, row_shape: int = 0) -> float:
        # The factor 3, because a backward pass costs two forward passes.
        return 3 * self.model.flops(self.samples, self.masking.most(self.frames))


def _logits(
    predicted: Predictions, distractors: Int[Array, "B P K"], temperature: float
) -> Float[Array, "B P N"]:
    """Returns the logits of the true codes and of K distractors (B, P, K + 1) (equation 3).

    A distractor with the same codes as the true frame is excluded, because it is not wrong.
    """
    # All pairs are compared in one product, because gathering the vectors of the distractors first
    # would make an array (B, P, K, E).
    similar = jnp.einsum("bpe,bqe->bpq", _unit(predicted.contexts), _unit(predicted.targets))
    similar = similar / temperature
    entries = predicted.quantized.entries
    same: Bool[Array, "B P P"] = (entries[:, :, None] == entries[:, None]).all(axis=-1)
    true = jnp.diagonal(similar, axis1=1, axis2=2)[..., None]
    others = jnp.take_along_axis(jnp.where(same, _EXCLUDED, similar), distractors, axis=2)
    return jnp.concatenate([true, others], axis=-1)


def _unit(x: Float[Array, "B P E"]) -> Float[Array, "B P E"]:
    """Returns the vectors normalized to length 1. A vector that is almost 0 remains so."""
    square = jnp.square(x).sum(axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.maximum(square, 1e-16))


def _perplexity(
    probabilities: Float[Array, "B P G V"], weights: Float[Array, "B P"]
) -> Float[Array, ""]:
    """Returns the perplexity of the mean distribution of each codebook, summed (equation 4)."""
    mean = jnp.einsum("bpgv,bp->gv", probabilities, weights) / jnp.maximum(weights.sum(), 1)
    entropy = -jnp.sum(mean * jnp.log(mean + _EPSILON), axis=-1)
    return jnp.exp(entropy).sum()
