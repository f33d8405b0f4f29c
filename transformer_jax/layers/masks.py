"""Masks: a description of the keys that each query attends to, and plain attention under it."""

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
# A description of the keys that each query attends to. Each kernel turns it into its own form.


@struct.dataclass
class Mask:
    """A query attends to a key if all conditions that are set hold. Without any, it attends to all.

    A segment id names the example that a position of a packed row belongs to. Id 0 is padding. No
    query attends to padding.
    """

    # A query attends to keys in its own slot and before it.
    causal: bool = struct.field(pytree_node=False, default=False)
    # () int32. A query attends to keys at a distance below `window`: on both sides, with `causal`
    # on its left.
    window: Int[Array, ""] | int | None = None
    # All values that `window` can have, in ascending order.
    windows: tuple[int, ...] = struct.field(pytree_node=False, default=())
    # () int32. The window has gaps: a query attends to keys at a distance that is a multiple of
    # `dilation`, and below `window` times `dilation` (Beltagy et al. 2020, section 3.1).
    dilation: Int[Array, ""] | int | None = None
    # The dilation that goes with each of `windows`, which may then repeat a value.
    dilations: tuple[int, ...] = struct.field(pytree_node=False, default=())
    # Keys that the window hides from no query, and queries from which it hides no key (Beltagy et
    # al. 2020, section 3.1).
    global_keys: Bool[Array, "B K"] | None = None
    global_queries: Bool[Array, "B Q"] | None = None
    # The number of the first slots of a row that `causal` hides from no query.
    prefix: Int[Array, " B"] | None = None
    # Queries attend to keys of their own rank and of lower ranks: a causal mask over a permuted
    # order (Yang et al. 2019, section 2.2).
    query_ranks: Int[Array, "B Q"] | None = None
    key_ranks: Int[Array, "B K"] | None = None
    # Keys that the query in their own slot alone attends to.
    private_keys: Bool[Array, "B K"] | None = None
    # Queries and keys must belong to the same segment.
    query_segments: Int[Array, "B Q"] | None = None
    # Without query_segments, queries attend to all keys with a non-zero id.
    key_segments: Int[Array, "B K"] | None = None
    # Slots of the queries among the keys: those of each row, or () int32 for the slot of the first
    # query in all rows. The default is 0..Q-1.
    query_slots: Int[Array, "#B Q"] | Int[Array, ""] | None = None
    # In beam search the keys are those that Q beams wrote in each of P slots. A query attends in
    # each slot to the key of one beam, or to none (-1). The slots are a ring.
    ancestors: Int[Array, "B Q P"] | None = None

    def conditions(self) -> frozenset[str]:
        """Returns the names of the fields that are set, for a kernel to say which it takes."""
        fields = {field.name for field in dataclasses.fields(self)}
        fields -= {"causal", "windows", "dilations"}
        is_set = {name for name in fields if getattr(self, name) is not None}
        return frozenset(is_set | ({"causal"} if self.causal else set()))

    def for_each_window(self, function: Callable[..., Array]) -> Array:
        """Returns function(window) of the window as a number, for kernels that compile it in.

        With a dilation, it is function(window, dilation). A layer of a stack has one of `windows`
        and its dilation: all are compiled, and one runs.
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
        """Returns the mask whose windows have no gaps."""
        windows = tuple(sorted(set(self.windows)))
        return self.replace(windows=windows, dilation=None, dilations=())

    def segments(
        self, num_queries: int
    ) -> tuple[Int[Array, "B Q"] | None, Int[Array, "B K"] | None]:
        """Returns segments of which each query attends to its own, or (None, None) for no segments.

        Queries that are padding attend to padding, so that their outputs are finite.
        """
        keys = self.key_segments
        if keys is None or self.query_segments is not None:
            return self.query_segments, keys
        return jnp.ones((len(keys), num_queries), jnp.int32), (keys > 0).astype(jnp.int32)

    def block(self, start: int, stop: int) -> "Mask":
        """Returns the mask of the queries in [start, stop) and the keys in [0, stop).

        The mask must be causal without a prefix, with as many keys as queries: then no other key is
        visible to these queries.
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
            query_slots=jnp.arange(start, stop)[None],
        )

    def distance(self, num_queries: int, num_keys: int) -> Int[Array, "#B #Q K"]:
        """Returns the number of slots from each key forward to each query."""
        slots = self.slots(num_queries)
        if self.ancestors is not None:
            num_slots = num_keys // num_queries
            turns = slots[..., None] // num_queries - jnp.arange(num_keys) // num_queries
            return turns % num_slots
        return slots[:, :, None] - jnp.arange(num_keys)

    def slots(self, num_queries: int) -> Int[Array, "#B Q"]:
        """Returns the slots of the queries."""
        first = 0 if self.query_slots is None else self.query_slots
        return first if jnp.ndim(first) else first + jnp.arange(num_queries)[None]

    def dense(self, num_queries: int, num_keys: int) -> Bool[Array, "#B 1 Q K"] | None:
        """Returns True where the query attends to the key, or None where all attend to all."""
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
            visible.append(keys > 0)
            if self.query_segments is not None:
                visible.append(keys == self.query_segments[:, :, None])
        if not visible:
            return None
        return functools.reduce(jnp.logical_and, visible)[:, None]

    def _by_distance(self, num_queries: int, num_keys: int):
        """Yields the conditions on slots: whether the query attends to the key (B or 1, Q, K)."""
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
            if not self.causal or self.prefix is not None:
                near = near & (distance > -self.window)
            near = near if is_multiple is None else near & is_multiple
            if self.global_keys is not None:
                near = near | self.global_keys[:, None, :]
            if self.global_queries is not None:
                near = near | self.global_queries[:, :, None]
            yield near


