"""Attention within a window, in time and memory that grow linearly with the length.

Beltagy et al. 2020, section 3.1: a query attends to the keys at a distance below the window.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Shaped

from transformer_jax.layers.dot_product import Keys, Queries, causal_blocks, dot_product
from transformer_jax.layers.masks import Mask
from transformer_jax.layers.weight_dropout import WeightDropout

# The smallest number of queries in a block.
_MIN_BLOCK = 128


def pays(mask: Mask, length: int) -> bool:
    """Whether a query of self-attention reaches at most half of the row in some layer."""
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
) -> Queries:
    """Self-attention within a window, by blocks of queries.

    A block as long as the window reads its own keys and those within the window beside them. The
    backward pass computes the scores of a block again: those of one block alone are in memory.
    """

    def within(window: int) -> Queries:
        if window >= q.shape[1]:
            full = causal_blocks if mask.causal else dot_product
            return full(q, k, v, mask.replace(window=None), dropout, scale=scale)
        return _by_blocks(q, k, v, mask.replace(window=window), dropout, scale=scale)

    return mask.by_window(within)


def _by_blocks(q, k, v, mask: Mask, dropout, *, scale) -> Queries:
    batch, length = q.shape[:2]
    before = mask.window - 1
    after = 0 if mask.causal else before
    size = max(mask.window, _MIN_BLOCK)
    num_blocks = -(-length // size)
    padding = num_blocks * size - length
    segments = mask.key_segments
    segments = jnp.ones((batch, length), jnp.int32) if segments is None else segments
    of_queries = [_padded(x, 0, padding) for x in (q, mask.query_segments)]
    of_keys = [_padded(x, before, padding + after) for x in (k, v, segments)]

    @jax.checkpoint
    def of_block(start):
        queries, query_segments = (_part(x, start, size) for x in of_queries)
        keys, values, key_segments = (_part(x, start, before + size + after) for x in of_keys)
        block = mask.replace(
            query_slots=before + jnp.arange(size)[None],
            query_segments=query_segments,
            key_segments=key_segments,
        )
        numbers = dict(first_query=start, first_key=start - before)
        return dot_product(queries, keys, values, block, dropout, scale=scale, **numbers)

    blocks = jax.lax.map(of_block, size * jnp.arange(num_blocks))  # (N, B, size, H, D)
    y = jnp.moveaxis(blocks, 0, 1).reshape(batch, -1, *q.shape[2:])
    return y[:, :length]


def _span(mask: Mask, window: int) -> int:
    """Returns the number of keys that a query attends to, at most."""
    return window if mask.causal else 2 * window - 1


def _padded(x: Shaped[Array, "B L *axes"] | None, before: int, after: int):
    """Returns x with zeros before and after its positions."""
    if x is None:
        return None
    return jnp.pad(x, ((0, 0), (before, after), *[(0, 0)] * (x.ndim - 2)))


def _part(x: Shaped[Array, "B L *axes"] | None, start, size: int):
    return None if x is None else jax.lax.dynamic_slice_in_dim(x, start, size, axis=1)
