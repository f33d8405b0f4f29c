"""Attention by distance with a memory, and attention with residual scores."""

from collections.abc import Callable
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.distributed import sharding
from transformer_jax.layers import activations, attention
from transformer_jax.layers.attention import Attention
from transformer_jax.layers.masks import Mask
from transformer_jax.layers.parameters import Dropout, Linear, declared

# --------------------------------------------------------------------------------------------------
# Attention by content and by distance, with a memory of earlier rows (Dai et al. 2019, section 3).
#
# XLNet adds a second stream of queries and encodings of segments (Yang et al. 2019, section 2).


@struct.dataclass
class Relations:
    """The relations of queries to keys, which all layers of a stack share.

    The keys are those of a memory of earlier rows, and then those of the row.
    """

    # Those that `encoded_distances` returns.
    encodings: Float[Array, "N M"]
    # Whether query and key are of one segment, for encodings of segments.
    same_segment: Bool[Array, "B Q K"] | None = None
    # Places in the row of further queries, which stand behind the row and are no keys.
    targets: Int[Array, "B P"] | None = None
    # The first positions of the row that the memory takes in.
    remembered: int = struct.field(pytree_node=False, default=0)


def encoded_distances(length: int, memory: int, features: int) -> Float[Array, "N M"]:
    """Returns the sinusoids of the distances from each query of a row back to each key.

    The distances descend from memory + length - 1 to 1 - length. The first half of the columns
    holds sines, the second half cosines (the published code of Dai et al. 2019).
    """
    distances = jnp.arange(memory + length - 1, -length, -1)
    rates = 10_000.0 ** (-jnp.arange(0, features, 2) / features)  # (M / 2,)
    angles = distances[:, None] * rates
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


class RelativeAttention(Attention):
    """Attention whose scores depend on content and on distance: (B, Q, M) -> (B, Q, M).

    The score of query i and key j is (q_i + u) k_j + (q_i + v) r_{i-j}, divided by the root of the
    head's width: r is a projection of the encoded distance, u and v are learned. With `segments`,
    (q_i + w) s is added: w is learned, and so is s, one vector where both are of one segment and
    another where they are not.

    Where the collection "state" holds a "memory" (B, K - L, M), the keys begin with it. The call
    then appends the first `remembered` positions of x to it, and drops as many of the oldest. The
    memory has no gradient.
    """

    segments: bool = False

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B Q M"],
        *,
        mask: Mask,
        relations: Relations,
        train: bool = False,
        decode: int = 0,
    ) -> Float[Array, "B Q M"]:
        targets = relations.targets
        length = x.shape[1] - (0 if targets is None else targets.shape[1])
        source = self._with_memory(x[:, :length], relations.remembered)  # (B, K, M)
        q = activations.named(self, "queries", self._project("query", x, self.num_heads))
        k = activations.named(self, "keys", self._project("key", source, self.num_heads))
        v = activations.named(self, "values", self._project("value", source, self.num_heads))
        scale = self.head_dim**-0.5
        bias = self._by_distance(q, relations, length, source.shape[1])
        if self.segments:
            bias = bias + self._by_segment(q, relations.same_segment)
        dropout = self._weight_dropout(len(x)) if train and self.dropout else None
        observe = partial(activations.named, self, "weights")
        q = q + self._vector("content_bias", q.dtype)
        y = attention.dot_product(
            q, k, v, mask, dropout, bias=bias * scale, scale=scale, observe=observe
        )
        return self._merged(activations.named(self, "heads", y), x.shape[-1])

    def _with_memory(self, row: Float[Array, "B L M"], remembered: int) -> Float[Array, "B K M"]:
        """Returns the memory and the row, and takes the row's first positions into the memory."""
        if not self.has_variable("state", "memory"):
            return row
        memory = jax.lax.stop_gradient(self.get_variable("state", "memory"))
        longer = jnp.concatenate([memory, row[:, :remembered]], axis=1)
        self.put_variable("state", "memory", jax.lax.stop_gradient(longer[:, remembered:]))
        return jnp.concatenate([memory, row], axis=1)

    def _by_distance(
        self, q: Float[Array, "B Q H D"], relations: Relations, length: int, keys: int
    ) -> Float[Array, "B H Q K"]:
        """Returns the scores of the distances, float32."""
        distances = Linear(
            (relations.encodings.shape[-1],),
            (self.num_heads, self.head_dim),
            axes=("embed", "heads", "head_dim"),
            use_bias=False,
            kernel_init=self.kernel_init,
            dtype=self.dtype,
            name="distance",
        )(relations.encodings)  # (N, H, D)
        q = q + self._vector("distance_bias", q.dtype)
        scores = jnp.einsum("bqhd,nhd->bhqn", q, distances, preferred_element_type=jnp.float32)
        by_distance = shifted(scores[:, :, :length], keys)
        if relations.targets is None:
            return by_distance
        of_targets = _shifted_to(scores[:, :, length:], length - 1 - relations.targets, keys)
        return jnp.concatenate([by_distance, of_targets], axis=2)

    def _by_segment(
        self, q: Float[Array, "B Q H D"], same: Bool[Array, "B Q K"]
    ) -> Float[Array, "B H Q K"]:
        """Returns the scores of the segments, float32 (Yang et al. 2019, section 2.5)."""
        init = declared(self.kernel_init, (None, "heads", "head_dim"), decays=True)
        embed = self.param("segment_embed", init, (2, self.num_heads, self.head_dim))
        q = q + self._vector("segment_bias", q.dtype)
        scores = jnp.einsum(
            "bqhd,shd->sbhq", q, embed.astype(q.dtype), preferred_element_type=jnp.float32
        )
        of_same, of_other = scores[..., None]
        return jnp.where(same[:, None], of_same, of_other)

    def _vector(self, name: str, dtype) -> Float[Array, "H D"]:
        """Returns a learned vector for each head, which is added to the queries."""
        init = declared(self.kernel_init, ("heads", "head_dim"))
        return self.param(name, init, (self.num_heads, self.head_dim)).astype(dtype)


