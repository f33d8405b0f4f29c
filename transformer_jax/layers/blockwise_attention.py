"""Attention with dropout on its weights, block by block, as Pallas kernels for GPUs and TPUs.

The forward pass keeps a running softmax over blocks of keys (Dao et al. 2022, algorithm 2). The
backward pass computes the weights again from the logarithm of their normaliser. No pass writes
scores or weights to memory. The dropout mask of a block is that of `weight_dropout`.

Within a kernel, a program has one row, one head and a block of queries (or of keys, for their
gradients), with all keys and values of the head. Vectors over a length are (1, L).
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

_HIDDEN = -1e30  # the score of a key that the mask hides
# The bytes of keys and values of one head that a TPU holds twice in its vector memory, where a
# vector has a multiple of 128 numbers.
_MOST_BYTES = 4 * 2**20
_TPU_LANES = 128
# Sizes of a block, the preferred one first.
_BLOCKS = {"tpu": (256, 128), "gpu": (64,)}


class Inputs(NamedTuple):
    """The arrays of attention without gradients. Queries attend to keys of their own segment."""

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
    """Whether the kernels take queries (B, Q, H, D) and keys (B, K, G, D) on the device in use.

    It must be a TPU, or an NVIDIA GPU from Ampere on.
    """
    head_dim = q.shape[3]
    if sharding.platform() == "tpu":
        width = -(-head_dim // _TPU_LANES) * _TPU_LANES
        fits = 2 * k.shape[1] * width * k.dtype.itemsize <= _MOST_BYTES
    else:
        fits = sharding.is_ampere() and q.dtype == jnp.bfloat16 and head_dim in (16, 32, 64, 128)
    return fits and _block(q, k, sharding.platform()) is not None


def _block(q: jax.Array, k: jax.Array, platform: str) -> int | None:
    """Returns the first size that divides the lengths of queries and keys."""
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
    """Scaled dot-product attention. Each device computes its own rows and heads.

    The output equals that of `masks.dot_product` but for padding, which attends to padding.
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
        in_front = [x.transpose(0, 2, 1, 3) for x in (q, k, v)]  # (B, H, L, D)
        return _attention(options, inputs, *in_front).transpose(0, 2, 1, 3)

    return sharding.on_each_device(on_device, arrays, axes, heads)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(options: Options, inputs: Inputs, q, k, v):
    return _forward(options, inputs, q, k, v)[0]


def _forward(options: Options, inputs: Inputs, q, k, v):
    vectors = jax.ShapeDtypeStruct((*q.shape[:2], 1, q.shape[2]), jnp.float32)
    output, normaliser = _call(
        _forward_kernel,
        options,
        blocked=(inputs.query_segments, q),
        whole=(inputs.seeds, inputs.key_segments, k, v),
        results=(jax.ShapeDtypeStruct(q.shape, q.dtype), vectors),
    )
    return output, (inputs, q, k, v, output, normaliser)


def _backward(options: Options, saved, gradient):
    inputs, q, k, v, output, normaliser = saved
    # For each query, the sum of its weights times their gradients.
    products = gradient.astype(jnp.float32) * output.astype(jnp.float32)
    means = products.sum(axis=-1)[:, :, None]  # (B, H, 1, Q)
    of_queries = (inputs.query_segments, q, gradient, normaliser, means)
    of_keys = (inputs.key_segments, k, v)
    (q_gradient,) = _call(
        _queries_kernel,
        options,
        blocked=of_queries,
        whole=(inputs.seeds, *of_keys),
        results=(jax.ShapeDtypeStruct(q.shape, q.dtype),),
    )
    # Each head of the queries gives a part of the gradients of the keys that it reads.
    batch, heads, _, head_dim = q.shape
    is_shared = heads != k.shape[1]
    part = jax.ShapeDtypeStruct((batch, heads, *k.shape[2:]), jnp.float32 if is_shared else k.dtype)
    parts = _call(
        _keys_kernel,
        options,
        blocked=of_keys,
        whole=(inputs.seeds, *of_queries),
        results=(part, part),
    )
    if is_shared:
        parts = [x.reshape(*k.shape[:2], -1, *k.shape[2:]).sum(axis=2) for x in parts]
    return None, q_gradient, *(x.astype(k.dtype) for x in parts)


_attention.defvjp(_forward, _backward)


def _call(kernel, options: Options, *, blocked: tuple, whole: tuple, results: tuple):
    """Returns the results (B, H, L, D) or (B, H, 1, L) of a kernel of (*blocked, *whole, *results).

    A program reads and writes one block of the arrays that are blocked and of the results.
    """
    batch, heads = results[0].shape[:2]
    block = options.block

    def spec(x, is_blocked):
        shape = list(x.shape[2:])
        along = 1 if shape[0] == 1 else 0
        if is_blocked:
            shape[along] = block
        sharing = heads // x.shape[1]  # heads of the queries that read one head of x

        def index(row, head, number):
            place = [0, 0]
            if is_blocked:
                place[along] = number
            return row, jax.lax.div(head, sharing), *place

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
    from jax.experimental.pallas import triton

    return {"compiler_params": triton.CompilerParams(num_warps=4, num_stages=2)}


