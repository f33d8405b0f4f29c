"""The kernels of attention: softmax(q k^T scale + bias) v over the keys that a mask shows.

q (B, Q, H, D), k and v (B, K, G, D) -> (B, Q, H, D). The G heads of the keys serve H / G heads of
the queries each (Ainslie et al. 2023). The scale is 1 / sqrt(D) by default, and the bias (B, H, Q,
K) is none. All kernels agree on all that they take; `pick` chooses one. The output of a query
without any visible key is finite but undefined.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from transformer_jax.distributed import sharding
from transformer_jax.layers import blockwise_attention, window_attention
from transformer_jax.layers.blockwise_attention import blockwise
from transformer_jax.layers.dot_product import Bias, Keys, Queries, causal_blocks, dot_product
from transformer_jax.layers.masks import Mask
from transformer_jax.layers.ring_attention import ring
from transformer_jax.layers.window_attention import windowed

# The largest number of queries that the plain kernel serves best.
_SHORT = 64
# Tile sizes of the TPU kernel. It takes the largest one that divides both lengths.
_TPU_TILES = (512, 256, 128)


def pick(q: Queries, k: Keys, mask: Mask, dropout: bool, *, bias: Bias | None = None) -> Callable:
    """Returns the kernel for these arrays on the mesh in use.

    A length that is split over devices takes `ring`, other lengths take a fused kernel: splash on a
    TPU, cuDNN's flash attention (Dao et al. 2022) on a GPU, and on both `blockwise` where there is
    `dropout` of the attention weights. None of these writes out all scores. A window takes
    `windowed`, except where splash or cuDNN have one. On a CPU, causal attention takes
    `causal_blocks`. Decoding and short rows take `dot_product`, and so does all that no other
    kernel TAKES: it writes out all scores, also those of a split length.
    """
    asked = mask.conditions()
    asked |= {"bias"} if bias is not None else set()
    asked |= {"groups"} if q.shape[2] != k.shape[2] else set()
    if q.shape[1] <= _SHORT:
        return dot_product
    if sharding.parts("length") > 1 and not dropout:
        return ring if asked <= TAKES[ring] and _ring_supports(q, k) else dot_product
    platform = sharding.platform()
    if platform == "tpu" and not dropout and asked <= TAKES[splash] and _splash_supports(q, k):
        return splash
    is_windowed = asked <= TAKES[windowed] and window_attention.pays(mask, q.shape[1])
    is_windowed = is_windowed and sharding.parts("length") == 1 and q.shape[1] == k.shape[1]
    fits_cudnn = platform == "gpu" and not dropout and _cudnn_supports(q, k)
    if fits_cudnn and asked <= (_CUDNN_WINDOW if is_windowed else TAKES[cudnn]):
        return cudnn
    if is_windowed:
        return windowed
    if dropout and asked <= TAKES[blockwise] and _blockwise_supports(q, k):
        return blockwise
    return causal_blocks if mask.causal and asked <= TAKES[causal_blocks] else dot_product


def _splash_supports(q: jax.Array, k: jax.Array) -> bool:
    """Whether a tile divides both lengths, and the mesh divides the rows and the heads."""
    return _tpu_tile(q, k) is not None and _mesh_divides(k, batch=0, heads=2)


def _ring_supports(q: jax.Array, k: jax.Array) -> bool:
    """Whether the mesh divides the rows, the heads and both lengths."""
    return _mesh_divides(q, length=1) and _mesh_divides(k, batch=0, length=1, heads=2)


def _mesh_divides(x: jax.Array, **dimensions: int) -> bool:
    """Whether the mesh divides these dimensions of `x`, {logical axis: dimension}."""
    return all(x.shape[i] % sharding.parts(axis) == 0 for axis, i in dimensions.items())


def _cudnn_supports(q: jax.Array, k: jax.Array) -> bool:
    """Whether the device is an NVIDIA GPU from Ampere on, and cuDNN takes these shapes.

    cuDNN takes bfloat16, heads of up to 128 in multiples of 8, and even lengths.
    """
    return (
        sharding.is_ampere()
        and q.dtype == jnp.bfloat16
        and q.shape[-1] % 8 == 0
        and q.shape[-1] <= 128
        and q.shape[1] % 2 == k.shape[1] % 2 == 0
    )


def _blockwise_supports(q: jax.Array, k: jax.Array) -> bool:
    """Whether the mesh divides the rows and the heads alone, and blocks divide the lengths."""
    is_whole = sharding.parts("length") == 1 and _mesh_divides(k, batch=0, heads=2)
    return is_whole and blockwise_attention.supports(q, k)


def cudnn(
    q: Queries,
    k: Keys,
    v: Keys,
    mask: Mask,
    dropout: None = None,
    *,
    bias: None = None,
    scale: float | None = None,
) -> Queries:
    """cuDNN's flash attention, bfloat16. It skips the tiles that a causal mask hides.

    Attention that is full or causal, without other conditions, needs no mask in memory.
    """
    if "window" in mask.conditions() <= _CUDNN_WINDOW:
        return mask.by_window(functools.partial(_cudnn_window, q, k, v, scale=scale))
    is_causal = mask.causal and mask.prefix is None
    conditions = mask.replace(causal=False) if is_causal else mask
    visible = conditions.dense(q.shape[1], k.shape[1])
    if visible is not None:
        # cuDNN does not broadcast a mask over the queries. Under a vmap, it does not broadcast one
        # over the heads either.
        heads = q.shape[2] if sharding.in_group() else visible.shape[1]
        visible = jnp.broadcast_to(visible, (visible.shape[0], heads, q.shape[1], k.shape[1]))
    return jax.nn.dot_product_attention(
        q, k, v, mask=visible, is_causal=is_causal, scale=scale, implementation="cudnn"
    )


def _cudnn_window(q, k, v, window: int, *, scale) -> Queries:
    reach = (window - 1, 0) if window < k.shape[1] else None
    return jax.nn.dot_product_attention(
        q,
        k,
        v,
        is_causal=True,
        local_window_size=reach,
        scale=scale,
        implementation="cudnn",
    )


def splash(
    q: Queries,
    k: Keys,
    v: Keys,
    mask: Mask,
    dropout: None = None,
    *,
    bias: None = None,
    scale: float | None = None,
    interpret: bool = False,
) -> Queries:
    """JAX's flash attention for TPUs. It skips the tiles that the mask hides.

    Each device computes its own rows and heads. Queries that are padding attend to padding.
    """
    query_segments, key_segments = mask.segments(q.shape[1])
    scaled = q / math.sqrt(q.shape[-1]) if scale is None else q * scale
    arrays = (scaled, k, v, query_segments, key_segments)
    head_axes = ("batch", "length", "heads", "head_dim")
    segment_axes = None if key_segments is None else ("batch", "length")
    axes = (head_axes, head_axes, head_axes, segment_axes, segment_axes)

    def within(window: int | None) -> Queries:
        kernel = functools.partial(_splash, causal=mask.causal, window=window, interpret=interpret)
        return sharding.on_each_device(kernel, arrays, axes, head_axes)

    return mask.by_window(within)


def _splash(q, k, v, query_segments, key_segments, *, causal, window, interpret) -> jax.Array:
    # Slow to import, and needed on a TPU only.
    from jax.experimental.pallas.ops.tpu import splash_attention as pallas

    shape = (q.shape[1], k.shape[1])
    if window is not None and window < max(shape):
        visible = pallas.LocalMask(shape, (window - 1, 0 if causal else window - 1), 0)
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
    q = q.transpose(0, 2, 1, 3)  # (B, H, Q, D)
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


_WITHIN_SEGMENTS = frozenset({"causal", "window", "query_segments", "key_segments", "groups"})
_BY_PAIRS = _WITHIN_SEGMENTS | {"global_keys", "global_queries", "query_ranks", "key_ranks"}
# Without other conditions, cuDNN's kernel has a window.
_CUDNN_WINDOW = frozenset({"causal", "window", "groups"})
# The fields of a mask and the options that each kernel takes. `dot_product` takes all.
TAKES = {
    splash: _WITHIN_SEGMENTS,
    ring: _WITHIN_SEGMENTS,
    windowed: _WITHIN_SEGMENTS | {"dilation"},
    cudnn: _BY_PAIRS | {"prefix"},
    blockwise: _WITHIN_SEGMENTS - {"window"},
    causal_blocks: _BY_PAIRS | {"bias"},
}