# --------------------------------------------------------------------------------------------------
# The places of texts in packed rows, and rows with padding.


def bounds(
    segment_ids: Int[ArrayLike, "B L"],
) -> tuple[Int[Array, "B L"], Int[Array, "B L"]]:
    """Returns the first and the last place of the text that each position belongs to.

    Positions with equal ids side by side belong to one text.
    """
    ids = jnp.asarray(segment_ids)
    places = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
    changes = ids[:, 1:] != ids[:, :-1]
    begins = jnp.pad(changes, ((0, 0), (1, 0)), constant_values=True)
    ends = jnp.pad(changes, ((0, 0), (0, 1)), constant_values=True)
    first = jax.lax.cummax(jnp.where(begins, places, 0), axis=1)
    last = jax.lax.cummin(jnp.where(ends, places, ids.shape[1]), axis=1, reverse=True)
    return first, last


def places_of(segment_ids: Int[ArrayLike, "B L"] | None, length: int) -> Int[Array, "#B L"]:
    """Returns the places of positions in their texts. Without ids, a row is one text."""
    positions = jnp.arange(length)[None]
    return positions if segment_ids is None else positions - bounds(segment_ids)[0]


def at(x: Array, places: Int[Array, "B N"]) -> Array:
    """Returns the vectors (B, N, ...) of x (B, L, ...) at places of its rows."""
    return jnp.take_along_axis(x, places.reshape(*places.shape, *[1] * (x.ndim - 2)), axis=1)


def padded(
    x: Shaped[Array, "B L *axes"] | None, after: int, before: int = 0
) -> Shaped[Array, "B K *axes"] | None:
    """Returns x with zeros behind its positions, and before them; None for None."""
    if x is None or not (before or after):
        return x
    return jnp.pad(x, ((0, 0), (before, after), *[(0, 0)] * (x.ndim - 2)))


# --------------------------------------------------------------------------------------------------
# Attention that materializes the score matrix: the whole of it, or a block of queries at a time
# of a causal row.

