"""Multi-head attention, and the kernels that compute it."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, Shaped

from transformer_jax.config import UserError
from transformer_jax.distributed import sharding
from transformer_jax.layers import activations, blockwise_attention, recurrent, window_attention
from transformer_jax.layers.blockwise_attention import blockwise
from transformer_jax.layers.embeddings import Rotary
from transformer_jax.layers.masks import (
    Bias,
    Keys,
    Mask,
    Queries,
    causal_blocks,
    dot_product,
    padded,
)
from transformer_jax.layers.parameters import Linear
from transformer_jax.layers.recurrent import WeightDropout
from transformer_jax.layers.ring_attention import ring
from transformer_jax.layers.window_attention import windowed

# --------------------------------------------------------------------------------------------------
# Attention kernels: softmax(q k^T scale + bias) v over the keys that are visible under a mask.
#
# q (B, Q, H, D), k and v (B, K, G, D) -> (B, Q, H, D). Each of the G key heads is shared by H / G
# query heads (Ainslie et al. 2023). By default, the scale is 1 / sqrt(D) and there is no bias (B,
# H, Q, K). All kernels return the same result for the arguments that they support, so `pick` is
# free to choose the fastest. The output of a query without visible keys is finite but undefined.

# Up to this many queries, as in decoding, the score matrix is small, so that materializing it is
# faster than any kernel that works in tiles.
_SHORT = 64
# Tile sizes of the TPU kernel, the preferred one first. The kernel has no partial tiles, so the
# smaller sizes serve lengths that the larger ones do not divide. Other lengths are padded, if that
# makes them at most 1.5 times as long.
_TPU_TILES = (512, 256, 128)
_MOST_PADDING = 0.5


def pick(q: Queries, k: Keys, mask: Mask, dropout: bool, *, bias: Bias | None = None) -> Callable:
    """Returns the kernel for these arrays on the mesh in use.

    A length that is split over devices uses `ring`. Other lengths use a fused kernel: splash on a
    TPU, cuDNN's flash attention (Dao et al. 2022) on a GPU, and `blockwise` on both if there is
    `dropout` on the attention weights. None of these materializes the score matrix. Attention
    within a window uses `windowed`, unless splash or cuDNN support the window themselves. On a CPU,
    causal attention uses `causal_blocks`. Decoding, short sequences and everything that no other
    kernel supports (`TAKES`) use `dot_product`, which materializes the score matrix even if the
    length is split.
    """
    asked = mask.conditions()
    asked |= {"bias"} if bias is not None else set()
    asked |= {"groups"} if q.shape[2] != k.shape[2] else set()
    if q.shape[1] <= _SHORT:
        return dot_product
    # Ring attention has no dropout on the weights. With dropout, XLA therefore partitions one of
    # the kernels below.
    if sharding.parts("length") > 1 and not dropout:
        return ring if asked <= TAKES[ring] and _ring_supports(q, k) else dot_product
    platform = sharding.platform()
    if platform == "tpu" and not dropout and asked <= TAKES[splash] and _splash_supports(q, k):
        return splash
    is_windowed = asked <= TAKES[windowed] and window_attention.pays(mask, q.shape[1])
    # Blocks of a window are slices of the whole row, which no device holds if the length is split.
    is_windowed = is_windowed and sharding.parts("length") == 1 and q.shape[1] == k.shape[1]
    fits_cudnn = platform == "gpu" and not dropout and _cudnn_supports(q, k, mask)
    if fits_cudnn and asked <= (_CUDNN_WINDOW if is_windowed else TAKES[cudnn]):
        return cudnn
    if is_windowed:
        return windowed
    if dropout and asked <= TAKES[blockwise] and _blockwise_supports(q, k):
        return blockwise
    return causal_blocks if mask.causal and asked <= TAKES[causal_blocks] else dot_product


def _splash_supports(q: jax.Array, k: jax.Array) -> bool:
    """Whether both lengths nearly fill tiles, and the mesh divides the batch and the heads."""
    fills = all(_tile_padding(x) <= _MOST_PADDING * x.shape[1] for x in (q, k))
    return fills and _mesh_divides(k, batch=0, heads=2)


def _tile_padding(x: jax.Array) -> int:
    """Returns how many positions fill the last of the smallest tiles."""
    return -x.shape[1] % _TPU_TILES[-1]


def _ring_supports(q: jax.Array, k: jax.Array) -> bool:
    """Whether the mesh divides the batch, the heads and both lengths."""
    return _mesh_divides(q, length=1) and _mesh_divides(k, batch=0, length=1, heads=2)


def _mesh_divides(x: jax.Array, **dimensions: int) -> bool:
    """Whether the mesh divides these dimensions of `x`, {logical axis: dimension}."""
    return all(x.shape[i] % sharding.parts(axis) == 0 for axis, i in dimensions.items())


def _cudnn_supports(q: jax.Array, k: jax.Array, mask: Mask) -> bool:
    """Whether the device is an NVIDIA GPU, Ampere or later, and cuDNN supports these shapes.

    cuDNN supports bfloat16, even lengths, and head dimensions that are multiples of 8 up to 128. A
    row of an odd length is padded, unless its mask is in memory.
    """
    return (
        sharding.is_ampere()
        and q.dtype == jnp.bfloat16
        and q.shape[-1] % 8 == 0
        and q.shape[-1] <= 128
        and (_is_even(q, k) or _has_lengths(q, k, mask))
    )


def _is_even(q: jax.Array, k: jax.Array) -> bool:
    return q.shape[1] % 2 == k.shape[1] % 2 == 0


def _has_lengths(q: jax.Array, k: jax.Array, mask: Mask) -> bool:
    """Whether cuDNN is given the lengths of rows instead of a mask in memory."""
    if mask.padding_last:
        return mask.conditions() <= _CUDNN_LENGTHS
    return mask.conditions() <= {"causal"} and not _is_even(q, k)


def _blockwise_supports(q: jax.Array, k: jax.Array) -> bool:
    """Whether the mesh divides only the batch and the heads, and blocks divide the lengths."""
    is_whole = sharding.parts("length") == 1 and _mesh_divides(k, batch=0, heads=2)
    return is_whole and blockwise_attention.supports(q, k)


def cudnn(
    q: Queries,
    k: Keys,
    v: Keys,
    mask: Mask,
    dropout: None = None,
    *,
    bias: Bias | None = None,
    scale: float | None = None,
) -> Queries:
    """cuDNN's flash attention in bfloat16, which skips the tiles that a causal mask hides.

    Full or causal attention without further conditions needs no mask in memory, and neither does
    padding at the end of rows, whose tiles are skipped. A bias and its gradient are rounded to
    bfloat16. With a mask in memory as well, the kernel gets the sum of both (B, H, Q, K).
    """
    if bias is not None:
        bias = _cudnn_bias(q, k, bias)
    if bias is None and "window" in mask.conditions() <= _CUDNN_WINDOW:
        return mask.for_each_window(partial(_cudnn_window, q, k, v, scale=scale))
    if _has_lengths(q, k, mask):
        return _cudnn_lengths(q, k, v, mask, bias=bias, scale=scale)
    # The kernel has no prefix: its own causal mask would hide the later keys of the prefix.
    is_causal = mask.causal and mask.prefix is None
    conditions = mask.replace(causal=False) if is_causal else mask
    visible = conditions.dense(q.shape[1], k.shape[1])
    if visible is not None:
        # The mask is expanded, because cuDNN does not broadcast it over the queries and, under a
        # vmap, not over the heads either.
        heads = q.shape[2] if _is_mapped() else visible.shape[1]
        visible = jnp.broadcast_to(visible, (visible.shape[0], heads, q.shape[1], k.shape[1]))
        visible = _like_scores(visible)
    return jax.nn.dot_product_attention(
        q,
        k,
        v,
        bias=bias,
        mask=visible,
        is_causal=is_causal,
        scale=scale,
        implementation="cudnn",
    )


def _cudnn_bias(q: Queries, k: Keys, bias: Bias) -> Bias:
    """Returns the bias for all queries and keys."""
    heads = bias.shape[1]
    if _is_mapped():
        # Under a vmap, JAX would return the sum of the gradients of all groups for each group, if
        # the bias were not mapped. It is therefore expanded to rows that depend on q.
        bias = bias + _zeros(q)[:, None, None, None]
        heads = q.shape[2]
    bias = jnp.broadcast_to(bias, (len(bias), heads, q.shape[1], k.shape[1])).astype(q.dtype)
    return _like_scores(bias)


def _is_mapped() -> bool:
    """Whether a vmap runs over groups of rows, or over the stages of a pipeline."""
    return sharding.in_group() or sharding.parts("layers") > 1


def _like_scores(x: Shaped[Array, "#B #H Q K"]) -> Shaped[Array, "#B #H Q K"]:
    """Divides a mask or a bias over devices as the scores are, because JAX requires it."""
    batch, heads = x.shape[:2]
    return sharding.constrain(
        x, "batch" if batch > 1 else None, "heads" if heads > 1 else None, None, None
    )


def _zeros(q: Queries) -> Int[Array, " B"]:
    """Returns zeros that depend on q, so that they are mapped where q is mapped by a vmap."""
    return 0 * jnp.isnan(q[:, 0, 0, 0]).astype(jnp.int32)


def _cudnn_lengths(
    q: Queries, k: Keys, v: Keys, mask: Mask, *, bias: Bias | None, scale: float | None
) -> Queries:
    if mask.padding_last:
        # A row of padding keeps one position, because the softmax over no keys is NaN.
        query_lengths = jnp.maximum((mask.key_segments > 0).sum(axis=1, dtype=jnp.int32), 1)
        key_lengths = query_lengths
    else:
        # Under a vmap, JAX requires lengths that are mapped, as constants are not.
        query_lengths, key_lengths = _zeros(q) + q.shape[1], _zeros(q) + k.shape[1]
    # Each device needs the lengths of its own rows.
    query_lengths, key_lengths = (
        sharding.constrain(lengths, "batch") for lengths in (query_lengths, key_lengths)
    )
    # In training, JAX refuses odd lengths.
    even = (padded(x, x.shape[1] % 2) for x in (q, k, v))
    if bias is not None:
        bias = jnp.pad(bias, [(0, 0), (0, 0), (0, q.shape[1] % 2), (0, k.shape[1] % 2)])
    y = jax.nn.dot_product_attention(
        *even,
        bias=bias,
        is_causal=mask.causal,
        query_seq_lengths=query_lengths,
        key_value_seq_lengths=key_lengths,
        scale=scale,
        implementation="cudnn",
    )
    return y[:, : q.shape[1]]


def _cudnn_window(q, k, v, window: int, *, scale) -> Queries:
    # cuDNN counts the keys before the query, whereas `window` counts the query's own key as well.
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
    """JAX's flash attention for TPUs, which skips the tiles that the mask hides.

    Each device computes its own examples and heads. Queries that are padding attend to padding.
    """
    length = q.shape[1]
    query_padding, key_padding = _tile_padding(q), _tile_padding(k)
    query_segments, key_segments = mask.segments(length)
    if key_segments is None and key_padding:
        query_segments, key_segments = (jnp.ones(x.shape[:2], jnp.int32) for x in (q, k))
    # The kernel does not scale the scores, so the queries are scaled beforehand.
    scaled = q / math.sqrt(q.shape[-1]) if scale is None else q * scale
    arrays = (
        padded(scaled, query_padding),
        padded(k, key_padding),
        padded(v, key_padding),
        padded(query_segments, query_padding),
        padded(key_segments, key_padding),
    )
    head_axes = ("batch", "length", "heads", "head_dim")
    segment_axes = None if key_segments is None else ("batch", "length")
    axes = (head_axes, head_axes, head_axes, segment_axes, segment_axes)

    def within(window: int | None) -> Queries:
        kernel = partial(_splash, causal=mask.causal, window=window, interpret=interpret)
        return sharding.on_each_device(kernel, arrays, axes, head_axes)[:, :length]

    return mask.for_each_window(within)


def _splash(q, k, v, query_segments, key_segments, *, causal, window, interpret) -> jax.Array:
    # This is imported here, because the import is slow and only TPUs need it.
    from jax.experimental.pallas.ops.tpu import splash_attention as pallas

    shape = (q.shape[1], k.shape[1])
    # Layers without a window pass one that exceeds any length, so the kernel needs no window then.
    if window is not None and window < max(shape):
        visible = pallas.LocalMask(shape, (window - 1, 0 if causal else window - 1), 0)
    elif causal:
        visible = pallas.CausalMask(shape)
    else:
        visible = pallas.FullMask(shape)
    kernel = pallas.make_splash_mha(
        pallas.MultiHeadMask([visible] * q.shape[2]),
        # There are eight sizes, because queries and keys have one each in the forward pass and in
        # both kernels of the backward pass.
        block_sizes=pallas.BlockSizes(*[_tpu_tile(q, k)] * 8),
        # There is one shard, because `sharding.on_each_device` has already split the heads, and no
        # length reaches here split.
        head_shards=1,
        q_seq_shards=1,
        interpret=interpret,
    )
    # The arrays are transposed and mapped over the batch, because the kernel takes one example (H,
    # L, D).
    q = q.transpose(0, 2, 1, 3)  # (B, H, Q, D)
    k = k.transpose(0, 2, 1, 3)
    v = v.transpose(0, 2, 1, 3)
    if key_segments is None:
        y = jax.vmap(kernel)(q, k, v)
    else:
        y = jax.vmap(kernel)(q, k, v, pallas.SegmentIds(query_segments, key_segments))
    return y.transpose(0, 2, 1, 3)


def _tpu_tile(q: jax.Array, k: jax.Array) -> int:
    """Returns the largest tile that divides the padded lengths of queries and keys."""
    return next(tile for tile in _TPU_TILES if q.shape[1] % tile == k.shape[1] % tile == 0)


_WITHIN_SEGMENTS = frozenset({"causal", "window", "query_segments", "key_segments", "groups"})
_BY_PAIRS = _WITHIN_SEGMENTS | {"global_keys", "global_queries", "query_ranks", "key_ranks"}
# cuDNN's kernel has a window of its own, but only if there are no conditions beside these.
_CUDNN_WINDOW = frozenset({"causal", "window", "groups"})
# It takes the lengths of rows in place of segments beside these.
_CUDNN_LENGTHS = frozenset({"causal", "query_segments", "key_segments"})
# The fields of a mask and the options that each kernel supports. A kernel would silently ignore any
# other condition, so `pick` must not choose it then. `dot_product` supports all.
TAKES = {
    splash: _WITHIN_SEGMENTS,
    ring: _WITHIN_SEGMENTS,
    windowed: _WITHIN_SEGMENTS | {"dilation"},
    cudnn: _BY_PAIRS | {"prefix", "bias"},
    blockwise: _WITHIN_SEGMENTS - {"window"},
    causal_blocks: _BY_PAIRS | {"bias"},
}


# --------------------------------------------------------------------------------------------------
# Multi-head attention (Vaswani et al. 2017, section 3.2.2), with a cache for decoding.
#
# The kernels know nothing of the cache: they get all of its slots, and the mask hides those that
# hold no token yet.

# How the cache orders the axes of keys and values (B, L, H, D). Keys are stored as (B, H, D, L) and
# values as (B, H, L, D), because these are the layouts in which the two products of attention read
# them, so that no step of decoding transposes the cache. LSH attention also stores buckets (B, L,
# H, rounds).
_CACHE_AXES = {"keys": (0, 2, 3, 1), "values": (0, 2, 1, 3), "buckets": (0, 2, 3, 1)}


class Attention(nn.Module):
    """Attention from x to `encoder_output`, or to x itself: (B, Q, M), (B, K, M) -> (B, Q, M).

    `decode` is the number of slots of the KV cache; 0 means no decoding. In decoding,
    self-attention writes the keys and values of x to the slots `mask.query_slots` of the collection
    "cache" and attends to all slots that are visible under the mask. The first call of
    cross-attention stores the keys and values of `encoder_output` in the collection "cross_cache";
    later calls omit `encoder_output`.

    With `rotary`, queries and keys are rotated by `positions` (B, L), which default to their slots.
    The `bias` (B, H, Q, K) is added to the scores.
    """

    num_heads: int
    head_dim: int
    # Heads of keys and values, each shared by num_heads / num_kv_heads query heads (Ainslie et al.
    # 2023); None: num_heads.
    num_kv_heads: int | None = None
    rotary: Rotary | None = None
    scale: float | None = None  # of the scores; None: 1 / sqrt(head_dim)
    use_bias: bool = True
    # Whether the output projection has a bias; None: use_bias.
    output_bias: bool | None = None
    dropout: float = 0.0  # on the attention weights
    cross: bool = False
    kernel_init: nn.initializers.Initializer = nn.initializers.xavier_uniform()
    # Initializers of the query and output projections; None: kernel_init.
    query_init: nn.initializers.Initializer | None = None
    output_init: nn.initializers.Initializer | None = None
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B Q M"],
        encoder_output: Float[Array, "B K N"] | None = None,
        *,
        mask: Mask,
        positions: Int[Array, "#B Q"] | None = None,
        bias: Bias | None = None,
        train: bool = False,
        decode: int = 0,
    ) -> Float[Array, "B Q M"]:
        kv_heads = self.num_kv_heads or self.num_heads
        q = self._project("query", x, self.num_heads, self.query_init)  # (B, Q, H, D)
        if decode and self.cross and encoder_output is None:
            k = self._read_cross_cache("keys")
            v = self._read_cross_cache("values")
        else:
            source = encoder_output if self.cross else x
            k = self._project("key", source, kv_heads)  # (B, K, G, D)
            v = self._project("value", source, kv_heads)
            # Keys are cached after their rotation, which is then computed only once.
            if self.rotary is not None:
                positions = mask.slots(x.shape[1]) if positions is None else positions
                q = self.rotary(q, positions)
                k = self.rotary(k, positions)
            if decode and self.cross:
                self._write_cross_cache("keys", k)
                self._write_cross_cache("values", v)
            elif decode:
                k = self._update_cache("keys", k, mask.query_slots, decode)
                v = self._update_cache("values", v, mask.query_slots, decode)
        q = activations.named(self, "queries", q)
        k = activations.named(self, "keys", k)
        v = activations.named(self, "values", v)
        dropout = self._weight_dropout(len(x)) if train and self.dropout else None
        kernel = pick(q, k, mask, dropout is not None, bias=bias)
        if activations.requested(self, "weights"):
            # Only `dot_product` serves, because the other kernels never hold all weights in one
            # array.
            observe = partial(activations.named, self, "weights")
            kernel = partial(dot_product, observe=observe)
        y = kernel(q, k, v, mask, dropout, bias=bias, scale=self.scale)
        y = activations.named(self, "heads", y)  # (B, Q, H, D)
        return self._merged(y, x.shape[-1])

    def _weight_dropout(self, batch: int) -> WeightDropout:
        """Returns the dropout of this layer's attention weights in this step."""
        return recurrent.drawn(self.make_rng("dropout"), self.dropout, batch, self.num_heads)

    def _merged(self, y: Float[Array, "B Q H D"], features: int) -> Float[Array, "B Q M"]:
        """Projects the outputs of the heads to hidden states."""
        output = Linear(
            y.shape[2:],
            (features,),
            axes=("heads", "head_dim", "embed"),
            use_bias=self.use_bias if self.output_bias is None else self.output_bias,
            kernel_init=self.output_init or self.kernel_init,
            dtype=self.dtype,
            name="out",
        )
        return output(y)

    def _project(
        self,
        name: str,
        x: Float[Array, "B L M"],
        num_heads: int,
        kernel_init: nn.initializers.Initializer | None = None,
    ) -> Float[Array, "B L H D"]:
        """Projects hidden states to heads."""
        y = self._projection(name, x.shape[-1], num_heads, kernel_init)(x)
        return sharding.constrain(y, "batch", "length", "heads", "head_dim")

    def _projection(
        self,
        name: str,
        features: int,
        num_heads: int,
        kernel_init: nn.initializers.Initializer | None = None,
    ) -> Linear:
        """Returns the projection of hidden states (B, L, features) to heads (B, L, H, D)."""
        # In muP, scores are scaled by 1 / D in all. A family that fixes their scale has no factor
        # of 1 / sqrt(D) yet.
        power = 0.5 if self.scale is None else 1.0
        return Linear(
            (features,),
            (num_heads, self.head_dim),
            axes=("embed", "heads", "head_dim"),
            use_bias=self.use_bias,
            query_power=power if name.endswith("query") else 0.0,
            kernel_init=kernel_init or self.kernel_init,
            dtype=self.dtype,
            name=name,
        )

    def _read_cross_cache(self, name: str) -> Float[Array, "B K H D"]:
        """Returns the keys or values of the collection "cross_cache"."""
        # The argsort of a permutation is its inverse, so that the axes return to the order (B, L,
        # H, D).
        order = np.argsort(_CACHE_AXES[name])
        return self.get_variable("cross_cache", name).transpose(order)

    def _write_cross_cache(self, name: str, new: Float[Array, "B K H D"]) -> None:
        """Writes the keys or values to the collection "cross_cache"."""
        # The barrier makes XLA keep the transposed array. Without it, XLA would transpose the
        # original again for each token that is decoded.
        stored = jax.lax.optimization_barrier(new.transpose(_CACHE_AXES[name]))
        self.put_variable("cross_cache", name, stored)

    def _update_cache(
        self,
        name: str,
        new: Shaped[Array, "B L H D"],
        slots: Int[Array, "B L"] | Int[Array, ""],
        num_slots: int,
    ) -> Shaped[Array, "B K H D"]:
        """Writes keys, values or buckets to the cache and returns the whole cache.

        `slots` are the slots of each row, or the first slot () if all rows use the same ones.
        """
        batch, _, heads, head_dim = new.shape
        order = _CACHE_AXES[name]
        shape = tuple((batch, num_slots, heads, head_dim)[axis] for axis in order)
        cache = self.variable("cache", name, lambda: jnp.zeros(shape, new.dtype))
        if slots.ndim == 0:
            # A slice update works in place and is much faster than a scatter.
            cache.value = jax.lax.dynamic_update_slice_in_dim(
                cache.value, new.transpose(order), slots, order.index(1)
            )
        else:
            axes = ("batch", None, "heads", None)
            cache_axes = tuple(axes[axis] for axis in order)
            cache.value = sharding.on_each_device(
                partial(_scattered, order),
                (cache.value, new, slots),
                (cache_axes, axes, ("batch", None)),
                cache_axes,
            )
        return cache.value.transpose(np.argsort(order))


