"""Word vectors from co-occurrence counts (Pennington et al. 2014)."""

import dataclasses
from functools import cached_property
from typing import Annotated

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.config import PositiveInt, Range, UserError, build_model
from transformer_jax.contracts.task import Context, Loss
from transformer_jax.families.word_vectors.word_contexts import WordPairs
from transformer_jax.families.word_vectors.words import WordTask


@dataclasses.dataclass
class GloVeTask(WordTask):
    """Weighted least squares on the logarithms of the co-occurrence counts (equation 8)."""

    window: PositiveInt = 10  # words on each side that co-occur, each counted as 1 / distance
    # count from which all pairs have the same weight
    most: Annotated[float, Range(least=1)] = 100.0
    power: float = 0.75  # exponent of smaller counts in their weight
    length: PositiveInt = 8192  # pairs of a row

    def __post_init__(self):
        self.model = build_model(self.config)
        self.coefficients = {"loss": 0.5}  # as in the published code
        if "cooccur" not in self.model.can:
            raise UserError(
                f"config.model.name={self.config.model.name!r}: predicts no co-occurrence counts; "
                "take glove"
            )

    @cached_property
    def texts(self) -> WordPairs:
        return WordPairs(
            self.config, length=self.length, window=self.window, vocab_size=self.model.vocab_size
        )

    def batch_spec(self, row_shape: int):
        spec = self.int32_spec(dict.fromkeys(("first", "second"), (self.length,)))
        counts = jax.ShapeDtypeStruct(spec["first"].shape, jnp.float32)
        return spec | {"counts": counts}

    def init(self, rng):
        one = jnp.zeros((1, 1), jnp.int32)
        return self.model.init(rng, one, one, method="log_counts")["params"]

    def weights(self, batch):
        # The loss is a sum over pairs, not a mean, because AdaGrad's accumulator starts at 1 and is
        # meant for gradients of single pairs.
        return {"loss": jnp.float32(1)}

    def loss(self, params, batch, context: Context) -> Loss:
        counts: Float[Array, "B N"] = batch["counts"]
        predicted = self.model.apply(
            {"params": params}, batch["first"], batch["second"], method="log_counts"
        )
        is_pair = counts > 0
        # A position that pads a row has the count 0, whose logarithm must not be computed even
        # though its weight is 0, because 0 * inf is NaN.
        weights = jnp.where(is_pair, jnp.minimum(1, (counts / self.most) ** self.power), 0)
        errors = predicted - jnp.log(jnp.where(is_pair, counts, 1))
        loss = jnp.sum(weights * errors**2)
        num_pairs = is_pair.sum(dtype=jnp.int32)
        metrics = {"loss": (loss, num_pairs), "filled": (num_pairs, jnp.int32(counts.size))}
        return Loss({"loss": loss}, metrics)

    def flops(self, row_shape: int = 0) -> float:
        return 3 * 2.0 * self.length * self.model.d_model
