"""Relative attention with a memory of earlier segments, and attention with residual scores."""

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
# Positions must be relative, because a remembered key is at another position in each later row
# (section 3.3). XLNet adds a second stream of queries and relative segment encodings (Yang et al.
# 2019, section 2).


@struct.dataclass
class Relations:
    """The relations of queries to keys, which all layers of a stack share.

    The keys are the memory of earlier rows followed by the row itself.
    """

    # The result of `encoded_distances`.
    encodings: Float[Array, "N M"]
    # Whether query and key belong to the same segment, for relative segment encodings.
    same_segment: Bool[Array, "B Q K"] | None = None
    # Positions in the row of further queries, which follow the row and are not keys.
    targets: Int[Array, "B P"] | None = None
    # The number of positions at the start of the row that are stored in the memory.
    remembered: int = struct.field(pytree_node=False, default=0)


def encoded_distances(length: int, memory: int, features: int) -> Float[Array, "N M"]:
    """Returns sinusoidal encodings of the distances from the queries of a row back to the keys.

    The distances descend from memory + length - 1 to 1 - length. The first half of the columns
    holds sines, the second half cosines, as in the published code of Dai et al. 2019.
    """
    distances = jnp.arange(memory + length - 1, -length, -1)
    rates = 10_000.0 ** (-jnp.arange(0, features, 2) / features)  # (M / 2,)
    angles = distances[:, None] * rates
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


class RelativeAttention(Attention):
    """Attention whose scores depend on content and on distance: (B, Q, M) -> (B, Q, M).

    The score of query i and key j is ((q_i + u) k_j + (q_i + v) r_{i-j}) / sqrt(D), where r is a
    projection of the encoded distance, and u and v are learned. With `segments`, (q_i + w) s is
    added before the division, where w is learned and s is one of two learned vectors, depending on
    whether both tokens belong to the same segment.

    If the collection "state" holds a "memory" (B, K - L, M), the keys start with it. The call then
    appends the first `remembered` positions of x to the memory and drops as many of its oldest
    ones. No gradient flows into the memory.
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
        # The bias is scaled here, because `dot_product` scales the product of queries and keys
        # only.
        y = attention.dot_product(
            q, k, v, mask, dropout, bias=bias * scale, scale=scale, observe=observe
        )
        return self._merged(activations.named(self, "heads", y), x.shape[-1])

    def _with_memory(self, row: Float[Array, "B L M"], remembered: int) -> Float[Array, "B K M"]:
        """Returns the memory followed by the row, and updates the memory."""
        if not self.has_variable("state", "memory"):
            return row
        # Gradients end here, because the activations that led to the memory were freed with their
        # update (section 3.2).
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
        # Targets have slices of their own, because they are at arbitrary positions instead of being
        # shifted by one from query to query.
        target_scores = _shifted_to(scores[:, :, length:], length - 1 - relations.targets, keys)
        return jnp.concatenate([by_distance, target_scores], axis=2)

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
        init = declared(self.kernel_init, ("heads", "head_dim"), query_power=0.5)
        return self.param(name, init, (self.num_heads, self.head_dim)).astype(dtype)


def shifted(scores: Float[Array, "B H L N"], keys: int) -> Float[Array, "B H L K"]:
    """Returns the scores of each key, given those of N = L + K - 1 descending distances.

    Query i is at key K - L + i, so its scores start at column L - 1 - i. Padding the rows by one
    column and reshaping shifts each query by one column more than the query before, without a
    gather (Dai et al. 2019, appendix B).
    """
    batch, heads, length, count = scores.shape
    longer = jnp.pad(scores, ((0, 0), (0, 0), (0, 0), (0, 1)))
    flat = longer.reshape(batch, heads, -1)[..., length - 1 : -1]
    return flat.reshape(batch, heads, length, count)[..., :keys]


def _shifted_to(
    scores: Float[Array, "B H P N"], starts: Int[Array, "B P"], keys: int
) -> Float[Array, "B H P K"]:
    """Returns K columns of the scores of each query, from its own start."""

    def part(scores, start):
        return jax.lax.dynamic_slice_in_dim(scores, start, keys, axis=-1)  # (H, K)

    parts = jax.vmap(jax.vmap(part, in_axes=(1, 0), out_axes=1))
    return parts(scores, starts)


# --------------------------------------------------------------------------------------------------
# Attention whose scores are added to those of the layer below (He et al. 2020, section 3).
#
# Every layer needs the whole score matrix of the layer below, so that none of the other kernels
# serves.

# The hidden states of a layer, and its scores before the mask. The scores are float32, because they
# are a sum over all layers below.
Carried = tuple[Float[Array, "B L M"], Float[Array, "B H L L"]]


class ResidualAttention(Attention):
    """Self-attention with residual scores: (B, L, M) and scores of the layer below -> the same.

    The scores are S = q k^T scale + S', where S' are the scores of the layer below. The layer above
    receives S before the mask is applied, because the large negative scores of hidden keys would
    otherwise add up.
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
    """Residual attention and MLP in post-LN: (hidden states, scores) -> (hidden states, scores)."""

    # Constructors, to which the model has bound all options but the name.
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