def _scattered(
    order: tuple[int, ...],
    cached: Shaped[Array, "B H _ _"],
    new: Shaped[Array, "B L H D"],
    slots: Int[Array, "B L"],
) -> Shaped[Array, "B H _ _"]:
    """Returns `cached`, whose axes have this order, with `new` written to the slots of each row.

    Each device calls this for its own part, because XLA would gather `new` from all devices to
    partition the scatter.
    """
    # A single index is repeated, because XLA turns a scatter to one index into a slice update, for
    # which it computes the slice twice and copies the cache. A scatter to two equal indices remains
    # a scatter and works in place.
    if slots.size == 1:
        slots = jnp.repeat(slots, 2, axis=1)
        new = jnp.repeat(new, 2, axis=1)
    rows = jnp.arange(len(new))[:, None]
    index = (rows, *(slots if axis == 1 else slice(None) for axis in order[1:]))
    return cached.at[index].set(new)


def check_heads(d_model: int, num_heads: int, head_dim: int | None) -> None:
    """Raises UserError if no `head_dim` is given and `num_heads` does not divide `d_model`."""
    if head_dim is None and d_model % num_heads:
        raise UserError(
            f"config.model.num_heads={num_heads} does not divide config.model.d_model={d_model}"
        )


def resize_slots(cached: dict, num_slots: int) -> dict:
    """Returns a collection "cache" or "cross_cache" resized to `num_slots` slots.

    Slots are removed or added at the end.
    """

    def fit(x, axis):
        x = jax.lax.slice_in_dim(x, 0, min(num_slots, x.shape[axis]), axis=axis)
        padding = [(0, 0)] * x.ndim
        padding[axis] = (0, num_slots - x.shape[axis])
        return jnp.pad(x, padding)

    return _map_slots(fit, cached)