# The smallest number of queries in a block of `causal_blocks`, and the largest number of blocks.
# Each block is compiled separately.
_MIN_QUERY_BLOCK = 64
_MAX_QUERY_BLOCKS = 8
# The longest row whose weights `causal_blocks` saves for the backward pass. The weights of longer
# ones are computed again, so many queries at a time.
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

    The dropout depends on the numbers of queries and keys, by default their places. `observe` takes
    and returns the weights before dropout.
    """
    weights = attention_weights(q, k, mask, bias=bias, scale=scale)
    if observe is not None:
        weights = observe(weights)
    if dropout is not None:
        weights = dropout(weights, query_numbers, key_numbers)
    weights = weights.astype(v.dtype)
    batch, heads, queries, keys = weights.shape
    # The heads that share a head of the values are further queries of that head.
    weights = weights.reshape(batch, v.shape[2], -1, keys)
    # Heads in front of queries: for "bqhd" XLA transposes the product, and beam search takes five
    # times as long on a CPU.
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
    """Returns softmax(q k^T scale + bias) over the keys that the mask shows, float32."""
    batch, queries, heads, head_dim = q.shape
    scaled = q / math.sqrt(head_dim) if scale is None else q * scale
    if heads != k.shape[2]:
        # The heads that share a head of the keys become further queries of that head.
        groups = scaled.reshape(batch, queries, k.shape[2], -1, head_dim)
        scaled = groups.transpose(0, 3, 1, 2, 4).reshape(batch, -1, k.shape[2], head_dim)
    scores = jnp.einsum("bqhd,bkhd->bhqk", scaled, k, preferred_element_type=jnp.float32)
    scores = scores.reshape(batch, heads, queries, k.shape[1])
    if bias is not None:
        scores = scores + bias
    visible = mask.dense(queries, k.shape[1])
    if visible is not None:
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
    """Causal self-attention by blocks of queries. A block reads the keys up to its own end only.

    This saves almost half of the work. Forward and backward at lengths 128, 256 and 1024 on two CPU
    cores: 9 -> 4, 40 -> 15, 594 -> 330 ms (8 rows, 6 heads of 64).

    In long rows, the scores of a few queries are in memory at a time, in both passes. On a TPU they
    all are: its compiler crashes on the loop (jax 0.10.1, rows of 16,384 and 32,768).
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
            query_numbers=jnp.arange(start, stop)[None],
        )
        for start, stop in zip(bounds, bounds[1:])
    ]
    return jnp.concatenate(blocks, axis=1)


def _by_parts(q, k, v, mask: Mask, dropout, *, bias, scale, query_numbers) -> Queries:
    """Returns `dot_product` by parts of the queries, which the backward pass computes again."""
    batch, queries, *head = q.shape
    size = _QUERIES_OF_PART

    def split(x, axis=1):
        """Returns the parts of an axis of queries, (B, ..., Q, ...) -> (N, B, ..., size, ...)."""
        if x is None:
            return None
        padding = [(0, 0)] * x.ndim
        padding[axis] = (0, -queries % size)
        x = jnp.pad(x, padding)
        return jnp.moveaxis(x.reshape(*x.shape[:axis], -1, size, *x.shape[axis + 1 :]), axis, 0)

    @jax.checkpoint
    def on_part(part):
        numbers, q, bias, fields = part
        # In a scan over layers, JAX would save the masks of all parts, which no layer changes.
        numbers, q = jax.lax.optimization_barrier((numbers, q))
        options = dict(bias=bias, scale=scale, query_numbers=numbers)
        return dot_product(q, k, v, mask.replace(query_slots=numbers, **fields), dropout, **options)

    names = ("query_segments", "query_ranks", "global_queries")
    fields = {name: split(getattr(mask, name)) for name in names}
    inputs = (split(query_numbers), split(q), split(bias, axis=2), fields)
    parts = jax.lax.map(on_part, inputs)
    return jnp.moveaxis(parts, 0, 1).reshape(batch, -1, *head)[:, :queries]