# kernels


def _forward_kernel(options, *refs):
    q_segments, q, seeds, k_segments, k, v, output, normaliser = refs
    number, block = pl.program_id(2), options.block
    of_queries = (q_segments[...], q[...])

    def step(i, state):
        highest, total, summed = state
        places = pl.ds(pl.multiple_of(i * block, block), block)
        of_keys = (k_segments[:, places], k[places])
        scores, keep = _tile(options, seeds, of_queries, of_keys, (number, i))
        new = jnp.maximum(highest, scores.max(axis=1, keepdims=True))
        weights, shrink = jnp.exp(scores - new), jnp.exp(highest - new)
        total = total * shrink + weights.sum(axis=1, keepdims=True)
        weights = jnp.where(keep, weights, 0.0).astype(v.dtype)
        return new, total, summed * shrink + _product(weights, v[places])

    vector = jnp.zeros((block, 1), jnp.float32)
    state = vector + _HIDDEN, vector, jnp.zeros(q.shape, jnp.float32)
    stop = number + 1 if options.causal else k.shape[0] // block
    highest, total, summed = jax.lax.fori_loop(0, stop, step, state)
    output[...] = (summed / (total * (1 - options.rate))).astype(output.dtype)
    normaliser[...] = (highest + jnp.log(total)).T


def _queries_kernel(options, *refs):
    *queries, seeds, k_segments, k, v, result = refs
    number, block = pl.program_id(2), options.block
    of_queries = [x[...] for x in queries]

    def step(i, summed):
        places = pl.ds(pl.multiple_of(i * block, block), block)
        of_keys = (k_segments[:, places], k[places], v[places])
        _, of_scores = _tile_gradients(options, seeds, of_queries, of_keys, (number, i))
        return summed + _product(of_scores, of_keys[1])

    stop = number + 1 if options.causal else k.shape[0] // block
    summed = jax.lax.fori_loop(0, stop, step, jnp.zeros(result.shape, jnp.float32))
    result[...] = summed.astype(result.dtype)


def _keys_kernel(options, *refs):
    *keys, seeds, q_segments, q, gradient, normaliser, means, k_result, v_result = refs
    number, block = pl.program_id(2), options.block
    of_keys = [x[...] for x in keys]

    def step(i, sums):
        places = pl.ds(pl.multiple_of(i * block, block), block)
        rows = (q[places], gradient[places])
        of_queries = (q_segments[:, places], *rows, normaliser[:, places], means[:, places])
        weights, of_scores = _tile_gradients(options, seeds, of_queries, of_keys, (i, number))
        return sums[0] + _product(of_scores.T, rows[0]), sums[1] + _product(weights.T, rows[1])

    start = number if options.causal else 0
    zeros = jnp.zeros(k_result.shape, jnp.float32)
    k_sum, v_sum = jax.lax.fori_loop(start, q.shape[0] // block, step, (zeros, zeros))
    k_result[...] = k_sum.astype(k_result.dtype)
    v_result[...] = v_sum.astype(v_result.dtype)


def _tile(options, seeds, of_queries, of_keys, numbers):
    """Returns the scores (Q, K) of a block of queries and one of keys, and the weights to keep."""
    (q_segments, q), (k_segments, k) = of_queries, of_keys
    shape = (len(q), len(k))
    queries = numbers[0] * options.block + jax.lax.broadcasted_iota(jnp.int32, shape, 0)
    keys = numbers[1] * options.block + jax.lax.broadcasted_iota(jnp.int32, shape, 1)
    visible = q_segments.T == k_segments
    if options.causal:
        visible = visible & (queries >= keys)
    scores = jnp.where(visible, _product(q, k.T) * options.scale, _HIDDEN)
    return scores, is_kept((seeds[0, 0], seeds[0, 1]), queries, keys, options.rate)


def _tile_gradients(options, seeds, of_queries, of_keys, numbers):
    """Returns the weights (Q, K) after dropout, and the gradients of q k^T, of a pair of blocks."""
    q_segments, q, gradient, normaliser, means = of_queries
    k_segments, k, v = of_keys
    scores, keep = _tile(options, seeds, (q_segments, q), (k_segments, k), numbers)
    weights = jnp.exp(scores - normaliser.T)
    scale = jnp.where(keep, 1 / (1 - options.rate), 0.0)
    of_scores = weights * (scale * _product(gradient, v.T) - means.T) * options.scale
    return (scale * weights).astype(v.dtype), of_scores.astype(k.dtype)


def _product(x, y):
    return jnp.dot(x, y, preferred_element_type=jnp.float32)
