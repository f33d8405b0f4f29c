"""Flash attention with dropout on the attention weights, as Pallas kernels for GPUs and TPUs.

The forward pass keeps a running softmax over blocks of keys (Dao et al. 2022, algorithm 2). The
backward pass recomputes the weights from the logarithm of their normalizer. Neither pass writes
scores or weights to memory. The dropout mask of a block is the one of `recurrent.WeightDropout`.
cuDNN's attention with dropout is not used, because it has another mask, with which the losses of a
training would depend on the mesh.

Each program of a kernel handles one row, one head and one block of queries (or of keys, for their
gradients), and reads all keys and values of the head. Vectors over a length are (1, L).
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float, Int, UInt32

from transformer_jax.distributed import sharding
from transformer_jax.layers.masks import Mask
from transformer_jax.layers.recurrent import WeightDropout, is_kept

_HIDDEN = -1e30  # the score of a hidden key; finite, because -inf - (-inf) is NaN
# The largest number of bytes of the keys and values of one head. A TPU holds them twice in its
# vector memory, where each vector is padded to a multiple of 128 numbers.
_MOST_BYTES = 4 * 2**20
_TPU_LANES = 128
# Block sizes, the preferred one first. The kernels have no partial blocks, so the smaller size
# serves lengths that the larger one does not divide.
_BLOCKS = {"tpu": (256, 128), "gpu": (64,)}


class Inputs(NamedTuple):
    """The inputs without gradients. Queries attend to keys of their own segment."""

    seeds: UInt32[Array, "B H 1 2"]
    query_segments: Int[Array, "B 1 1 Q"]
    key_segments: Int[Array, "B 1 1 K"]


class Options(NamedTuple):
    """The constants of a kernel."""

    causal: bool
    scale: float
    rate: float  # of the dropout
    block: int  # queries or keys of a block
    platform: str
    interpret: bool


def supports(q: jax.Array, k: jax.Array) -> bool:
    """Whether the kernels support queries (B, Q, H, D) and keys (B, K, G, D) on the current device.

    The device must be a TPU, or an NVIDIA GPU of the Ampere architecture or later.
    """
    head_dim = q.shape[3]
    if sharding.platform() == "tpu":
        width = -(-head_dim // _TPU_LANES) * _TPU_LANES
        fits = 2 * k.shape[1] * width * k.dtype.itemsize <= _MOST_BYTES
    else:
        # Triton needs powers of two as the sizes of a block, and at least 16 for its products.
        fits = sharding.is_ampere() and q.dtype == jnp.bfloat16 and head_dim in (16, 32, 64, 128)
    return fits and _block(q, k, sharding.platform()) is not None


def _block(q: jax.Array, k: jax.Array, platform: str) -> int | None:
    """Returns the first block size that divides the lengths of queries and keys, or None."""
    for block in _BLOCKS.get(platform, ()):
        if q.shape[1] % block == k.shape[1] % block == 0:
            return block
    return None


def blockwise(
    q: Float[Array, "B Q H D"],
    k: Float[Array, "B K G D"],
    v: Float[Array, "B K G D"],
    mask: Mask,
    dropout: WeightDropout,
    *,
    bias: None = None,
    scale: float | None = None,
    interpret: bool = False,
) -> Float[Array, "B Q H D"]:
    """Scaled dot-product attention. Each device computes its own examples and heads.

    The output equals the one of `masks.dot_product` except for padding, which attends to padding.
    """
    platform = "tpu" if interpret else sharding.platform()
    options = Options(
        causal=mask.causal,
        scale=q.shape[-1] ** -0.5 if scale is None else scale,
        rate=dropout.rate,
        block=_block(q, k, platform),
        platform=platform,
        interpret=interpret,
    )
    query_segments, key_segments = mask.segments(q.shape[1])
    if key_segments is None:
        # Everything is one segment, so that the same kernel serves rows that are not packed.
        query_segments, key_segments = (jnp.ones(x.shape[:2], jnp.int32) for x in (q, k))
    arrays = (q, k, v, query_segments, key_segments, dropout.seeds)
    heads = ("batch", "length", "heads", "head_dim")
    segments = ("batch", "length")
    axes = (heads, heads, heads, segments, segments, ("batch", "heads", None))

    def on_device(*arrays):
        q, k, v, query_segments, key_segments, seeds = arrays
        inputs = Inputs(
            seeds[:, :, None], query_segments[:, None, None], key_segments[:, None, None]
        )
        # (B, H, L, D), because a program reads positions of a single row and head.
        heads_first = [x.transpose(0, 2, 1, 3) for x in (q, k, v)]  # (B, H, L, D)
        return _attention(options, inputs, *heads_first).transpose(0, 2, 1, 3)

    return sharding.on_each_device(on_device, arrays, axes, heads)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(options: Options, inputs: Inputs, q, k, v):
    return _forward(options, inputs, q, k, v)[0]


def _forward(options: Options, inputs: Inputs, q, k, v):
    vectors = jax.ShapeDtypeStruct((*q.shape[:2], 1, q.shape[2]), jnp.float32)
    output, normalizer = _call(
        _forward_kernel,
        options,
        blocked=(inputs.query_segments, q),
        whole=(inputs.seeds, inputs.key_segments, k, v),
        results=(jax.ShapeDtypeStruct(q.shape, q.dtype), vectors),
    )
    return output, (inputs, q, k, v, output, normalizer)


def _backward(options: Options, saved, gradient):
    inputs, q, k, v, output, normalizer = saved
    # For each query, the sum of its weights times their gradients, which the gradient of the
    # softmax subtracts. It equals the product of output and output gradient (Dao et al. 2022,
    # appendix B.4), so that no kernel has to reduce over the keys for it.
    products = gradient.astype(jnp.float32) * output.astype(jnp.float32)
    means = products.sum(axis=-1)[:, :, None]  # (B, H, 1, Q)
    query_arrays = (inputs.query_segments, q, gradient, normalizer, means)
    key_arrays = (inputs.key_segments, k, v)
    # There are two kernels, because gradients of queries are sums over keys, but gradients of keys
    # and values are sums over queries. Each program can then sum up its own block and write it
    # once.
    (d_q,) = _call(
        _queries_kernel,
        options,
        blocked=query_arrays,
        whole=(inputs.seeds, *key_arrays),
        results=(jax.ShapeDtypeStruct(q.shape, q.dtype),),
    )
    # A program writes a block of its own, so each query head yields a part of the gradients of the
    # key head that it shares. The parts are summed afterwards, in float32.
    batch, heads, _, head_dim = q.shape
    is_shared = heads != k.shape[1]
    part = jax.ShapeDtypeStruct((batch, heads, *k.shape[2:]), jnp.float32 if is_shared else k.dtype)
    parts = _call(
        _keys_kernel,
        options,
        blocked=key_arrays,
        whole=(inputs.seeds, *query_arrays),
        results=(part, part),
    )
    if is_shared:
        parts = [x.reshape(*k.shape[:2], -1, *k.shape[2:]).sum(axis=2) for x in parts]
    # `inputs` has no gradient, because segment ids and seeds are integers.
    return None, d_q, *(x.astype(k.dtype) for x in parts)


_attention.defvjp(_forward, _backward)


def _call(kernel, options: Options, *, blocked: tuple, whole: tuple, results: tuple):
    """Calls a kernel of (*blocked, *whole, *results); returns results (B, H, L, D) or (B, H, 1, L).

    Each program reads one block of the `blocked` arrays and the whole of the others for its head,
    and writes one block of the results.
    """
    batch, heads = results[0].shape[:2]
    block = options.block

    def spec(x, is_blocked):
        shape = list(x.shape[2:])
        along = 1 if shape[0] == 1 else 0
        if is_blocked:
            shape[along] = block
        # Query heads that share a head of x find it by the index, so that it is not repeated.
        sharing = heads // x.shape[1]

        def index(row, head, number):
            block_index = [0, 0]
            if is_blocked:
                block_index[along] = number
            return row, jax.lax.div(head, sharing), *block_index

        return pl.BlockSpec((None, None, *shape), index)

    return pl.pallas_call(
        functools.partial(kernel, options),
        grid=(batch, heads, results[0].shape[2] // block),
        in_specs=[spec(x, True) for x in blocked] + [spec(x, False) for x in whole],
        out_specs=[spec(x, True) for x in results],
        out_shape=results,
        interpret=options.interpret,
        **_compiler(options),
    )(*blocked, *whole)


def _compiler(options: Options) -> dict:
    if options.platform != "gpu":
        return {}
    # This is imported here, because only GPUs need it.
    from jax.experimental.pallas import triton

    return {"compiler_params": triton.CompilerParams(num_warps=4, num_stages=2)}


# The kernels. Each loops over the other axis: over keys for a block of queries, over queries for a
# block of keys. Its sums thus stay within the program, and no scores are written to memory. If
# causal, the loop skips the blocks that lie entirely above the diagonal.


def _forward_kernel(options, *refs):
    q_segments, q, seeds, k_segments, k, v, output, normalizer = refs
    number, block = pl.program_id(2), options.block
    query_arrays = (q_segments[...], q[...])

    def step(i, state):
        highest, total, summed = state
        positions = pl.ds(pl.multiple_of(i * block, block), block)
        key_arrays = (k_segments[:, positions], k[positions])
        scores, keep = _tile(options, seeds, query_arrays, key_arrays, (number, i))
        new = jnp.maximum(highest, scores.max(axis=1, keepdims=True))
        weights, shrink = jnp.exp(scores - new), jnp.exp(highest - new)
        # Dropout follows the softmax, so the normalizer counts the dropped weights too.
        total = total * shrink + weights.sum(axis=1, keepdims=True)
        weights = jnp.where(keep, weights, 0.0).astype(v.dtype)
        return new, total, summed * shrink + _product(weights, v[positions])

    vector = jnp.zeros((block, 1), jnp.float32)
    state = vector + _HIDDEN, vector, jnp.zeros(q.shape, jnp.float32)
    # Blocks of queries and keys have the same size, so the diagonal crosses block `number`.
    stop = number + 1 if options.causal else k.shape[0] // block
    highest, total, summed = jax.lax.fori_loop(0, stop, step, state)
    # The scale of dropout is applied to the sum, once for each query instead of once for each
    # weight.
    output[...] = (summed / (total * (1 - options.rate))).astype(output.dtype)
    # With this number, the backward pass recovers a normalized weight as exp(score - normalizer).
    normalizer[...] = (highest + jnp.log(total)).T


def _queries_kernel(options, *refs):
    *queries, seeds, k_segments, k, v, result = refs
    number, block = pl.program_id(2), options.block
    query_arrays = [x[...] for x in queries]

    def step(i, summed):
        positions = pl.ds(pl.multiple_of(i * block, block), block)
        key_arrays = (k_segments[:, positions], k[positions], v[positions])
        _, d_scores = _tile_gradients(options, seeds, query_arrays, key_arrays, (number, i))
        return summed + _product(d_scores, key_arrays[1])

    stop = number + 1 if options.causal else k.shape[0] // block
    summed = jax.lax.fori_loop(0, stop, step, jnp.zeros(result.shape, jnp.float32))
    result[...] = summed.astype(result.dtype)


def _keys_kernel(options, *refs):
    *keys, seeds, q_segments, q, gradient, normalizer, means, k_result, v_result = refs
    number, block = pl.program_id(2), options.block
    key_arrays = [x[...] for x in keys]

    def step(i, sums):
        positions = pl.ds(pl.multiple_of(i * block, block), block)
        rows = (q[positions], gradient[positions])
        query_arrays = (
            q_segments[:, positions],
            *rows,
            normalizer[:, positions],
            means[:, positions],
        )
        weights, d_scores = _tile_gradients(options, seeds, query_arrays, key_arrays, (i, number))
        return sums[0] + _product(d_scores.T, rows[0]), sums[1] + _product(weights.T, rows[1])

    start = number if options.causal else 0
    zeros = jnp.zeros(k_result.shape, jnp.float32)
    k_sum, v_sum = jax.lax.fori_loop(start, q.shape[0] // block, step, (zeros, zeros))
    k_result[...] = k_sum.astype(k_result.dtype)
    v_result[...] = v_sum.astype(v_result.dtype)


def _tile(options, seeds, query_arrays, key_arrays, numbers):
    """Returns the scores (Q, K) of a block of queries and a block of keys, and the dropout mask."""
    (q_segments, q), (k_segments, k) = query_arrays, key_arrays
    shape = (len(q), len(k))
    queries = numbers[0] * options.block + jax.lax.broadcasted_iota(jnp.int32, shape, 0)
    keys = numbers[1] * options.block + jax.lax.broadcasted_iota(jnp.int32, shape, 1)
    visible = q_segments.T == k_segments
    if options.causal:
        visible = visible & (queries >= keys)
    scores = jnp.where(visible, _product(q, k.T) * options.scale, _HIDDEN)
    return scores, is_kept((seeds[0, 0], seeds[0, 1]), queries, keys, options.rate)


def _tile_gradients(options, seeds, query_arrays, key_arrays, numbers):
    """Returns the weights (Q, K) after dropout and the gradients of q k^T for a pair of blocks."""
    q_segments, q, gradient, normalizer, means = query_arrays
    k_segments, k, v = key_arrays
    scores, keep = _tile(options, seeds, (q_segments, q), (k_segments, k), numbers)
    weights = jnp.exp(scores - normalizer.T)
    scale = jnp.where(keep, 1 / (1 - options.rate), 0.0)
    # `means` needs no dropout here, because it was computed from outputs after dropout.
    d_scores = weights * (scale * _product(gradient, v.T) - means.T) * options.scale
    # The products that follow have factors of the dtype of the arrays and float32 sums, as in the
    # forward pass.
    return (scale * weights).astype(v.dtype), d_scores.astype(k.dtype)


def _product(x, y):
    return jnp.dot(x, y, preferred_element_type=jnp.float32)
