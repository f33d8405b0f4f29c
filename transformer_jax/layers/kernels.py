"""The kernels of attention: softmax(q k^T / sqrt(D)) v over the keys a mask shows. All agree;
`pick` alone decides which computes it.

q (B, Q, H, D), k and v (B, K, H, D) -> (B, Q, H, D). A query that sees no key gets something
finite, and nobody reads it.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from transformer_jax.distributed import sharding
from transformer_jax.layers.masks import Mask

_BLOCK, _MOST_BLOCKS = 64, 8  # queries of a block at least; each block is compiled by itself
# queries and keys of a tile of the TPU's kernel: the largest that divides the lengths
_TILES = (512, 256, 128)


def pick(q: jax.Array, k: jax.Array, mask: Mask, dropout: bool) -> Callable:
    """The kernel for these arrays on the mesh in use.

    Fused kernels where a row's scores are never written out (TPU: splash; GPU: cuDNN's flash
    attention, Dao et al. 2022) if the weights themselves are not needed for `dropout`. Decoding,
    and a length split over devices, take the plain one; where weights are dropped, the blocks: a
    mask is drawn for each, on any mesh alike.
    """
    if (
        q.shape[1] <= _BLOCK
        or mask.query_slots is not None
        or (sharding.parts("length") > 1 and not (dropout and mask.causal))
    ):
        return dot_product
    platform, split = sharding.platform(), (sharding.parts("batch"), sharding.parts("heads"))
    if (
        platform == "tpu"
        and not dropout
        and _tile(q, k)
        and q.shape[0] % split[0] == q.shape[2] % split[1] == 0
    ):
        return splash
    if platform == "gpu" and not dropout and _cudnn_takes(q, k):
        return cudnn
    return causal_blocks if mask.causal else dot_product


def _cudnn_takes(q: jax.Array, k: jax.Array) -> bool:
    """An NVIDIA GPU from Ampere on, bfloat16, heads of up to 128 in eights, even lengths."""
    # AMD's are called gfx942
    major = getattr(sharding.device(), "compute_capability", "").partition(".")[0]
    return (
        major.isdecimal()
        and int(major) >= 8
        and q.dtype == jnp.bfloat16
        and q.shape[-1] % 8 == 0
        and q.shape[-1] <= 128
        and q.shape[1] % 2 == k.shape[1] % 2 == 0
    )


def dot_product(
    q: jax.Array, k: jax.Array, v: jax.Array, mask: Mask, dropout=lambda w: w
) -> jax.Array:
    """As the formula stands; softmax in float32."""
    weights = dropout(attention_weights(q, k, mask)).astype(v.dtype)
    # the heads in front: for "bqhd" XLA turns the product over, and a beam search's takes five
    # times as long on a CPU
    return jnp.einsum("bhqk,bkhd->bhqd", weights, v).swapaxes(1, 2)


def attention_weights(q: jax.Array, k: jax.Array, mask: Mask) -> jax.Array:
    """softmax(q k^T / sqrt(D)) over the keys the mask shows, float32 (B, H, Q, K)."""
    scores = jnp.einsum(
        "bqhd,bkhd->bhqk", q / math.sqrt(q.shape[-1]), k, preferred_element_type=jnp.float32
    )
    seen = mask.dense(q.shape[1], k.shape[1])
    if seen is not None:
        scores = jnp.where(seen, scores, jnp.finfo(jnp.float32).min)
    return jax.nn.softmax(scores, axis=-1)


def causal_blocks(
    q: jax.Array, k: jax.Array, v: jax.Array, mask: Mask, dropout=lambda w: w
) -> jax.Array:
    """Causal self-attention in which a block of queries meets the keys up to its own end alone.

    Half the work is never begun. Forward and backward at lengths 128, 256 and 1024 on two CPU
    cores: 9 -> 4, 40 -> 15, 594 -> 330 ms (8 rows, 6 heads of 64).
    """
    length = q.shape[1]
    size = max(_BLOCK, -(-length // _MOST_BLOCKS))
    bounds = [*range(0, length, size), length]
    parts = [
        dot_product(q[:, a:b], k[:, :b], v[:, :b], mask.block(a, b), dropout)
        for a, b in zip(bounds, bounds[1:])
    ]
    return jnp.concatenate(parts, axis=1)


def cudnn(q: jax.Array, k: jax.Array, v: jax.Array, mask: Mask, dropout=None) -> jax.Array:
    """cuDNN's flash attention, bfloat16. Causal and whole rows alone go without a mask in memory."""
    plain = mask.window is None and mask.key_segments is None
    seen = None if plain else mask.dense(q.shape[1], k.shape[1])
    if seen is not None:
        # It takes no mask of one row for all queries; under a vmap, none of one head for all heads.
        heads = q.shape[2] if sharding.in_group() else seen.shape[1]
        seen = jnp.broadcast_to(seen, (seen.shape[0], heads, q.shape[1], k.shape[1]))
    return jax.nn.dot_product_attention(
        q, k, v, mask=seen, is_causal=mask.causal and plain, implementation="cudnn"
    )


