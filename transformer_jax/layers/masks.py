"""Attention masks, and attention that materializes the score matrix."""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, ArrayLike, Bool, Float, Int, Shaped

from transformer_jax.distributed import sharding
from transformer_jax.layers.recurrent import WeightDropout

# --------------------------------------------------------------------------------------------------
# A description of the keys that each query attends to. It is no array, so that each kernel can turn
# it into the form that it needs: tiles to skip, segment ids, or a dense mask (B, 1, Q, K).


@struct.dataclass
class Mask:
    """A query attends to a key if all conditions that are set hold; if none is set, to all keys.

    A segment id identifies the example to which a position of a packed row belongs. Id 0 is
    padding, to which no query attends.
    """

    # A query attends to keys at or before its own slot.
    causal: bool = struct.field(pytree_node=False, default=False)
    # () int32. A query attends to keys at a distance below `window`, on both sides or, with
    # `causal`, on its left.
    window: Int[Array, ""] | int | None = None
    # All values that `window` can take, in ascending order.
    windows: tuple[int, ...] = struct.field(pytree_node=False, default=())
    # () int32. The window has gaps: a query attends to keys whose distance is a multiple of
    # `dilation` and below `window` times `dilation` (Beltagy et al. 2020, section 3.1).
    dilation: Int[Array, ""] | int | None = None
    # The dilation that goes with each of `windows`, which may then repeat a value.
    dilations: tuple[int, ...] = struct.field(pytree_node=False, default=())
    # Keys that all queries see despite the window, and queries that see all keys despite the window
    # (Beltagy et al. 2020, section 3.1).
    global_keys: Bool[Array, "B K"] | None = None
    global_queries: Bool[Array, "B Q"] | None = None
    # The length of a prefix of the row that all queries see despite `causal`.
    prefix: Int[Array, " B"] | None = None
    # Queries attend to keys of their own rank or a lower one, which is a causal mask over a
    # permuted order (Yang et al. 2019, section 2.2).
    query_ranks: Int[Array, "B Q"] | None = None
    key_ranks: Int[Array, "B K"] | None = None
    # Keys that are visible only to the query in their own slot.
    private_keys: Bool[Array, "B K"] | None = None
    # Queries and keys must belong to the same segment.
    query_segments: Int[Array, "B Q"] | None = None
    # Without query_segments, queries attend to all keys with a non-zero id.
    key_segments: Int[Array, "B K"] | None = None
    # Whether the segment ids of each row are ones followed by zeros, the same for queries and keys,
    # so that a length says as much as they do. Who replaces the ids by others unsets it.
    padding_last: bool = struct.field(pytree_node=False, default=False)
    # Slots of the queries among the keys, for each row, or () int32 for the slot of the first query
    # in all rows. The default is 0..Q-1.
    query_slots: Int[Array, "#B Q"] | Int[Array, ""] | None = None
    # In beam search, the keys are those that Q beams wrote to each of P slots, which form a ring.
    # In each slot, a query attends to the key of one beam, or to none (-1).
    ancestors: Int[Array, "B Q P"] | None = None

    def conditions(self) -> frozenset[str]:
        """Returns the names of the fields that are set; kernels list those that they support."""
        fields = {field.name for field in dataclasses.fields(self)}
        fields -= {"causal", "windows", "dilations", "padding_last"}
        is_set = {name for name in fields if getattr(self, name) is not None}
        return frozenset(is_set | ({"causal"} if self.causal else set()))

    def for_each_window(self, function: Callable[..., Array]) -> Array:
        """Returns function(window) with the window as a constant, for kernels that compile it in.

        With a dilation, returns function(window, dilation). In a scan over layers the window is
        traced, so a branch is compiled for each of `windows` and its dilation, of which one runs.
        """
        if self.dilation is None:
            values, cases = [self.window], [(window,) for window in self.windows]
        else:
            values, cases = [self.window, self.dilation], [*zip(self.windows, self.dilations)]
        if len(cases) == 1:
            return function(*cases[0])
        if self.window is None or isinstance(self.window, int):
            return function(*values)
        is_case = (jnp.array(cases) == jnp.array(values)).all(axis=1)
        branches = [functools.partial(function, *case) for case in cases]
        return jax.lax.switch(jnp.argmax(is_case), branches)

    def undilated(self) -> "Mask":
        """Returns the mask without the dilation of its windows."""
        windows = tuple(sorted(set(self.windows)))
        return self.replace(windows=windows, dilation=None, dilations=())

    def segments(
        self, num_queries: int
    ) -> tuple[Int[Array, "B Q"] | None, Int[Array, "B K"] | None]:
        """Returns segments such that each query attends to its own, or (None, None) without any.

        Queries that are padding attend to padding, so that their outputs are finite.
        """
        keys = self.key_segments
        if keys is None or self.query_segments is not None:
            return self.query_segments, keys
        return jnp.ones((len(keys), num_queries), jnp.int32), (keys > 0).astype(jnp.int32)

    def block(self, start: int, stop: int) -> "Mask":
        """Returns the mask of the queries in [start, stop) and the keys in [0, stop).

        The mask must be causal without a prefix and have as many keys as queries, because then no
        other key is visible to these queries.
        """

        def part(x, start):
            return None if x is None else x[:, start:stop]

        return self.replace(
            query_segments=part(self.query_segments, start),
            key_segments=part(self.key_segments, 0),
            query_ranks=part(self.query_ranks, start),
            key_ranks=part(self.key_ranks, 0),
            private_keys=part(self.private_keys, 0),
            global_queries=part(self.global_queries, start),
            global_keys=part(self.global_keys, 0),
            # These queries do not start at slot 0, which the causal mask would otherwise assume.
            query_slots=jnp.arange(start, stop)[None],
            padding_last=False,
        )

    def distance(self, num_queries: int, num_keys: int) -> Int[Array, "#B #Q K"]:
        """Returns the distance in slots from each key forward to each query."""
        slots = self.slots(num_queries)
        if self.ancestors is not None:
            num_slots = num_keys // num_queries
            # The slots form a ring, so a lower slot may be the newer one. The remainder turns the
            # difference of two slots into the age of the key.
            turns = slots[..., None] // num_queries - jnp.arange(num_keys) // num_queries
            return turns % num_slots
        return slots[:, :, None] - jnp.arange(num_keys)

    def slots(self, num_queries: int) -> Int[Array, "#B Q"]:
        """Returns the slots of the queries."""
        first = 0 if self.query_slots is None else self.query_slots
        return first if jnp.ndim(first) else first + jnp.arange(num_queries)[None]

    def dense(self, num_queries: int, num_keys: int) -> Bool[Array, "#B 1 Q K"] | None:
        """Returns True where a query attends to a key, or None if all attend to all."""
        visible = [*self._by_distance(num_queries, num_keys)]
        if self.ancestors is not None:
            is_ancestor = self.ancestors[..., None] == jnp.arange(num_queries)
            visible.append(is_ancestor.reshape(-1, num_queries, num_keys))
        if self.key_ranks is not None:
            visible.append(self.key_ranks[:, None, :] <= self.query_ranks[:, :, None])
        if self.private_keys is not None:
            is_own = self.distance(num_queries, num_keys) == 0
            visible.append(is_own | ~self.private_keys[:, None, :])
        if self.key_segments is not None:
            keys = self.key_segments[:, None, :]
            # Without this condition, a query that is padding would see padding, which has the same
            # id.
            visible.append(keys > 0)
            if self.query_segments is not None:
                visible.append(keys == self.query_segments[:, :, None])
        if not visible:
            return None
        return functools.reduce(jnp.logical_and, visible)[:, None]

    def _by_distance(self, num_queries: int, num_keys: int):
        """Yields the conditions on slots, each as an array of bool (B or 1, Q, K)."""
        distance = self.distance(num_queries, num_keys)
        if self.causal:
            causal = distance >= 0
            if self.prefix is not None:
                causal = causal | (jnp.arange(num_keys) < self.prefix[:, None])[:, None]
            yield causal
        if self.window is not None:
            is_multiple = None
            if self.dilation is not None:
                is_multiple = distance % self.dilation == 0
                distance = distance // self.dilation
            near = distance < self.window
            # A plain causal mask hides all later keys already.
            if not self.causal or self.prefix is not None:
                near = near & (distance > -self.window)
            # Global keys are added here, because they are exempt from the window and its gaps, but
            # not from the causal mask, which is a condition of its own.
            near = near if is_multiple is None else near & is_multiple
            if self.global_keys is not None:
                near = near | self.global_keys[:, None, :]
            if self.global_queries is not None:
                near = near | self.global_queries[:, :, None]
            yield near


