"""Causal attention to two sparse sets of keys (Child et al. 2019, sections 4.2 and 4.3).

If the stride is about the square root of the length L, each set has about that many keys as well,
and time grows with L (stride + L / stride) instead of L^2.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Shaped

from transformer_jax.layers import activations, attention, recurrent
from transformer_jax.layers.attention import Attention
from transformer_jax.layers.masks import (
    Keys,
    Mask,
    Queries,
    at,
    dot_product,
    padded,
    positions_in_segments,
)
from transformer_jax.layers.recurrent import WeightDropout

# The sets of keys to which the heads of a layer attend: the three ways in which the paper combines
# near and far keys (section 5.1). Layers alternate between "near" and "far", all heads attend to
# "both", or with "split" the first half of the heads attends to near keys, the second half to far
# keys.
Attends = Literal["near", "far", "both", "split"]


@dataclasses.dataclass(frozen=True)
class Pattern:
    """The near and far keys of a query (section 4.3). Positions count from 0 in each text.

    strided: near keys are the last `stride` positions. Far keys are at distances of 0, `stride`, 2
      `stride` and so on.
    fixed: a text is divided into blocks of `stride` positions. Near keys are those of the query's
      own block. Far keys are the last `num_summaries` positions of each block.

    The methods take positions of queries and keys. They do not hide later keys, which is left to
    the causal mask.
    """

    name: Literal["strided", "fixed"]
    stride: int
    num_summaries: int = 1

    def near(self, queries: Int[Array, "*#A"], keys: Int[Array, "*#A"]) -> Bool[Array, "*#A"]:
        """Returns whether a key is near."""
        if self.name == "strided":
            return queries - keys < self.stride
        return queries // self.stride == keys // self.stride

    def far(self, queries: Int[Array, "*#A"], keys: Int[Array, "*#A"]) -> Bool[Array, "*#A"]:
        """Returns whether a key is far."""
        if self.name == "strided":
            return (queries - keys) % self.stride == 0
        return self.is_summary(keys)

    def is_summary(self, positions: Int[Array, "*A"]) -> Bool[Array, "*A"]:
        """Returns whether a position of the fixed pattern is a far key of later blocks."""
        return positions % self.stride >= self.stride - self.num_summaries

    def first_near(self, positions: Int[Array, "*A"]) -> Int[Array, "*A"]:
        """Returns the position of a query's first near key, which may be before the text."""
        if self.name == "strided":
            return positions - self.stride + 1
        return positions - positions % self.stride

    def num_pairs(self, length: int, attends: Attends) -> float:
        """Returns the number of visible (query, key) pairs, averaged over the heads."""
        block, offset = np.divmod(np.arange(length), self.stride)
        if self.name == "strided":
            near = np.where(block > 0, self.stride, offset + 1)
            earlier, own = block, 1
        else:
            near = offset + 1
            earlier = block * self.num_summaries
            own = np.maximum(near - (self.stride - self.num_summaries), 0)
        far = earlier + own
        # "both" counts only the far keys of earlier blocks, because the far keys of the query's own
        # block are near keys as well.
        pairs = {"near": near, "far": far, "both": near + earlier, "split": (near + far) / 2}
        return float(pairs[attends].sum())


# The score of a hidden key. It is finite, because the softmax over scores that are all -inf is NaN.
_HIDDEN = jnp.finfo(jnp.float32).min
# Draws the dropout of attention weights for a number of rows and heads; None: no dropout. It is a
# function, because blocks and columns become rows of a larger batch, whose size only the code below
# knows.
Drawn = Callable[[int, int], WeightDropout | None]