def roll_slots(cached: dict, shift: Int[ArrayLike, ""]) -> dict:
    """Returns a collection "cache" whose slots are rolled by `shift`."""

    def roll(x, axis):
        return jnp.roll(x, shift, axis)

    return _map_slots(roll, cached)


def write_slots(cached: dict, new: dict, row: Int[ArrayLike, ""], slot: Int[ArrayLike, ""]) -> dict:
    """Returns a collection "cache" or "cross_cache" with `new` written at `row` and `slot`."""

    def write(x, axis, update):
        start = [0] * x.ndim
        start[0] = row
        start[axis] = slot
        return jax.lax.dynamic_update_slice(x, update, start)

    return _map_slots(write, cached, new)


def _map_slots(function: Callable, *collections: dict) -> dict:
    """Maps function(array, slot axis, ...) over the arrays of the collections."""

    def map_array(path, x, *others):
        name = _cached_name(path)
        return function(x, _CACHE_AXES[name].index(1), *others)

    return jax.tree_util.tree_map_with_path(map_array, *collections)


def is_cached(path: tuple) -> bool:
    """Whether the array at this path of a tree is part of a KV cache."""
    return _cached_name(path) is not None


def _cached_name(path: tuple) -> str | None:
    names = (getattr(key, "key", None) for key in path)
    return next((name for name in names if name in _CACHE_AXES), None)


def weights_in(
    model: nn.Module,
    params,
    stack: str,
    *inputs: Any,
    method: str = "hidden",
    cross: bool = False,
) -> np.ndarray:
    """Returns the attention weights (layers, H, Q, K) float32 of one stack of a model.

    `inputs` are the arguments of the model, a batch of one row.
    """
    # In a stack with a pattern of n blocks, each block has its own array, of every n-th layer, so
    # that stacking along axis 1 restores the order of the layers. Names are sorted by length first,
    # because block_10 must follow block_9.
    name = f"{stack}/*cross_attention/weights" if cross else f"{stack}/layer*/attention/weights"
    captured = _captured(model, name, method, params, inputs)
    names = sorted(captured, key=lambda name: (len(name), name))
    weights = np.stack([captured[name][:, 0] for name in names], axis=1)
    return weights.reshape(-1, *weights.shape[2:])


# One program for all rows of a length, because op by op a small model takes a hundred of them.
@partial(jax.jit, static_argnums=(0, 1, 2))
def _captured(model: nn.Module, name: str, method: str, params, inputs: tuple) -> dict[str, Any]:
    return activations.capture(model, params, [name], *inputs, method=method)