# --------------------------------------------------------------------------------------------------
# Positions of texts within packed rows, and padding of rows.
#
# Patterns of attention start anew with each text, so that a text is computed as if it stood alone
# in its row.


def bounds(
    segment_ids: Int[ArrayLike, "B L"],
) -> tuple[Int[Array, "B L"], Int[Array, "B L"]]:
    """Returns, for each position, the first and the last position of its text.

    Consecutive positions with equal ids belong to one text.
    """
    ids = jnp.asarray(segment_ids)
    positions = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
    changes = ids[:, 1:] != ids[:, :-1]
    is_first = jnp.pad(changes, ((0, 0), (1, 0)), constant_values=True)
    is_last = jnp.pad(changes, ((0, 0), (0, 1)), constant_values=True)
    # Cumulative extremes replace a loop over texts, because the number of texts is unknown while
    # the function is traced.
    first = jax.lax.cummax(jnp.where(is_first, positions, 0), axis=1)
    last = jax.lax.cummin(jnp.where(is_last, positions, ids.shape[1]), axis=1, reverse=True)
    return first, last


def positions_in_segments(
    segment_ids: Int[ArrayLike, "B L"] | None, length: int
) -> Int[Array, "#B L"]:
    """Returns the positions within each text of a packed row; without ids, a row is one text."""
    positions = jnp.arange(length)[None]
    return positions if segment_ids is None else positions - bounds(segment_ids)[0]