class SparseAttention(Attention):
    """Causal self-attention along a sparse pattern: (B, L, M) -> (B, L, M).

    In a packed row, the pattern restarts with each text. The output of a query without visible keys
    is zero, which occurs in the first block of the fixed pattern if there is no far key yet. The
    scores of all keys are computed in decoding, and when the attention weights are captured.
    """

    pattern: Pattern = Pattern("strided", 128)
    attends: Attends = "both"

    @nn.compact
    def __call__(
        self, x: Float[Array, "B L M"], *, mask: Mask, train: bool = False, decode: int = 0
    ) -> Float[Array, "B L M"]:
        q, k, v = (
            activations.named(self, plural, self._project(name, x, self.num_heads))
            for name, plural in (("query", "queries"), ("key", "keys"), ("value", "values"))
        )
        if decode:
            k = self._update_cache("keys", k, mask.query_slots, decode)
            v = self._update_cache("values", v, mask.query_slots, decode)

        def drawn(rows: int, heads: int) -> WeightDropout | None:
            if not train or not self.dropout:
                return None
            return recurrent.drawn(self.make_rng("dropout"), self.dropout, rows, heads)

        options = dict(attends=self.attends, drawn=drawn)
        if decode or activations.requested(self, "weights"):
            observe = partial(activations.named, self, "weights")
            y = dense(q, k, v, mask, self.pattern, observe=observe, **options)
        else:
            y = sparse(q, k, v, mask, self.pattern, **options)
        return self._merged(activations.named(self, "heads", y), x.shape[-1])


def dense(
    q: Queries,
    k: Keys,
    v: Keys,
    mask: Mask,
    pattern: Pattern,
    *,
    attends: Attends,
    drawn: Drawn,
    observe: Callable,
) -> Queries:
    """Attention along a pattern that computes the scores of all keys.

    `observe` takes the weights before dropout and returns those to use.
    """
    num_queries, heads, num_keys = *q.shape[1:3], k.shape[1]
    keys = positions_in_segments(mask.key_segments, num_keys)
    queries = keys if mask.query_slots is None else mask.slots(num_queries)
    positions = queries[:, None, :, None], keys[:, None, None]  # (B, 1, Q, 1), (B, 1, 1, K)
    near, far = pattern.near(*positions), pattern.far(*positions)
    match attends:
        case "near":
            visible = near
        case "far":
            visible = far
        case "both":
            visible = near | far
        case "split":
            is_first = jnp.arange(heads)[:, None, None] < heads // 2
            visible = jnp.where(is_first, near, far)
    visible = visible & mask.dense(num_queries, num_keys)
    visible = jnp.broadcast_to(visible, (len(visible), heads, num_queries, num_keys))

    # The hidden scores are finite, so the weights of a query without visible keys would be uniform
    # instead of zero.
    def shown(weights):
        return observe(jnp.where(visible, weights, 0.0))

    # A mask is the same for all heads, but the halves of a split pattern are not, hence the bias.
    bias = jnp.where(visible, 0.0, _HIDDEN)
    return dot_product(q, k, v, Mask(), drawn(len(q), heads), bias=bias, observe=shown)


def sparse(
    q: Queries,
    k: Keys,
    v: Keys,
    mask: Mask,
    pattern: Pattern,
    *,
    attends: Attends,
    drawn: Drawn,
) -> Queries:
    """Attention along a pattern that computes the scores of its keys only.

    The mask is causal, with the same segments for queries and keys.
    """
    length = q.shape[1]
    padding = -length % pattern.stride
    arrays = [padded(x, padding) for x in (q, k, v)]
    # Without segments, the padding needs no mask: it follows all other keys, and the mask is
    # causal.
    segments = padded(mask.key_segments, padding)
    mask = Mask(causal=True, query_segments=segments, key_segments=segments)
    if attends == "split":
        halves = zip(*(jnp.split(x, 2, axis=2) for x in arrays))
        outputs = [
            _to_set(*half, mask, pattern, attends=each, drawn=drawn)
            for half, each in zip(halves, ("near", "far"))
        ]
        return jnp.concatenate(outputs, axis=2)[:, :length]
    return _to_set(*arrays, mask, pattern, attends=attends, drawn=drawn)[:, :length]


def _to_set(q, k, v, mask: Mask, pattern: Pattern, *, attends: Attends, drawn: Drawn) -> Queries:
    """Attention of all heads to the same set of keys. The stride must divide the length."""
    match attends, pattern.name:
        case "near", "strided":
            # Near keys of this pattern are a sliding window, for which there are fused kernels.
            return _attention(q, k, v, mask.replace(window=pattern.stride), drawn)
        case "near", "fixed":
            return _to_own_block(q, k, v, mask, pattern, drawn=drawn)
        case "far", "strided":
            return _to_column(q, k, v, mask, pattern, drawn=drawn)
    return _by_blocks(q, k, v, mask, pattern, with_near=attends == "both", drawn=drawn)


