"""Attention within a window, in time and memory that grow linearly with the length.

A query attends to the keys whose distance is below the window, and all queries attend to global
keys (Beltagy et al. 2020, section 3.1). With a dilation d, a window contains every d-th key.
Positions with equal remainders modulo d are then treated as a sequence of their own, in which the
window has no gaps.
"""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int, Shaped

from transformer_jax.layers.masks import Keys, Mask, Queries, causal_blocks, dot_product, padded
from transformer_jax.layers.recurrent import WeightDropout

# Queries in a block. Long blocks are slower, because they read keys that few of their queries see:
# with a window of 257 on both sides, blocks of 128 queries take 0.8 of the time of blocks of 257 on
# a CPU.
_BLOCK = 128


def pays(mask: Mask, length: int) -> bool:
    """Whether blocks save work: in some layer, a query must reach at most half of the sequence."""
    windows = mask.windows or ((mask.window,) if isinstance(mask.window, int) else ())
    return bool(windows) and _span(mask, min(windows)) <= length // 2


def windowed(
    q: Queries,
    k: Keys,
    v: Keys,
    mask: Mask,
    dropout: WeightDropout | None = None,
    *,
    bias: None = None,
    scale: float | None = None,
    global_positions: Int[Array, "B N"] | None = None,
) -> Queries:
    """Self-attention within a window, by blocks of queries.

    A block reads its own keys and the keys within the window beside them. The backward pass
    recomputes the scores of each block, so that only those of one block are in memory.

    All queries also see the keys at `global_positions`, where -1 is none. In that case the mask
    must not be causal.
    """
    length = q.shape[1]

    def within(window: int | None, dilation: int = 1) -> Queries:
        reach = length if window is None else window
        if dilation == 1 and reach >= length:
            # Such a window hides nothing, so blocks would only repeat keys.
            full = causal_blocks if mask.causal else dot_product
            return full(q, k, v, mask.undilated().replace(window=None), dropout, scale=scale)
        arrays = _Arrays.of(q, k, v, mask, global_positions).dilated(dilation)
        reach = min(reach, arrays.queries.shape[1])
        # The parts of a dilated row share its seeds. `_Arrays.numbers` tells their positions apart.
        row_dropout = dropout if dropout is None else dropout.repeated(dilation)
        y = _by_blocks(arrays, mask.undilated().replace(window=reach), row_dropout, scale)
        return _interleaved(y, dilation)[:, :length]

    return mask.for_each_window(within)


@struct.dataclass
class _Arrays:
    """Queries, and the keys of windows and of global positions with their segments; 0 hides one."""

    queries: Queries
    query_segments: Int[Array, "B Q"] | None
    keys: tuple[Keys, Keys, Int[Array, "B K"]]  # with values and segments
    global_keys: tuple[Keys, Keys, Int[Array, "B N"]] | None
    global_positions: Int[Array, "B N"] | None
    # Each row consists of the positions of an original row with equal remainders modulo `dilation`.
    dilation: int = struct.field(pytree_node=False, default=1)

    @classmethod
    def of(cls, q, k, v, mask: Mask, positions) -> "_Arrays":
        batch, length = q.shape[:2]
        segments = jnp.ones((batch, length), jnp.int32)
        if mask.key_segments is not None:
            segments = jnp.asarray(mask.key_segments)
        query_segments = mask.query_segments
        query_segments = None if query_segments is None else jnp.asarray(query_segments)
        if positions is None:
            return cls(q, query_segments, (k, v, segments), None, None)
        rows, indices = jnp.arange(batch)[:, None], jnp.maximum(positions, 0)
        # Segment 0 hides the key of an unused entry, which is the key at position 0.
        global_segments = jnp.where(positions < 0, 0, segments[rows, indices])
        global_keys = (k[rows, indices], v[rows, indices], global_segments)
        # Windows hide the global keys, which would otherwise count twice.
        beyond = jnp.where(positions < 0, length, positions)
        segments = segments.at[rows, beyond].set(0, mode="drop")
        return cls(q, query_segments, (k, v, segments), global_keys, positions)

    def dilated(self, dilation: int) -> "_Arrays":
        """Returns the arrays with each row split by the remainders of its positions.

        Rows (B, L) become (B d, L / d), and the parts of an original row are consecutive.
        """
        if dilation == 1:
            return self

        def split(x):
            x = padded(x, -x.shape[1] % dilation)
            x = x.reshape(len(x), -1, dilation, *x.shape[2:]).swapaxes(1, 2)
            return x.reshape(-1, *x.shape[2:])

        def repeat(x):
            return jnp.repeat(x, dilation, axis=0)

        query_arrays = jax.tree.map(split, (self.queries, self.query_segments))
        global_arrays = jax.tree.map(repeat, (self.global_keys, self.global_positions))
        return _Arrays(*query_arrays, jax.tree.map(split, self.keys), *global_arrays, dilation)

    def numbers(self, indices: Int[Array, " P"]) -> Int[Array, "#B P"]:
        """Returns the positions in the original rows of these indices, for the dropout mask."""
        if self.dilation == 1:
            return indices[None]
        remainders = jnp.arange(len(self.queries)) % self.dilation
        return remainders[:, None] + self.dilation * indices


