"""Attention that writes out scores: all at once, or by blocks of queries of a causal row."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax.distributed import sharding
from transformer_jax.layers.masks import Mask
from transformer_jax.layers.weight_dropout import WeightDropout

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
    def of_part(part):
        numbers, q, bias, fields = part
        # In a scan over layers, JAX would save the masks of all parts, which no layer changes.
        numbers, q = jax.lax.optimization_barrier((numbers, q))
        options = dict(bias=bias, scale=scale, query_numbers=numbers)
        return dot_product(q, k, v, mask.replace(query_slots=numbers, **fields), dropout, **options)

    names = ("query_segments", "query_ranks", "global_queries")
    fields = {name: split(getattr(mask, name)) for name in names}
    inputs = (split(query_numbers), split(q), split(bias, axis=2), fields)
    parts = jax.lax.map(of_part, inputs)
    return jnp.moveaxis(parts, 0, 1).reshape(batch, -1, *head)[:, :queries]