def _attention(q: Queries, k: Keys, v: Keys, mask: Mask, drawn: Drawn) -> Queries:
    """Attention by the fastest kernel for these arrays."""
    dropout = drawn(len(q), q.shape[2])
    kernel = attention.pick(q, k, mask, dropout is not None)
    return kernel(q, k, v, mask, dropout)


def _to_own_block(q, k, v, mask: Mask, pattern: Pattern, *, drawn: Drawn) -> Queries:
    """Attention to the keys of the query's own block."""
    stride, length = pattern.stride, q.shape[1]
    if mask.key_segments is None:
        # Blocks are aligned with the row, so that they can become rows of the batch with an
        # ordinary causal mask.
        blocks = [x.reshape(-1, stride, *x.shape[2:]) for x in (q, k, v)]  # (B L / l, l, H, D)
        return _attention(*blocks, Mask(causal=True), drawn).reshape(q.shape)
    # In a packed row, blocks may start at any slot, so each block becomes a segment.
    first = jnp.arange(length) - positions_in_segments(mask.key_segments, length) % stride
    segments = jnp.where(mask.key_segments > 0, first + 1, 0)
    # No block is longer than `stride`. The window hides nothing, but lets kernels skip other
    # blocks.
    mask = mask.replace(
        window=stride, query_segments=segments, key_segments=segments, padding_last=False
    )
    return _attention(q, k, v, mask, drawn)


def _to_column(q, k, v, mask: Mask, pattern: Pattern, *, drawn: Drawn) -> Queries:
    """Attention to the keys at distances that are multiples of the stride.

    If the slots are written as a matrix with `stride` columns, these are the keys in the query's
    column, so that each column becomes a sequence with ordinary causal attention.
    """
    stride, batch = pattern.stride, len(q)

    def columns(x: Shaped[Array, "B L *axes"] | None) -> Shaped[Array, "C R *axes"] | None:
        if x is None:
            return None
        x = x.reshape(batch, -1, stride, *x.shape[2:]).swapaxes(1, 2)
        return x.reshape(batch * stride, -1, *x.shape[3:])

    segments = columns(mask.key_segments)
    mask = mask.replace(query_segments=segments, key_segments=segments, padding_last=False)
    y = _attention(*(columns(x) for x in (q, k, v)), mask, drawn)
    return y.reshape(batch, stride, -1, *y.shape[2:]).swapaxes(1, 2).reshape(q.shape)


@struct.dataclass
class _Far:
    """The far keys of a row, for all queries or, in a strided pattern, for each column.

    Each key has a slot in the row and a segment.
    """

    keys: Float[Array, "B K H D"] | Float[Array, "B K l H D"]
    values: Float[Array, "B K H D"] | Float[Array, "B K l H D"]
    slots: Int[Array, "#B #l K"]
    segments: Int[Array, "#B #l K"]

    @classmethod
    def of(cls, k: Keys, v: Keys, segments: Int[Array, "#B L"], pattern: Pattern) -> "_Far":
        length, stride = k.shape[1], pattern.stride
        slots = jnp.arange(length)[None]
        if pattern.name == "strided":
            keys, values, slots, segments = (
                x.reshape(len(x), -1, stride, *x.shape[2:]) for x in (k, v, slots, segments)
            )
            return cls(keys, values, slots.swapaxes(1, 2), segments.swapaxes(1, 2))
        # Packed texts have at most as many far keys in total as a single text of the same length.
        count = length // stride * pattern.num_summaries
        is_far = pattern.is_summary(positions_in_segments(segments, length))
        # The number of far keys depends on the texts, but an array needs a fixed size. The stable
        # sort puts far keys first, in the order of the row, and segment 0 hides the keys that fill
        # it up.
        slots = jnp.argsort(~is_far, axis=1, stable=True)[:, :count]
        segments = jnp.where(at(is_far, slots), at(segments, slots), 0)
        keys, values = (at(x, jnp.broadcast_to(slots, (len(x), count))) for x in (k, v))
        return cls(keys, values, slots[:, None], segments[:, None])

    @property
    def axes(self) -> str:
        """The axes of keys and values in an einsum, in which q are the queries of a block."""
        return "bkhd" if self.keys.ndim == 4 else "bkqhd"