def at(x: Array, positions: Int[Array, "B N"]) -> Array:
    """Returns the vectors (B, N, ...) of x (B, L, ...) at `positions` of each row."""
    return jnp.take_along_axis(x, positions.reshape(*positions.shape, *[1] * (x.ndim - 2)), axis=1)


def padded(
    x: Shaped[Array, "B L *axes"] | None, after: int, before: int = 0
) -> Shaped[Array, "B K *axes"] | None:
    """Returns x with zeros added after and before its positions; None if x is None."""
    if x is None or not (before or after):
        return x
    return jnp.pad(x, ((0, 0), (before, after), *[(0, 0)] * (x.ndim - 2)))


# --------------------------------------------------------------------------------------------------
# Attention that materializes the score matrix, either the whole matrix or, for causal attention,
# one block of queries at a time.
#
# `dot_product` supports every mask and every option, so it is the fallback of `attention.pick`, and
# the other kernels must agree with it.

# The smallest number of queries in a block of `causal_blocks`, and the largest number of blocks,
# which is bounded because each block is compiled separately.
_MIN_QUERY_BLOCK = 64
_MAX_QUERY_BLOCKS = 8
# The longest sequence whose weights `causal_blocks` saves for the backward pass. The weights grow
# with the square of the length, so for longer sequences the backward pass recomputes those of this
# many queries at a time.
_LONGEST_SAVED = 4096
_QUERIES_OF_PART = 256

Queries = Float[Array, "B Q H D"]
Keys = Float[Array, "B K G D"]
Bias = Float[Array, "#B #H #Q K"]


def dot_product(
    q: Queries,
    k: Keys,
    v: Keys,
    mask: Mask,
    dropout: WeightDropout | None = None,
    *,
    bias: Bias | None = None,
    scale: float | None = None,
    query_numbers: Int[Array, "#B Q"] | None = None,
    key_numbers: Int[Array, "#B K"] | None = None,
    observe: Callable | None = None,
) -> Queries:
    """Scaled dot-product attention (Vaswani et al. 2017, section 3.2.1), softmax in float32.

    The dropout mask depends on the numbers of queries and keys, which are their positions by
    default. `observe` takes the weights before dropout and returns those to use.
    """
    weights = attention_weights(q, k, mask, bias=bias, scale=scale)
    if observe is not None:
        weights = observe(weights)
    if dropout is not None:
        weights = dropout(weights, query_numbers, key_numbers)
    weights = weights.astype(v.dtype)
    batch, heads, queries, keys = weights.shape
    # Query heads that share a value head are treated as further queries of that head, so that the
    # values are not repeated.
    weights = weights.reshape(batch, v.shape[2], -1, keys)
    # The product has the heads before the queries, because for "bqhd" XLA transposes it, which
    # makes beam search take five times as long on a CPU.
    y = jnp.einsum("bhqk,bkhd->bhqd", weights, v)
    return y.reshape(batch, heads, queries, v.shape[3]).swapaxes(1, 2)