def _by_blocks(arrays: _Arrays, mask: Mask, dropout, scale) -> Queries:
    batch, length = arrays.queries.shape[:2]
    before = mask.window - 1
    after = 0 if mask.causal else before
    size = min(_BLOCK, length)
    span = before + size + after
    num_blocks = -(-length // size)
    padding = num_blocks * size - length
    # Zeros serve as padding, because the keys then have segment 0, which hides them.
    by_query = [padded(x, padding) for x in (arrays.queries, arrays.query_segments)]
    by_key = [padded(x, padding + after, before) for x in arrays.keys]

    @jax.checkpoint
    def on_block(start):
        queries, query_segments = (_part(x, start, size) for x in by_query)
        keys = [_part(x, start, span) for x in by_key]
        # The numbers are positions in the original rows, so that the dropout mask does not depend
        # on the blocks.
        numbers = arrays.numbers(start - before + jnp.arange(span))
        is_global = None
        if arrays.global_keys is not None:
            positions = arrays.global_positions
            keys = [jnp.concatenate(pair, axis=1) for pair in zip(keys, arrays.global_keys)]
            numbers = jnp.broadcast_to(numbers, (batch, span))
            numbers = jnp.concatenate([numbers, positions], axis=1)
            # Global keys are marked, because they stand after the span, at distances that have no
            # meaning for the window.
            is_global = jnp.arange(numbers.shape[1])[None] >= span
        *keys_and_values, key_segments = keys
        block = mask.replace(
            padding_last=False,
            query_slots=before + jnp.arange(size)[None],
            query_segments=query_segments,
            key_segments=key_segments,
            global_keys=is_global,
        )
        query_numbers = arrays.numbers(start + jnp.arange(size))
        options = dict(scale=scale, query_numbers=query_numbers, key_numbers=numbers)
        return dot_product(queries, *keys_and_values, block, dropout, **options)

    starts = size * jnp.arange(num_blocks)
    # This is a loop rather than a vmap, because a vmap would compute the scores of all blocks at
    # once.
    blocks = jax.lax.map(on_block, starts)  # (N, B, size, H, D)
    y = jnp.moveaxis(blocks, 0, 1).reshape(batch, -1, *arrays.queries.shape[2:])
    return y[:, :length]


def _interleaved(y: Queries, dilation: int) -> Float[Array, "_ _ H D"]:
    """Returns the original rows, the inverse of `_Arrays.dilated`."""
    if dilation == 1:
        return y
    y = y.reshape(-1, dilation, *y.shape[1:]).swapaxes(1, 2)
    return y.reshape(len(y), -1, *y.shape[3:])


def _span(mask: Mask, window: int) -> int:
    """Returns the largest number of keys to which a query attends."""
    return window if mask.causal else 2 * window - 1


def _part(x: Shaped[Array, "B L *axes"] | None, start, size: int):
    return None if x is None else jax.lax.dynamic_slice_in_dim(x, start, size, axis=1)