def shifted(scores: Float[Array, "B H L N"], keys: int) -> Float[Array, "B H L K"]:
    """Returns the scores of each key, from those of N = L + K - 1 descending distances.

    Query i is at key K - L + i, so its scores begin at column L - 1 - i. A row of one column more
    moves each query by one (Dai et al. 2019, appendix B).
    """
    batch, heads, length, count = scores.shape
    longer = jnp.pad(scores, ((0, 0), (0, 0), (0, 0), (0, 1)))
    flat = longer.reshape(batch, heads, -1)[..., length - 1 : -1]
    return flat.reshape(batch, heads, length, count)[..., :keys]


def _shifted_to(
    scores: Float[Array, "B H P N"], starts: Int[Array, "B P"], keys: int
) -> Float[Array, "B H P K"]:
    """Returns K columns of the scores of each query, from its own start on."""

    def part(scores, start):
        return jax.lax.dynamic_slice_in_dim(scores, start, keys, axis=-1)  # (H, K)

    of_rows = jax.vmap(jax.vmap(part, in_axes=(1, 0), out_axes=1))
    return of_rows(scores, starts)


# --------------------------------------------------------------------------------------------------
# Attention whose scores are added to those of the layer below (He et al. 2020, section 3).

# The states of a layer, and its scores before the mask, float32.
Carried = tuple[Float[Array, "B L M"], Float[Array, "B H L L"]]


class ResidualAttention(Attention):
    """Self-attention: states (B, L, M) and the scores of the layer below -> states and scores.

    The scores are S = q k^T scale + S', with S' those of the layer below. The layer above gets S
    without the mask, which would otherwise add up.
    """

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B L M"],
        *,
        mask: Mask,
        scores: Float[Array, "B H L L"],
        train: bool = False,
    ) -> Carried:
        project = partial(self._project, num_heads=self.num_heads)
        q, k, v = (project(name, x) for name in ("query", "key", "value"))  # (B, L, H, D)
        products = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32)
        scores = products * self.head_dim**-0.5 + scores
        visible = mask.dense(x.shape[1], x.shape[1])
        shown = scores
        if visible is not None:
            shown = jnp.where(visible, scores, jnp.finfo(jnp.float32).min)
        weights = activations.named(self, "weights", jax.nn.softmax(shown, axis=-1))
        if train and self.dropout:
            weights = self._weight_dropout(len(x))(weights)
        y = jnp.einsum("bhqk,bkhd->bqhd", weights.astype(v.dtype), v)
        return self._merged(activations.named(self, "heads", y), x.shape[-1]), scores


class ResidualBlock(nn.Module):
    """Attention and MLP in post-LN: (states, scores) of the layer below -> those of this layer."""

    # Constructors. The model binds their options.
    attention: Callable[..., nn.Module]
    mlp: Callable[..., nn.Module]
    norm: Callable[..., nn.Module]
    dropout: float = 0.0

    @nn.compact
    def __call__(self, carried: Carried, *, mask: Mask, train: bool = False) -> Carried:
        x, scores = carried

        def residual(x, y, name):
            x = self.norm(name=f"{name}_norm")(x + Dropout(self.dropout)(y, train=train))
            return activations.named(
                self, f"after_{name}", sharding.constrain(x, "batch", "length", None)
            )

        x = activations.named(self, "input", x)
        y, scores = self.attention(name="attention")(x, mask=mask, scores=scores, train=train)
        x = residual(x, y, "attention")
        return residual(x, self.mlp(name="mlp")(x, train=train), "mlp"), scores
