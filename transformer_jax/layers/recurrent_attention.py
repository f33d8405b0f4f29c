"""Attention of a recurrent decoder: a score of each source position, and a window of positions."""

import dataclasses
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from transformer_jax.layers import activations, flops
from transformer_jax.layers.embeddings import Bias
from transformer_jax.layers.linear import Linear
from transformer_jax.layers.parameters import declared
from transformer_jax.layers.recurrence import Product, Weights

Score = Literal["content", "additive", "location", "general", "dot", "scaled_dot"]
Window = Literal["all", "monotonic", "predicted"]


@dataclasses.dataclass(frozen=True)
class Attend:
    """Attention in a step of a decoder, for Q queries of each source.

    The scores of a query s and an annotation h are:
      content: softplus(w s) cos(W s, h): a key strength scales the cosine (Graves et al. 2014,
        section 3.3.1)
      additive: v tanh(W s + U h) (Bahdanau et al. 2014, appendix A.1.2)
      location: the component of W s at the source position
      general: s (U h)
      dot: s h (location, general and dot: Luong et al. 2015, section 3.1)
      scaled_dot: s h / sqrt(width) (Vaswani et al. 2017, section 3.2.1)

    The windows are those of Luong et al. 2015, section 3.2. "monotonic" sees `radius` positions on
    both sides of the target's own, "predicted" on both sides of a position that is a function of
    the query, where a Gaussian of deviation radius / 2 scales the weights.
    """

    score: Score
    window: Window
    radius: int

    def __call__(
        self,
        product: Product,
        source: dict[str, Array],
        query: Float[Array, "B Q M"],
        visible: Bool[Array, "B 1 S"],
        target_positions: Float[Array, "B Q"],
    ) -> tuple[Float[Array, "B Q D"], Float[Array, "B Q S"]]:
        """Returns the weighted sums of the annotations, and the weights float32.

        `source` has the arrays of `RecurrentAttention.source`, and its vectors.
        """
        scores = self._scores(product, source, query).astype(jnp.float32)
        positions = source["positions"][:, None]  # (B, 1, S)
        factor = 1.0
        if self.window != "all":
            lengths = visible.sum(axis=-1)  # (B, Q)
            if self.window == "monotonic":
                centre = jnp.minimum(target_positions, lengths - 1.0)
            else:
                hidden = jnp.tanh(product("place", query)).astype(jnp.float32)
                centre = lengths * jax.nn.sigmoid(hidden @ source["place"])
            distance = positions - centre[..., None]
            visible = visible & (jnp.abs(distance) <= self.radius)
            if self.window == "predicted":
                factor = jnp.exp(-2 * (distance / self.radius) ** 2)
        scores = jnp.where(visible, scores, jnp.finfo(jnp.float32).min)
        weights = jax.nn.softmax(scores, axis=-1) * factor
        values = source["values"]
        return jnp.einsum("bqs,bsd->bqd", weights.astype(values.dtype), values), weights

    def _scores(self, product, source, query) -> Float[Array, "B Q S"]:
        match self.score:
            case "content":
                keys = product("query", query)
                keys = keys / (jnp.linalg.norm(keys, axis=-1, keepdims=True) + 1e-6)
                strength = jax.nn.softplus(product("strength", query))  # (B, Q, 1)
                return strength * jnp.einsum("bqd,bsd->bqs", keys, source["keys"])
            case "additive":
                queries = product("query", query)
                sums = jnp.tanh(queries[:, :, None] + source["keys"][:, None])  # (B, Q, S, A)
                return sums @ source["energy"]
            case "location":
                by_position = product("query", query)  # (B, Q, positions)
                positions = source["positions"].astype(jnp.int32)[:, None]
                shape = (*by_position.shape[:2], positions.shape[-1])
                return jnp.take_along_axis(by_position, jnp.broadcast_to(positions, shape), -1)
        scores = jnp.einsum("bqd,bsd->bqs", query, source["keys"])
        return scores * query.shape[-1] ** -0.5 if self.score == "scaled_dot" else scores

    def flops(self, queries: int, keys: int, sizes: tuple[int, int, int]) -> float:
        """Returns the FLOPs over so many queries and keys: two for each multiply-add.

        `sizes` are the widths of a query and an annotation, and the largest number of positions.
        """
        query, width, positions = sizes
        total = 2.0 * queries * keys * width  # the weighted sum
        match self.score:
            case "content":
                total += flops.dense(queries, query, width + 1) + 2 * queries * keys * width
            case "additive":
                total += flops.dense(keys, width, query) + flops.dense(queries, query, query)
                total += 2 * queries * keys * query
            case "location":
                total += flops.dense(queries, query, positions)
            case "general":
                total += flops.dense(keys, width, query) + 2 * queries * keys * query
            case _:
                total += 2 * queries * keys * query
        if self.window == "predicted":
            total += flops.dense(queries, query, query + 1)
        return total


