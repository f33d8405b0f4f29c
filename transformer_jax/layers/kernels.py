"""The kernels of attention: softmax(q k^T / sqrt(D)) v over the keys that a mask shows.

q (B, Q, H, D), k and v (B, K, H, D) -> (B, Q, H, D). All kernels agree; `pick` chooses one. The
output of a query without any visible key is finite but undefined.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from transformer_jax.distributed import sharding
from transformer_jax.layers.masks import Mask

# The smallest number of queries in a block of `causal_blocks`, and the largest number of blocks.
# Each block is compiled separately.
_MIN_QUERY_BLOCK = 64
_MAX_QUERY_BLOCKS = 8
# Tile sizes of the TPU kernel. It takes the largest one that divides both lengths.
_TPU_TILES = (512, 256, 128)


def _identity(weights: jax.Array) -> jax.Array:
    return weights


def pick(q: jax.Array, k: jax.Array, mask: Mask, dropout: bool) -> Callable:
    """Returns the kernel for these arrays on the mesh in use.

    The fused kernels never write out the scores: splash on a TPU, cuDNN's flash attention (Dao et
    al. 2022) on a GPU. They cannot apply `dropout` to the attention weights. Decoding, short rows
    and a length split over devices take `dot_product`. With dropout, causal attention takes
    `causal_blocks` even then: on every mesh it draws the same dropout mask for each block.
    """
    split_length = sharding.parts("length") > 1
    if (
        q.shape[1] <= _MIN_QUERY_BLOCK
        or mask.query_slots is not None
        or (split_length and not (dropout and mask.causal))
    ):
        return dot_product
    platform = sharding.platform()
    if platform == "tpu" and not dropout and _splash_supports(q, k):
        return splash
    if platform == "gpu" and not dropout and _cudnn_supports(q, k):
        return cudnn
    return causal_blocks if mask.causal else dot_product


def _splash_supports(q: jax.Array, k: jax.Array) -> bool:
    """Whether a tile divides both lengths, and the mesh divides the rows and the heads."""
    rows_divide = q.shape[0] % sharding.parts("batch") == 0
    heads_divide = q.shape[2] % sharding.parts("heads") == 0
    return _tpu_tile(q, k) is not None and rows_divide and heads_divide


def _cudnn_supports(q: jax.Array, k: jax.Array) -> bool:
    """Whether the device is an NVIDIA GPU from Ampere on, and cuDNN takes these shapes.

    cuDNN takes bfloat16, heads of up to 128 in multiples of 8, and even lengths.
    """
    # The capability of an AMD GPU is a name such as gfx942.
    capability = getattr(sharding.device(), "compute_capability", "")
    major = capability.partition(".")[0]
    return (
        major.isdecimal()
        and int(major) >= 8
        and q.dtype == jnp.bfloat16
        and q.shape[-1] % 8 == 0
        and q.shape[-1] <= 128
        and q.shape[1] % 2 == k.shape[1] % 2 == 0
    )


def dot_product(
    q: jax.Array, k: jax.Array, v: jax.Array, mask: Mask, dropout: Callable = _identity
) -> jax.Array:
    """Scaled dot-product attention (Vaswani et al. 2017, section 3.2.1), softmax in float32."""
    weights = dropout(attention_weights(q, k, mask)).astype(v.dtype)
    # Heads in front of queries: for "bqhd" XLA transposes the product, and beam search takes five
    # times as long on a CPU.
    return jnp.einsum("bhqk,bkhd->bhqd", weights, v).swapaxes(1, 2)


def attention_weights(q: jax.Array, k: jax.Array, mask: Mask) -> jax.Array:
    """Returns softmax(q k^T / sqrt(D)) over the keys that the mask shows, float32 (B, H, Q, K)."""
    scaled = q / math.sqrt(q.shape[-1])
    scores = jnp.einsum("bqhd,bkhd->bhqk", scaled, k, preferred_element_type=jnp.float32)
    visible = mask.dense(q.shape[1], k.shape[1])
    if visible is not None:
        scores = jnp.where(visible, scores, jnp.finfo(jnp.float32).min)
    return jax.nn.softmax(scores, axis=-1)


def causal_blocks(
    q: jax.Array, k: jax.Array, v: jax.Array, mask: Mask, dropout: Callable = _identity
) -> jax.Array:
    """Causal self-attention by blocks of queries. A block reads the keys up to its own end only.

    This saves almost half of the work. Forward and backward at lengths 128, 256 and 1024 on two CPU
    cores: 9 -> 4, 40 -> 15, 594 -> 330 ms (8 rows, 6 heads of 64).
    """
    length = q.shape[1]
    size = max(_MIN_QUERY_BLOCK, -(-length // _MAX_QUERY_BLOCKS))
    bounds = [*range(0, length, size), length]
    blocks = [
        dot_product(q[:, start:stop], k[:, :stop], v[:, :stop], mask.block(start, stop), dropout)
        for start, stop in zip(bounds, bounds[1:])
    ]
    return jnp.concatenate(blocks, axis=1)


def cudnn(
    q: jax.Array, k: jax.Array, v: jax.Array, mask: Mask, dropout: Callable | None = None
) -> jax.Array:
    """cuDNN's flash attention, bfloat16.

    Attention that is full or causal, without window or segments, needs no mask in memory.
    """
    needs_mask = mask.window is not None or mask.key_segments is not None
    visible = mask.dense(q.shape[1], k.shape[1]) if needs_mask else None
    if visible is not None:
        # cuDNN does not broadcast a mask over the queries. Under a vmap, it does not broadcast one
        # over the heads either.
        heads = q.shape[2] if sharding.in_group() else visible.shape[1]
        visible = jnp.broadcast_to(visible, (visible.shape[0], heads, q.shape[1], k.shape[1]))
    is_causal = mask.causal and not needs_mask
    return jax.nn.dot_product_attention(
        q, k, v, mask=visible, is_causal=is_causal, implementation="cudnn"
    )


def splash(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: Mask,
    dropout: Callable | None = None,
    *,
    interpret: bool = False,
) -> jax.Array:
    """JAX's flash attention for TPUs. It skips the tiles that the mask hides.

    Each device computes its own rows and heads. Queries that are padding attend to padding.
    """
    query_segments = mask.query_segments
    key_segments = mask.key_segments
    if key_segments is not None and query_segments is None:
        query_segments = jnp.ones(q.shape[:2], jnp.int32)
        key_segments = (key_segments > 0).astype(jnp.int32)
    arrays = (q, k, v, query_segments, key_segments)
    head_axes = ("batch", "length", "heads", "head_dim")
    segment_axes = None if key_segments is None else ("batch", "length")
    axes = (head_axes, head_axes, head_axes, segment_axes, segment_axes)

    def with_window(window, arrays):
        kernel = functools.partial(_splash, causal=mask.causal, window=window, interpret=interpret)
        return sharding.on_each_device(kernel, arrays, axes, head_axes)

    if mask.window is None:
        return with_window(None, arrays)
    # The window is compiled into the kernel: one branch for each window of the stack's layers.
    branches = [functools.partial(with_window, window) for window in mask.windows]
    branch = jnp.searchsorted(jnp.array(mask.windows), mask.window)
    return jax.lax.switch(branch, branches, arrays)


def _splash(q, k, v, query_segments, key_segments, *, causal, window, interpret) -> jax.Array:
    # Slow to import, and needed on a TPU only.
    from jax.experimental.pallas.ops.tpu import splash_attention as pallas

    shape = (q.shape[1], k.shape[1])
    if window is not None and window < shape[1]:
        visible = pallas.LocalMask(shape, (window - 1, 0), 0)
    elif causal:
        visible = pallas.CausalMask(shape)
    else:
        visible = pallas.FullMask(shape)
    kernel = pallas.make_splash_mha(
        pallas.MultiHeadMask([visible] * q.shape[2]),
        block_sizes=pallas.BlockSizes(*[_tpu_tile(q, k)] * 8),
        head_shards=1,
        q_seq_shards=1,
        interpret=interpret,
    )
    q = (q / math.sqrt(q.shape[-1])).transpose(0, 2, 1, 3)  # (B, H, Q, D)
    k = k.transpose(0, 2, 1, 3)
    v = v.transpose(0, 2, 1, 3)
    if key_segments is None:
        y = jax.vmap(kernel)(q, k, v)
    else:
        y = jax.vmap(kernel)(q, k, v, pallas.SegmentIds(query_segments, key_segments))
    return y.transpose(0, 2, 1, 3)


def _tpu_tile(q: jax.Array, k: jax.Array) -> int | None:
    """Returns the largest tile that divides the lengths of queries and keys."""
    for tile in _TPU_TILES:
        if q.shape[1] % tile == k.shape[1] % tile == 0:
            return tile
    return None
