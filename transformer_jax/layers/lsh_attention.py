"""LSH attention: attention to the tokens of the same bucket (Kitaev et al. 2020, section 2).

Locality-sensitive hashing assigns vectors of similar directions to the same bucket. A row is sorted
by its buckets and divided into chunks.
"""

import math
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt16

from transformer_jax.layers import activations
from transformer_jax.layers.attention import Attention
from transformer_jax.layers.chunked_attention import HIDDEN, Positions, attend, pairs, segments_of
from transformer_jax.layers.masks import Mask, dot_product, padded

# The score of a token's own key. Since queries and keys share a projection, this score would be the
# highest one. With this value, a token attends to itself only if it sees no other token.
_SELF = -1e5

Rotations = Float[Array, "H D R N"]
# The number of buckets is at most 65,536, so that a bucket takes two bytes. Reversible layers save
# the buckets of all layers.
Buckets = UInt16[Array, "B H R L"]


class LSHAttention(Attention):
    """Causal attention within buckets: (B, L, M) -> (B, L, M), and the buckets.

    The keys are the queries scaled to unit length. In each round of hashing, a query belongs to a
    bucket and sees the last `chunk` keys of this bucket, up to its own. The weights of a key that
    is visible in several rounds add up. The outputs do not depend on later tokens.

    With `across_buckets`, a query sees all keys of its own chunk and of the previous one, even
    those of other buckets, and a row that fits into one chunk is not hashed. This is what the
    paper's code computes, although the boundaries of the chunks then depend on later tokens.

    In training, the `rotations` are drawn for each call; otherwise they are always the same. If
    `buckets` from an earlier call are given, the queries are not hashed, which is how the backward
    pass of reversible layers recomputes the same output.
    """

    chunk: int = 64
    rounds: int = 1
    # Factors of the number of buckets, all even.
    num_buckets: tuple[int, ...] = (64,)
    across_buckets: bool = False

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B L M"],
        *,
        mask: Mask,
        rotations: Rotations | None = None,
        buckets: Buckets | None = None,
        train: bool = False,
        decode: int = 0,
    ) -> tuple[Float[Array, "B L M"], Buckets]:
        q = self._project("query_key", x, self.num_heads)  # (B, L, H, D)
        v = self._project("value", x, self.num_heads)
        # In decoding, all calls need the same rotations, because the cache holds buckets of earlier
        # calls.
        key = self.make_rng("dropout") if train else jax.random.key(0)
        dropout = self._weight_dropout(len(x)) if train and self.dropout else None
        if rotations is None:
            rotations = jax.random.normal(key, self._rotations_shape)
        buckets = self._hashed(q, rotations) if buckets is None else buckets
        is_short = self.across_buckets and max(x.shape[1], decode) <= self.chunk
        if is_short:
            buckets = jnp.zeros_like(buckets[:, :, :1])
        is_first = not self.has_variable("cache", "keys")
        if decode:
            keys, values, key_buckets = self._cached(q, v, buckets, mask, decode)
        # A prompt may be long, so it is read in chunks, like any row. Later tokens attend to the
        # cache, with a bias that gives the same result.
        if decode and not (is_first and x.shape[1] > 1):
            bias = self._bias(buckets, key_buckets, mask.slots(x.shape[1]))
            y = dot_product(q, _unit(keys), values, mask, bias=bias, scale=1.0)
        else:
            y = self._by_chunks(q, v, buckets, mask, dropout)
        return self._merged(activations.named(self, "heads", y), x.shape[-1]), buckets

    @property
    def _rotations_shape(self) -> tuple[int, ...]:
        return (self.num_heads, self.head_dim, self.rounds, sum(self.num_buckets) // 2)

    def _hashed(self, q: Float[Array, "B L H D"], rotations: Rotations) -> Buckets:
        """Returns argmax [q R; -q R], one digit for each factor of the number of buckets."""
        # Buckets have no gradient. In bfloat16, many products would tie, and argmax would then
        # prefer the first buckets.
        q = jax.lax.stop_gradient(q).astype(jnp.float32)

        def on_round(rotations):  # (H, D, N)
            rotated = jnp.einsum("blhd,hdn->bhln", q, rotations)
            buckets, step, start = 0, 1, 0
            for factor in self.num_buckets:
                part = rotated[..., start : start + factor // 2]
                digit = jnp.argmax(jnp.concatenate([part, -part], axis=-1), axis=-1)
                buckets += step * digit
                step, start = step * factor, start + factor // 2
            return buckets.astype(jnp.uint16)

        # The rounds are mapped one at a time, because the rotated queries (B, H, L, N) are far
        # larger than the buckets.
        by_round = jax.lax.map(on_round, jnp.moveaxis(rotations, 2, 0))  # (R, B, H, L)
        return jnp.moveaxis(by_round, 0, 2)

    def _by_chunks(
        self,
        q: Float[Array, "B L H D"],
        v: Float[Array, "B L H D"],
        buckets: Buckets,
        mask,
        dropout,
    ) -> Float[Array, "B L H D"]:
        length = q.shape[1]
        size = min(self.chunk, length)
        segments = segments_of(mask, length, size)[:, :, None]  # (B, 1, 1, N)
        buckets = jnp.pad(buckets, [(0, 0)] * 3 + [(0, segments.shape[3] - length)])
        # The segment is the leading digit, so that sorting keeps the texts of a packed row apart.
        groups = segments * math.prod(self.num_buckets) + buckets  # (B, H, R, N)
        # The sort is stable, so that the tokens of a bucket stay in the order of the row.
        order = jnp.argsort(groups, axis=-1, stable=True)
        inverse = jnp.argsort(order, axis=-1)

        def in_order(x):  # (B, L, H, D) -> (B, H, R N, D)
            by_head = padded(x, -length % size).swapaxes(1, 2)[:, :, None]
            by_round = jnp.broadcast_to(by_head, (*order.shape, by_head.shape[-1]))
            return _permuted(by_round, order, inverse).reshape(*order.shape[:2], -1, x.shape[-1])

        def flat(x):  # (B, H or 1, R or 1, N) -> (B, H, R N), in the order of the groups
            by_round = jnp.broadcast_to(x, order.shape)
            return jnp.take_along_axis(by_round, order, axis=-1).reshape(*order.shape[:2], -1)

        # Groups of different rounds get different numbers, because all rounds are concatenated and
        # a chunk may span two of them.
        offsets = (groups.max() + 1) * jnp.arange(order.shape[2])[:, None]
        slots = order.reshape(*order.shape[:2], -1)
        ranks = jnp.arange(slots.shape[2])[None, None]
        positions = Positions(slots, flat(segments), flat(groups + offsets), ranks)
        arrays = (in_order(q), in_order(_unit(q)), in_order(v))
        y, sums = attend(arrays, positions, partial(self._masked, size), size=size, dropout=dropout)
        y = _permuted(y.reshape(*order.shape, -1), inverse, order)
        sums = jnp.take_along_axis(sums.reshape(order.shape), inverse, axis=-1)
        # Each round counts by its sum of exp(score), which merges the rounds into one softmax over
        # all of their keys.
        shares = jax.nn.softmax(sums, axis=2)[..., None].astype(y.dtype)
        return (shares * y).sum(axis=2).swapaxes(1, 2)[:, :length]

    def _masked(self, size: int, scores, queries: Positions, keys: Positions):
        visible = queries.sees(keys)
        if not self.across_buckets:
            distance = pairs(jnp.subtract, queries.ranks, keys.ranks)
            # With these conditions, visibility does not depend on the boundaries of the chunks,
            # which later tokens would move.
            visible &= pairs(jnp.equal, queries.groups, keys.groups)
            visible &= (distance >= 0) & (distance < size)
        scores = jnp.where(pairs(jnp.equal, queries.slots, keys.slots), _SELF, scores)
        return jnp.where(visible, scores, HIDDEN)

    def _cached(self, q, v, buckets: Buckets, mask: Mask, decode: int):
        slots = mask.query_slots
        keys = self._update_cache("keys", q, slots, decode)
        values = self._update_cache("values", v, slots, decode)
        by_slot = self._update_cache("buckets", jnp.moveaxis(buckets, 3, 1), slots, decode)
        return keys, values, jnp.moveaxis(by_slot, 1, 3)

    def _bias(
        self,
        buckets: UInt16[Array, "B H R Q"],
        key_buckets: UInt16[Array, "B H R K"],
        slots: Int[Array, "#B Q"],
    ) -> Float[Array, "B H Q K"]:
        """Returns the logarithm of the number of rounds in which a query sees a cached key.

        As a bias of the scores, it multiplies the weight of a key by the number of rounds.
        """
        keys = jnp.arange(key_buckets.shape[3])[None]
        is_before = pairs(jnp.greater_equal, slots, keys)[:, None, None]  # (B, 1, 1, Q, K)
        is_own = pairs(jnp.equal, buckets, key_buckets) & is_before
        # The number of keys of the same bucket between each key and the query, because in chunks a
        # query sees only the last ones of its bucket.
        later = jnp.cumsum(is_own[..., ::-1], axis=-1)[..., ::-1] - is_own
        rounds = (is_own & (later < self.chunk)).sum(axis=2)  # (B, H, Q, K)
        bias = jnp.where(rounds > 0, jnp.log(jnp.maximum(rounds, 1)), HIDDEN)
        is_self = pairs(jnp.equal, slots, keys)[:, None]
        return jnp.where(is_self, _SELF, bias)


def _unit(q: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
    """Returns vectors scaled to length 1."""
    x = q.astype(jnp.float32)
    mean = jnp.square(x).mean(axis=-1, keepdims=True)
    # Without the epsilon, the zeros of an empty slot in the cache would become 0 * inf = NaN.
    return (x * jax.lax.rsqrt(mean + 1e-6) / x.shape[-1] ** 0.5).astype(q.dtype)


@jax.custom_vjp
def _permuted(x: Float[Array, "*B N D"], order: Int[Array, "*B N"], inverse: Int[Array, "*B N"]):
    """Returns x permuted by `order`.

    The gradient is a gather by `inverse`, because the scatter that JAX would use is slow on a CPU.
    """
    return jnp.take_along_axis(x, order[..., None], axis=-2)


def _permuted_forward(x, order, inverse):
    return _permuted(x, order, inverse), (order, inverse)


def _permuted_backward(orders, gradient):
    order, inverse = orders
    return _permuted(gradient, inverse, order), None, None


_permuted.defvjp(_permuted_forward, _permuted_backward)