def _by_blocks(
    q: Queries,
    k: Keys,
    v: Keys,
    mask: Mask,
    pattern: Pattern,
    *,
    with_near: bool,
    drawn: Drawn,
) -> Queries:
    """Attention to far keys, or to near and far keys with one softmax, by blocks of queries.

    A block of `stride` queries reads all far keys, and the near keys in its own block and the
    previous one. The backward pass recomputes the scores of each block, so that only those of one
    block are in memory.
    """
    length, heads, head_dim = q.shape[1:]
    stride = pattern.stride
    segments = mask.key_segments
    segments = jnp.ones((1, length), jnp.int32) if segments is None else segments
    slots, positions = jnp.arange(length)[None], positions_in_segments(segments, length)
    # Far keys are read before these slots and near keys from these slots on, so that a key that is
    # both near and far counts once.
    limits = slots - positions + pattern.first_near(positions) if with_near else slots + 1
    far = _Far.of(k, v, segments, pattern)
    num_far = far.slots.shape[-1]
    dropout = drawn(len(q), heads)

    @jax.checkpoint
    def on_block(block: dict[str, Array]) -> Queries:
        queries, own_slots = block["queries"] / head_dim**0.5, block["slots"][:, -stride:, None]
        limits, own_segments = block["limits"][..., None], block["segments"][:, -stride:, None]
        visible = [(far.slots < limits) & (far.segments == own_segments)]
        scores = [_float32(f"bqhd,{far.axes}->bhqk", queries, far.keys)]
        if with_near:
            near_slots, near_segments = block["slots"][:, None], block["segments"][:, None]
            is_near = (near_slots >= limits) & (near_slots <= own_slots)
            visible.append(is_near & (near_segments == own_segments))
            scores.append(_float32("bqhd,bkhd->bhqk", queries, block["keys"]))
        is_visible = jnp.concatenate(visible, axis=-1)[:, None]
        shown = jnp.where(is_visible, jnp.concatenate(scores, axis=-1), _HIDDEN)
        # Without visible keys, the softmax of a query would be uniform over all hidden ones.
        weights = jnp.where(is_visible, jax.nn.softmax(shown, axis=-1), 0.0)
        if dropout is not None:
            # The numbers of far and near keys must differ, because dropout is a function of them.
            numbers = jnp.arange(num_far)[None]
            if with_near:
                numbers = jnp.concatenate([numbers, num_far + block["slots"]], axis=1)
            weights = dropout(weights, own_slots[..., 0], numbers)
        weights = weights.astype(v.dtype)
        y = jnp.einsum(f"bhqk,{far.axes}->bqhd", weights[..., :num_far], far.values)
        if with_near:
            y += jnp.einsum("bhqk,bkhd->bqhd", weights[..., num_far:], block["values"])
        return y

    blocks = dict(queries=_blocks(q, stride), limits=_blocks(limits, stride))
    read = dict(slots=slots, segments=segments) | (dict(keys=k, values=v) if with_near else {})
    blocks |= {name: _with_previous(_blocks(x, stride)) for name, x in read.items()}
    return jnp.moveaxis(jax.lax.map(on_block, blocks), 0, 1).reshape(q.shape)


def _float32(equation: str, x: Float[Array, "..."], y: Float[Array, "..."]) -> Float[Array, "..."]:
    return jnp.einsum(equation, x, y, preferred_element_type=jnp.float32)


def _blocks(x: Shaped[Array, "B L *axes"], size: int) -> Shaped[Array, "N B l *axes"]:
    return jnp.moveaxis(x.reshape(len(x), -1, size, *x.shape[2:]), 1, 0)


def _with_previous(blocks: Shaped[Array, "N B l *axes"]) -> Shaped[Array, "N B k *axes"]:
    """Prepends to each block the previous one, and zeros to the first block."""
    # These zeros include the segment ids, so that no query of the first block sees the zero keys.
    previous = jnp.concatenate([jnp.zeros_like(blocks[:1]), blocks[:-1]])
    return jnp.concatenate([previous, blocks], axis=2)