def attention_weights(
    q: Queries,
    k: Keys,
    mask: Mask,
    *,
    bias: Bias | None = None,
    scale: float | None = None,
) -> Float[Array, "B H Q K"]:
    """Returns softmax(q k^T scale + bias) over the visible keys, float32."""
    batch, queries, heads, head_dim = q.shape
    # The queries are scaled rather than the scores, because a long row has far more scores.
    scaled = q / math.sqrt(head_dim) if scale is None else q * scale
    if heads != k.shape[2]:
        # Query heads that share a key head become further queries of that head, so that the keys
        # are not repeated.
        groups = scaled.reshape(batch, queries, k.shape[2], -1, head_dim)
        scaled = groups.transpose(0, 3, 1, 2, 4).reshape(batch, -1, k.shape[2], head_dim)
    # The scores are summed up and kept in float32, because an absolute error of a score is a
    # relative error of its weight.
    scores = jnp.einsum("bqhd,bkhd->bhqk", scaled, k, preferred_element_type=jnp.float32)
    scores = scores.reshape(batch, heads, queries, k.shape[1])
    if bias is not None:
        scores = scores + bias
    visible = mask.dense(queries, k.shape[1])
    if visible is not None:
        # Hidden scores are the lowest finite number instead of -inf, because the softmax over a row
        # of -inf would be NaN.
        scores = jnp.where(visible, scores, jnp.finfo(jnp.float32).min)
    return jax.nn.softmax(scores, axis=-1)


def causal_blocks(
    q: Queries,
    k: Keys,
    v: Keys,
    mask: Mask,
    dropout: WeightDropout | None = None,
    *,
    bias: Bias | None = None,
    scale: float | None = None,
) -> Queries:
    """Causal self-attention by blocks of queries, each of which reads only the keys up to its end.

    This saves almost half of the work. Forward and backward at lengths 128, 256 and 1024 on two CPU
    cores: 9 -> 4, 40 -> 15, 594 -> 330 ms (8 rows, 6 heads of 64).

    For long sequences, both passes hold the scores of only a few queries in memory at a time. On a
    TPU all scores are in memory, because its compiler crashes on the loop (jax 0.10.1, rows of
    16,384 and 32,768).
    """
    length = q.shape[1]
    by_parts = length > _LONGEST_SAVED and sharding.platform() != "tpu"
    attend = _by_parts if by_parts else dot_product
    size = max(_MIN_QUERY_BLOCK, -(-length // _MAX_QUERY_BLOCKS))
    bounds = [*range(0, length, size), length]
    blocks = [
        attend(
            q[:, start:stop],
            k[:, :stop],
            v[:, :stop],
            mask.block(start, stop),
            dropout,
            bias=None if bias is None else bias[:, :, start:stop, :stop],
            scale=scale,
            # The numbers are positions in the whole row, so that the dropout mask does not depend
            # on the blocks.
            query_numbers=jnp.arange(start, stop)[None],
        )
        for start, stop in zip(bounds, bounds[1:])
    ]
    return jnp.concatenate(blocks, axis=1)


def _by_parts(q, k, v, mask: Mask, dropout, *, bias, scale, query_numbers) -> Queries:
    """`dot_product` for a part of the queries at a time, which the backward pass recomputes."""
    batch, queries, *head = q.shape
    size = _QUERIES_OF_PART

    def split(x, axis=1):
        """Splits an axis of queries into parts, (B, ..., Q, ...) -> (N, B, ..., size, ...)."""
        if x is None:
            return None
        padding = [(0, 0)] * x.ndim
        padding[axis] = (0, -queries % size)
        x = jnp.pad(x, padding)
        return jnp.moveaxis(x.reshape(*x.shape[:axis], -1, size, *x.shape[axis + 1 :]), axis, 0)

    @jax.checkpoint
    def on_part(part):
        numbers, q, bias, fields = part
        # The masks do not depend on the layer. Without the barrier, a differentiated scan over the
        # layers would therefore compute the masks of all parts in advance and save them.
        numbers, q = jax.lax.optimization_barrier((numbers, q))
        options = dict(bias=bias, scale=scale, query_numbers=numbers)
        part_mask = mask.replace(query_slots=numbers, padding_last=False, **fields)
        return dot_product(q, k, v, part_mask, dropout, **options)

    # Only these are split, because the other fields have no axis of queries.
    names = ("query_segments", "query_ranks", "global_queries")
    fields = {name: split(getattr(mask, name)) for name in names}
    inputs = (split(query_numbers), split(q), split(bias, axis=2), fields)
    # This is a loop rather than a vmap, because a vmap would compute the scores of all parts at
    # once.
    parts = jax.lax.map(on_part, inputs)
    return jnp.moveaxis(parts, 0, 1).reshape(batch, -1, *head)[:, :queries]