def splash(
    q: jax.Array, k: jax.Array, v: jax.Array, mask: Mask, dropout=None, interpret: bool = False
) -> jax.Array:
    """JAX's flash attention for TPUs, which skips the tiles that a mask hides; each device computes
    its rows and heads. Padding sees padding.
    """
    keys = mask.key_segments
    queries = (
        mask.query_segments
        if keys is None or mask.query_segments is not None
        else jnp.ones(q.shape[:2], jnp.int32)
    )
    keys = keys if keys is None or mask.query_segments is not None else (keys > 0).astype(jnp.int32)

    def within(window, q, k, v, queries, keys):
        compute = functools.partial(_splash, mask.causal, window, interpret)
        heads, segments = (
            ("batch", "length", "heads", "head_dim"),
            None if keys is None else ("batch", "length"),
        )
        return sharding.on_each_device(
            compute, (q, k, v, queries, keys), (heads, heads, heads, segments, segments), heads
        )

    if mask.window is None:
        return within(None, q, k, v, queries, keys)
    # which keys are seen is compiled in: a branch for each of the windows that the layers of a
    # stack have
    chosen = jnp.searchsorted(jnp.array(mask.windows), mask.window)
    return jax.lax.switch(
        chosen,
        [functools.partial(within, window) for window in mask.windows],
        q,
        k,
        v,
        queries,
        keys,
    )


def _splash(causal, window, interpret, q, k, v, queries, keys):
    from jax.experimental.pallas.ops.tpu import splash_attention as kernels  # slow to import

    shape, tile = (q.shape[1], k.shape[1]), _tile(q, k)
    seen = kernels.CausalMask(shape) if causal else kernels.FullMask(shape)
    if window is not None and window < shape[1]:
        seen = kernels.LocalMask(shape, (window - 1, 0), 0)
    blocks = kernels.BlockSizes(*[tile] * 8)
    kernel = kernels.make_splash_mha(
        kernels.MultiHeadMask([seen] * q.shape[2]),
        block_sizes=blocks,
        head_shards=1,
        q_seq_shards=1,
        interpret=interpret,
    )
    q, k, v = ((x.transpose(0, 2, 1, 3)) for x in (q / math.sqrt(q.shape[-1]), k, v))
    if keys is None:
        return jax.vmap(kernel)(q, k, v).transpose(0, 2, 1, 3)
    return jax.vmap(kernel)(q, k, v, kernels.SegmentIds(queries, keys)).transpose(0, 2, 1, 3)


def _tile(q: jax.Array, k: jax.Array) -> int | None:
    return next((tile for tile in _TILES if q.shape[1] % tile == k.shape[1] % tile == 0), None)
