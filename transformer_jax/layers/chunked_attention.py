"""Causal attention in chunks: a query sees the keys of its own chunk and of the previous one."""

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

# The score of a hidden key. It is finite, because the softmax over scores that are all -inf is NaN.
HIDDEN = -1e9


@struct.dataclass
class Positions:
    """The positions of queries or keys (B, H or 1, ..., N), on which their visibility depends."""

    slots: Int[Array, "*B N"]  # positions in the row
    segments: Int[Array, "*B N"]  # ids of examples; 0 is padding
    groups: Int[Array, "*B N"] | None = None  # buckets, numbered differently in each round
    ranks: Int[Array, "*B N"] | None = None  # positions in the order of the chunks

    def sees(self, keys: "Positions") -> Bool[Array, "*B Q K"]:
        """Returns whether these queries see keys, by slots and by segments."""
        is_before = pairs(jnp.greater_equal, self.slots, keys.slots)
        is_own = pairs(jnp.equal, self.segments, keys.segments)
        return is_before & is_own & (keys.segments > 0)[..., None, :]


def pairs(
    relation: Callable,
    queries: Shaped[Array, "*#B Q"],
    keys: Shaped[Array, "*#B K"],
) -> Shaped[Array, "*B Q K"]:
    """Returns relation(query, key) for all pairs of queries and keys (..., Q, K)."""
    return relation(queries[..., :, None], keys[..., None, :])


def attend(
    arrays: tuple[Float[Array, "B H N D"], Float[Array, "B H N D"], Float[Array, "B H N D"]],
    positions: Positions,
    masked: Callable,
    *,
    size: int,
    dropout: WeightDropout | None = None,
) -> tuple[Float[Array, "B H N D"], Float[Array, "B H N"]]:
    """Attends within chunks; returns the outputs, and the logarithms of the sums of exp(score).

    `arrays` are queries, keys and values. A chunk has `size` positions, of which N is a multiple.
    The chunk before the first one is the last one. `masked(scores, query_positions, key_positions)`
    applies the mask to the scores (..., Q, K). The logarithms of the sums serve to merge several
    outputs of a query.
    """
    length = arrays[0].shape[2]
    queries, keys, values = (_chunks(x, size, axis=2) for x in arrays)  # (B, H, C, S, D)
    query_positions = jax.tree.map(partial(_chunks, size=size, axis=-1), positions)
    key_positions = query_positions
    # A single chunk is also its own previous chunk, so that its keys would count twice.
    if length > size:
        keys, values = _with_last(keys, axis=3), _with_last(values, axis=3)
        key_positions = jax.tree.map(partial(_with_last, axis=-1), query_positions)
    scores = jnp.einsum("bhcqd,bhckd->bhcqk", queries, keys, preferred_element_type=jnp.float32)
    scores = masked(scores, query_positions, key_positions)
    # The weights are not computed as exp(score - sum), because for a query that sees no key the
    # sum is about HIDDEN, where float32 has no digits left for the differences.
    weights = jax.nn.softmax(scores, axis=-1)
    sums = jax.nn.logsumexp(scores, axis=-1)
    if dropout is not None:
        # Dropout depends on the slots of the row, because positions in the chunks change with the
        # sorting of LSH attention.
        slots = query_positions.slots[..., :, None], key_positions.slots[..., None, :]
        weights = dropout.drop(weights, *slots)
    y = jnp.einsum("bhcqk,bhckd->bhcqd", weights.astype(values.dtype), values)
    return y.reshape(*y.shape[:2], length, -1), sums.reshape(*y.shape[:2], length)


def _chunks(x: Shaped[Array, "..."], size: int, axis: int) -> Shaped[Array, "..."]:
    """Splits an axis of x into chunks (..., C, S, ...)."""
    axis %= x.ndim
    return x.reshape(*x.shape[:axis], -1, size, *x.shape[axis + 1 :])


def _with_last(x: Shaped[Array, "..."], axis: int) -> Shaped[Array, "..."]:
    """Prepends to each chunk (..., C, S, ...) the previous one; `axis` is the axis S."""
    axis %= x.ndim
    # The first chunk gets the last one. In local attention, the causal mask hides it.
    return jnp.concatenate([jnp.roll(x, 1, axis=axis - 1), x], axis=axis)


def segments_of(mask: Mask, length: int, size: int) -> Int[Array, "B 1 N"]:
    """Returns the segments of a row of `length`, padded to a multiple of `size`.

    Raises ValueError if the mask has conditions that attention in chunks does not support.
    """
    if not mask.conditions() <= {"causal", "query_segments", "key_segments", "query_slots"}:
        raise ValueError(f"attention in chunks does not support {sorted(mask.conditions())}")
    segments = mask.key_segments
    segments = jnp.ones((1, length), jnp.int32) if segments is None else jnp.asarray(segments)
    return padded(segments, -length % size)[:, None]


class LocalAttention(Attention):
    """Attention to a query's own chunk and the previous one: (B, L, M) -> (B, L, M), and None.

    `rotations` and `buckets` are accepted so that LSH attention and local attention can alternate
    in a stack, but they are not used, and no buckets are returned.
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
            # A new token makes no chunk of its own. The bias hides from it what its chunks would
            # not contain.
            y = dot_product(q, k, v, mask, bias=self._bias(mask.slots(x.shape[1]), decode))
        else:
            y = self._by_chunks(q, k, v, mask, dropout)
        return self._merged(activations.named(self, "heads", y), x.shape[-1]), None

    def _by_chunks(self, q, k, v, mask: Mask, dropout) -> Float[Array, "B L H D"]:
        length = q.shape[1]
        size = min(self.chunk, length)
        arrays = (padded(x, -length % size).swapaxes(1, 2) for x in (q * self.head_dim**-0.5, k, v))
        segments = segments_of(mask, length, size)
        positions = Positions(jnp.arange(segments.shape[2])[None, None], segments)

        def masked(scores, queries, keys):
            return jnp.where(queries.sees(keys), scores, HIDDEN)

        y, _ = attend(tuple(arrays), positions, masked, size=size, dropout=dropout)
        return y.swapaxes(1, 2)[:, :length]

    def _bias(self, slots: Int[Array, "#B Q"], num_slots: int) -> Float[Array, "#B 1 Q K"]:
        """Returns a bias that hides the keys before the previous chunk of each query."""
        keys = jnp.arange(num_slots)[None]
        is_near = pairs(jnp.less_equal, slots // self.chunk, keys // self.chunk + 1)
        return jnp.where(is_near, 0.0, HIDDEN)[:, None]