class RecurrentAttention(nn.Module):
    """The parameters of an `Attend`, and its keys, which are computed once for all steps."""

    attend: Attend
    query_width: int
    width: int  # of an annotation
    max_positions: int
    dtype: jnp.dtype = jnp.float32

    def setup(self):
        score = self.attend.score
        key_width = {"additive": self.query_width, "general": self.query_width}.get(score)
        if key_width:
            self.key = self._linear(self.width, key_width, use_bias=False)
        outputs = {
            "content": self.width,
            "additive": self.query_width,
            "location": self.max_positions,
        }.get(score)
        if outputs:
            self.query = self._matrix("query", outputs)
            self.query_bias = Bias(outputs, None)
        if score == "content":
            self.strength = self._matrix("strength", 1)
        if score == "additive":
            self.energy = self._vector("energy")
        if self.attend.window == "predicted":
            self.place = self._matrix("place", self.query_width)
            self.place_energy = self._vector("place_energy")

    def source(
        self, annotations: Float[Array, "B S D"], positions: Int[ArrayLike, "B S"]
    ) -> dict[str, Array]:
        """Returns the arrays (B, S, ...) that all steps see. `positions` count from 0."""
        arrays = {"values": annotations, "positions": jnp.asarray(positions, jnp.float32)}
        match self.attend.score:
            case "content":
                norm = jnp.linalg.norm(annotations, axis=-1, keepdims=True)
                arrays["keys"] = annotations / (norm + 1e-6)
            case "additive" | "general":
                arrays["keys"] = self.key(annotations)
            case "dot" | "scaled_dot":
                arrays["keys"] = annotations
        return arrays

    def vectors(self) -> dict[str, Array]:
        """Returns the vectors that all steps see beside the source."""
        vectors = {}
        if self.attend.score == "additive":
            vectors["energy"] = self.energy.astype(self.dtype)
        if self.attend.window == "predicted":
            vectors["place"] = self.place_energy
        return vectors

    def weights(self) -> Weights:
        """Returns the matrices and biases of the products of a step."""
        weights = {}
        if self.attend.score in ("content", "additive", "location"):
            weights["query"] = (self.query, self.query_bias())
        if self.attend.score == "content":
            weights["strength"] = (self.strength, None)
        if self.attend.window == "predicted":
            weights["place"] = (self.place, None)
        return jax.tree.map(lambda x: x.astype(self.dtype), weights)

    def expose(self, weights: Float[Array, "B T S"]) -> Float[Array, "1 B 1 T S"]:
        """Names the attention weights of all steps, as those of one head of one layer."""
        return activations.named(self, "weights", weights[None, :, None])

    def _linear(self, inputs: int, outputs: int, use_bias: bool) -> Linear:
        axes = ("embed", "mlp")
        return Linear((inputs,), (outputs,), axes, use_bias=use_bias, dtype=self.dtype)

    def _matrix(self, name: str, outputs: int) -> Float[Array, "M O"]:
        init = declared(nn.initializers.xavier_uniform(), ("embed", None), decays=True, inputs=1)
        return self.param(name, init, (self.query_width, outputs), jnp.float32)

    def _vector(self, name: str) -> Float[Array, " A"]:
        init = declared(nn.initializers.normal(self.query_width**-0.5), (None,))
        return self.param(name, init, (self.query_width,), jnp.float32)
