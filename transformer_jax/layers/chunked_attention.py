"""Causal attention by chunks: a query sees the keys of its chunk and of the chunk before."""

from collections.abc import Callable
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Shaped

from transformer_jax.layers import activations
from transformer_jax.layers.attention import Attention
from transformer_jax.layers.masks import Mask, dot_product, padded
from transformer_jax.layers.recurrent import WeightDropout

# The score of a hidden key.
HIDDEN = -1e9


@struct.dataclass
class Places:
    """The places of queries or keys (B, H or 1, ..., N)."""

    slots: Int[Array, "*B N"]  # in the row
    segments: Int[Array, "*B N"]  # ids of examples; 0 is padding
    groups: Int[Array, "*B N"] | None = None  # numbers of buckets, different in each round
    ranks: Int[Array, "*B N"] | None = None  # in the order of the chunks

    def sees(self, keys: "Places") -> Bool[Array, "*B Q K"]:
        """Returns whether queries at these places see keys, by slots and by segments."""
        is_before = pairs(jnp.greater_equal, self.slots, keys.slots)
        is_own = pairs(jnp.equal, self.segments, keys.segments)
        return is_before & is_own & (keys.segments > 0)[..., None, :]


def pairs(
    relation: Callable,
    queries: Shaped[Array, "*#B Q"],
    keys: Shaped[Array, "*#B K"],
) -> Shaped[Array, "*B Q K"]:
    """Returns relation(query, key) of all queries and keys (..., Q, K)."""
    return relation(queries[..., :, None], keys[..., None, :])


def attend(
    arrays: tuple[Float[Array, "B H N D"], Float[Array, "B H N D"], Float[Array, "B H N D"]],
    places: Places,
    masked: Callable,
    *,
    size: int,
    dropout: WeightDropout | None = None,
) -> tuple[Float[Array, "B H N D"], Float[Array, "B H N"]]:
    """Returns the outputs of queries, keys and values in chunks, and the logarithms of their sums.

    A chunk has `size` places, and N is a multiple of it. The first chunk comes after the last one.
    `masked(scores, query_places, key_places)` returns the scores (..., Q, K) with the mask. The
    logarithm of the sum of exp(score) serves to merge several outputs of a query.
    """
    length = arrays[0].shape[2]
    queries, keys, values = (_chunks(x, size, axis=2) for x in arrays)  # (B, H, C, S, D)
    query_places = jax.tree.map(partial(_chunks, size=size, axis=-1), places)
    key_places = query_places
    if length > size:
        keys, values = _with_last(keys, axis=3), _with_last(values, axis=3)
        key_places = jax.tree.map(partial(_with_last, axis=-1), query_places)
    scores = jnp.einsum("bhcqd,bhckd->bhcqk", queries, keys, preferred_element_type=jnp.float32)
    scores = masked(scores, query_places, key_places)
    # Of the scores of hidden keys, the logarithm of the sum has few digits. The weights have all.
    weights = jax.nn.softmax(scores, axis=-1)
    sums = jax.nn.logsumexp(scores, axis=-1)
    if dropout is not None:
        slots = query_places.slots[..., :, None], key_places.slots[..., None, :]
        weights = dropout.drop(weights, *slots)
    y = jnp.einsum("bhcqk,bhckd->bhcqd", weights.astype(values.dtype), values)
    return y.reshape(*y.shape[:2], length, -1), sums.reshape(*y.shape[:2], length)


def _chunks(x: Shaped[Array, "..."], size: int, axis: int) -> Shaped[Array, "..."]:
    """Returns x with the places of its axis in chunks (..., C, S, ...)."""
    axis %= x.ndim
    return x.reshape(*x.shape[:axis], -1, size, *x.shape[axis + 1 :])


def _with_last(x: Shaped[Array, "..."], axis: int) -> Shaped[Array, "..."]:
    """Returns chunks (..., C, S, ...) behind those before; `axis` is that of S."""
    axis %= x.ndim
    return jnp.concatenate([jnp.roll(x, 1, axis=axis - 1), x], axis=axis)


def segments_of(mask: Mask, length: int, size: int) -> Int[Array, "B 1 N"]:
    """Returns the segments of a row of `length`, padded to a multiple of `size`.

    Raises ValueError for a mask with other conditions.
    """
    if not mask.conditions() <= {"causal", "query_segments", "key_segments", "query_slots"}:
        raise ValueError(f"chunks of a causal row do not take {sorted(mask.conditions())}")
    segments = mask.key_segments
    segments = jnp.ones((1, length), jnp.int32) if segments is None else jnp.asarray(segments)
    return padded(segments, -length % size)[:, None]


class LocalAttention(Attention):
    """Attention to a chunk of the row and the chunk before: (B, L, M) -> (B, L, M), and None.

    The rotations are those of LSH attention, and change nothing here. There are no buckets.
    """

    chunk: int = 64

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B L M"],
        *,
        mask: Mask,
        rotations: Array | None = None,
        buckets: None = None,
        train: bool = False,
        decode: int = 0,
    ) -> tuple[Float[Array, "B L M"], None]:
        project = partial(self._project, num_heads=self.num_heads)
        q, k, v = (project(name, x) for name in ("query", "key", "value"))
        dropout = self._weight_dropout(len(x)) if train and self.dropout else None
        if decode:
            k = self._update_cache("keys", k, mask.query_slots, decode)
            v = self._update_cache("values", v, mask.query_slots, decode)
            y = dot_product(q, k, v, mask, bias=self._bias(mask.slots(x.shape[1]), decode))
        else:
            y = self._by_chunks(q, k, v, mask, dropout)
        return self._merged(activations.named(self, "heads", y), x.shape[-1]), None

    def _by_chunks(self, q, k, v, mask: Mask, dropout) -> Float[Array, "B L H D"]:
        length = q.shape[1]
        size = min(self.chunk, length)
        arrays = (padded(x, -length % size).swapaxes(1, 2) for x in (q * self.head_dim**-0.5, k, v))
        segments = segments_of(mask, length, size)
        places = Places(jnp.arange(segments.shape[2])[None, None], segments)

        def masked(scores, queries, keys):
            return jnp.where(queries.sees(keys), scores, HIDDEN)

        y, _ = attend(tuple(arrays), places, masked, size=size, dropout=dropout)
        return y.swapaxes(1, 2)[:, :length]

    def _bias(self, slots: Int[Array, "#B Q"], num_slots: int) -> Float[Array, "#B 1 Q K"]:
        """Returns a bias that hides the keys before the last two chunks of each query."""
        keys = jnp.arange(num_slots)[None]
        is_near = pairs(jnp.less_equal, slots // self.chunk, keys // self.chunk + 1)
        return jnp.where(is_near, 0.0, HIDDEN)[:, None]
